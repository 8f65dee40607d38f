"""Read the configuration of another gateway, and plan the dragoman.toml that does the same."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from dragoman.config.environment import parse_dotenv
from dragoman.config.load import FILE_NAME, ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.operate import AdminError, Conflict, InvalidArgument, NotFound
from dragoman.operate.clients.jsonc import NotJson, read_jsonc
from dragoman.operate.clients.settings_file import FileEdit
from dragoman.operate.importing import bifrost, claude_code_router, cli_proxy_api, kiro_gateway, litellm
from dragoman.operate.importing.draft import Draft, Export
from dragoman.operate.importing.source_values import Field, Report, SourceValue

MAX_BYTES = 10 * 1024 * 1024
# The usual names, in the order in which a folder is searched.
FILE_NAMES = (
    "config.yaml",
    "config.yml",
    "litellm_config.yaml",
    "litellm-config.yaml",
    "proxy_config.yaml",
    "config.json",
    ".env",
)


class ReadableGateway(Struct, frozen=True):
    """A gateway whose configuration can be read: its name, the fields that tell it, and its reader."""

    name: str
    marks: frozenset[str]
    read: Callable[[SourceValue, Draft], None]


GATEWAYS = (
    ReadableGateway("LiteLLM", litellm.MARKS, litellm.read_litellm),
    ReadableGateway("claude-code-router", claude_code_router.MARKS, claude_code_router.read_claude_code_router),
    ReadableGateway("CLIProxyAPI", cli_proxy_api.MARKS, cli_proxy_api.read_cli_proxy_api),
    ReadableGateway("Bifrost", bifrost.MARKS, bifrost.read_bifrost),
    ReadableGateway("kiro-gateway", kiro_gateway.MARKS, kiro_gateway.read_kiro_gateway),
)
KNOWN = ", ".join(gateway.name for gateway in GATEWAYS)


class ImportPlan(Struct, frozen=True):
    """The new file, what became of every field of the other one, and the variables to set. It holds no secret."""

    gateway: str
    source: str
    file: str
    text: str
    fields: tuple[Field, ...]
    exports: tuple[Export, ...]


def plan_import(source: Path, target: Path) -> ImportPlan:
    """Read a file, or the configuration in a folder. Raise AdminError if that is not possible."""
    path = _find_file(source)
    document = _read_document(path)
    gateway = max(GATEWAYS, key=lambda known: len(known.marks & document.keys()))
    if not gateway.marks & document.keys():
        raise InvalidArgument(f"{path} is not a configuration of {KNOWN}.")
    report, draft = Report(), Draft(os.environ)
    gateway.read(SourceValue(document, report), draft)
    text = _render_valid(f"{path.name} of {gateway.name}", draft, report)
    return ImportPlan(gateway.name, str(path), str(target), text, report.finish(document), draft.list_exports())


def write_import(plan: ImportPlan) -> None:
    """Write the new file; raise Conflict if there is one already."""
    path = Path(plan.file)
    if path.exists():
        raise Conflict(f"{path} already exists. Move it away, or run the command in another folder.")
    FileEdit(path, None, plan.text).create()


def target_of(directory: Path) -> Path:
    return directory / FILE_NAME


def _find_file(source: Path) -> Path:
    if not source.exists():
        raise NotFound(f"There is no {source}.")
    if not source.is_dir():
        return source
    found = [source / name for name in FILE_NAMES if (source / name).is_file()]
    if not found:
        raise NotFound(f"{source} has none of {', '.join(FILE_NAMES)}. Name the file.")
    if len(found) > 1:
        raise InvalidArgument(f"{source} has {' and '.join(path.name for path in found)}. Name the file.")
    return found[0]


def _read_document(path: Path) -> Mapping[str, object]:
    """Return the fields of a YAML, JSON or .env file."""
    if path.stat().st_size > MAX_BYTES:
        raise InvalidArgument(f"{path} is too large to be a configuration.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is not text in UTF-8.") from error
    value = _parse(path, text)
    if not isinstance(value, dict):
        raise InvalidArgument(f"{path} is not a configuration of {KNOWN}.")
    return {str(key): member for key, member in value.items()}


def _parse(path: Path, text: str) -> object:
    if path.name.endswith(".env") or path.name.startswith(".env"):
        return {name: variable.value for name, variable in parse_dotenv(text).items()}
    if path.suffix in (".json", ".jsonc", ".json5") or text.lstrip().startswith("{"):
        try:
            return read_jsonc(text).value
        except NotJson as error:
            raise InvalidArgument(f"{path} is not valid JSON: {error}") from error
    try:
        from yaml import YAMLError, safe_load
    except ModuleNotFoundError as missing:
        raise AdminError(
            f"{path} is YAML, which needs PyYAML. Run: pip install pyyaml (with pipx: pipx inject dragoman pyyaml)"
        ) from missing
    try:
        value: object = safe_load(text)
    except (YAMLError, RecursionError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place is not None else ""
        raise InvalidArgument(f"{path} is not valid YAML{line}.") from error
    return value


def _render_valid(origin: str, draft: Draft, report: Report) -> str:
    """Return the new file without the settings that would not be valid; these are reported with the reason."""
    source = ConfigSource(None, {"XDG_CONFIG_HOME": os.devnull}, Path(os.devnull), Path(os.devnull))
    while True:
        text = draft.render(origin)
        try:
            source.read(text=text)
        except ConfigError as error:
            for problem in error.problems:
                if not draft.drop(problem.key):
                    raise InvalidArgument(f"{problem.key}: {problem.message}") from error
                report.reject(problem.key, problem.message)
        else:
            return text
