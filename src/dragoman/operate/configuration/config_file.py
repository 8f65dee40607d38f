"""The file dragoman.toml: write a first one, add and remove providers, and edit it as text whose secrets are hidden."""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from dragoman.config.load import FILE_NAME, ConfigSource, user_config_file
from dragoman.config.presets import Preset, load_presets, suggest_vendor
from dragoman.config.problems import ConfigError, suggest
from dragoman.config.providers import KINDS, PROVIDER_NAME
from dragoman.config.secret import Secret, SecretSource, find_unreadable_secrets
from dragoman.config.settings import Config, ProviderConfig
from dragoman.operate import AdminError, InvalidArgument
from dragoman.operate.clients.settings_file import OTHERS_KEY, FileEdit, plan_edit, read_text
from dragoman.operate.clients.settings_format import CannotMerge, merge_toml, remove_toml
from dragoman.operate.configuration.effective import PASSWORD_PARAMETER, URL_PASSWORD
from dragoman.translate.framing.redaction import SECRET, redact

HEAD = """\
# Configuration of dragoman. `dragoman config check` checks it, `dragoman config show` shows what is in effect.
# Edits take effect within a second, except host and port. docs/configuration.md describes every setting.

[server]
host = "127.0.0.1"      # only this machine; "0.0.0.0" lets others in, who then need a client key
port = {port}

[debug]
capture = "{capture}"{padding}# keep exchanges to inspect them with `dragoman capture`: off, errors or all

"""

TAIL = """\
# Names of your own for models, tried in this order:
#
# [[models]]
# name = "fast"
# to = [{examples}]
"""

NO_PROVIDER = """\
# No provider yet: `dragoman providers add openrouter` adds one, `dragoman providers presets` lists the vendors.
# Until then, accounts and servers that are found on this machine are used, or the built-in `echo`.

"""
Section = dict[str, object]
PlanEdit = Callable[[Path], FileEdit]
HIDDEN = re.compile(r"<hidden (\d{1,6})>")
SHORTEST_SECRET = 4  # a shorter value is not a secret, and would be found everywhere
OWN_REFERENCES = ("env:", "file:", "store:")


class ProviderChoice(Struct, frozen=True):
    """A provider that the file is to have. `origin` is where it was found; empty if the user named it."""

    name: str
    section: dict[str, object]
    title: str = ""
    origin: str = ""


def new_file_path(source: ConfigSource, *, in_directory: bool) -> Path:
    """Return where the file is to be written."""
    if source.file is not None:
        return Path(source.file).expanduser()
    return source.directory / FILE_NAME if in_directory else user_config_file(source.environ, source.home)


def find_choices(config: Config) -> list[ProviderChoice]:
    """Return a choice for each provider that was found without a file."""
    return [
        ProviderChoice(
            name,
            _section_of(config, name),
            _title_of(provider.preset or provider.kind),
            config.origins.get(f"providers.{name}.kind", ""),
        )
        for name, provider in config.providers.items()
        if provider.kind != "echo"
    ]


def make_choice(kind: str, parameters: Mapping[str, str]) -> ProviderChoice:
    return ProviderChoice(kind, {"kind": kind, **parameters}, _title_of(kind))


def render_config(choices: Iterable[ProviderChoice], port: int, capture: str) -> str:
    """Return the text of the file."""
    chosen = list(choices)
    text = HEAD.format(port=port, capture=capture, padding=" " * (12 - len(capture)))
    text += "".join(map(_render_section, chosen)) or NO_PROVIDER
    names = [choice.name for choice in chosen][:2] or ["openrouter"]
    return text + TAIL.format(examples=", ".join(f'"{name}/MODEL"' for name in names))


def _render_section(choice: ProviderChoice) -> str:
    comment = choice.title + (f", found at: {choice.origin}" if choice.origin else "")
    lines = [f"# {comment}"] if comment else []
    lines.append(f"[providers.{choice.name}]")
    lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in choice.section.items()]
    return "\n".join(lines) + "\n\n"


def _section_of(config: Config, name: str) -> dict[str, object]:
    """Return the settings that make the same provider without its discovery."""
    provider = config.providers[name]
    if provider.preset:
        return {"kind": provider.preset}
    section: dict[str, object] = {"kind": provider.kind}
    origins = config.origins
    if f"providers.{name}.endpoint" in origins:
        section["endpoint"] = provider.endpoint
    if provider.quirks:
        section["quirks"] = list(provider.quirks)
    if provider.api_key is not None and str(provider.api_key) != "***":
        section["api_key"] = str(provider.api_key)
    return section


def _title_of(kind: str) -> str:
    preset = load_presets().get(kind)
    return kind if preset is None else preset.title


class ProviderRow(Struct, frozen=True):
    """One provider that is in effect. `problem` is why it cannot be used; empty if nothing is known against it."""

    name: str
    kind: str
    endpoint: str
    protocols: tuple[str, ...]
    credential: str
    origin: str
    problem: str


def list_providers(config: Config, environ: Mapping[str, str]) -> list[ProviderRow]:
    return [_describe_provider(name, provider, config, environ) for name, provider in config.providers.items()]


def _describe_provider(name: str, provider: ProviderConfig, config: Config, environ: Mapping[str, str]) -> ProviderRow:
    problems = [problem.message for problem in find_unreadable_secrets(provider, environ)]
    source = provider.api_key or getattr(provider, "credentials", None)
    return ProviderRow(
        name=name,
        kind=provider.preset or provider.kind,
        endpoint=provider.endpoint or "",
        protocols=provider.protocols,
        credential="" if source is None else str(source),
        origin=config.origins.get(f"providers.{name}.kind", "built in"),
        problem="; ".join(problems),
    )


def find_vendor(kind: str) -> Preset | None:
    """Return the preset of that name, None for one of the kinds; raise InvalidArgument for any other word."""
    preset = load_presets().get(kind)
    if preset is None and kind not in KINDS:
        nearest = suggest_vendor(kind, KINDS)
        raise InvalidArgument(f'There is no vendor "{kind}"{nearest or "."} `dragoman providers presets` lists all.')
    return preset


def plan_addition(source: ConfigSource, name: str, section: Section) -> FileEdit:
    """Return the change that adds a section, checked as a whole."""
    if not PROVIDER_NAME.fullmatch(name) or "." in name:
        raise InvalidArgument(
            f'"{name}" is not a valid name of a provider: use letters, digits, hyphens and underscores.'
        )
    config = source.read()
    if _is_in_file(config, name):
        raise AdminError(
            f'There is already a provider "{name}" in {config.source}. Edit it there, or pass another --name.'
        )
    path = config_path(config, source.environ, source.home)
    edit = _plan(path, lambda path: plan_edit(path, lambda text: merge_toml(text, {"providers": {name: section}})))
    _check_edit(edit, source)
    return edit


def plan_removal(source: ConfigSource, name: str) -> FileEdit:
    """Return the change that removes a section, checked as a whole."""
    config = source.read()
    if not _is_in_file(config, name):
        raise AdminError(_explain_absence(name, config))
    path = config_path(config, source.environ, source.home)
    edit = _plan(path, lambda path: plan_edit(path, lambda text: remove_toml(text, [("providers", name)])))
    _check_edit(edit, source)
    return edit


def _is_in_file(config: Config, name: str) -> bool:
    origin = config.origins.get(f"providers.{name}.kind", "")
    return config.source is not None and origin.startswith(f"{config.source}:")


def _explain_absence(name: str, config: Config) -> str:
    if name not in config.providers:
        return f'There is no provider "{name}"{suggest(name, list(config.providers)) or "."}'
    origin = config.origins.get(f"providers.{name}.kind")
    if origin is None:
        return f'"{name}" is built in: it is there as long as there is no other provider.'
    return f'"{name}" is not in a file. It was found at: {origin}. Remove that, and the provider is gone.'


def _plan(path: Path, plan: PlanEdit) -> FileEdit:
    try:
        return plan(path)
    except CannotMerge as reason:
        raise AdminError(f"{path} was not changed: {reason}. Edit it yourself.") from reason


def _check_edit(edit: FileEdit, source: ConfigSource) -> None:
    """Raise AdminError if the file would be invalid after the edit."""
    directory = edit.path.parent if edit.path.parent.is_dir() else None
    handle, temporary = tempfile.mkstemp(prefix=".dragoman-check-", suffix=".toml", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(edit.new)
        ConfigSource(temporary, source.environ, source.directory, source.home).read()
    except ConfigError as error:
        raise AdminError(
            f"{edit.path} was not changed, because it would then be invalid:\n"
            + str(error).replace(temporary, str(edit.path))
        ) from error
    finally:
        os.unlink(temporary)


class ShownFile(Struct, frozen=True):
    """A file whose secrets are replaced by `<hidden N>`; `version` changes with every change of the file."""

    path: Path
    text: str
    version: str
    exists: bool
    is_writable: bool
    hidden: tuple[str, ...] = ()  # never shown


class LiteralSecret(Struct, frozen=True):
    """A secret; `is_in_file` where it is certain that the configuration file holds it."""

    value: str
    is_in_file: bool


class CannotShow(AdminError):
    """The file has secrets that cannot be recognised in its text, so it can only be edited by hand."""


def config_path(config: Config, environ: Mapping[str, str], home: Path) -> Path:
    """Return the configuration file, or where a new one belongs."""
    return config.source or user_config_file(environ, home)


def show_file(path: Path, read: Callable[[str], Config]) -> ShownFile:
    """Return the file with its secrets hidden; `read` checks a text as the configuration, or raises ConfigError."""
    try:
        text = read_text(path)
        config = read(text or "")
    except (CannotMerge, OSError, ConfigError) as error:
        raise CannotShow(f"{path} cannot be shown, because it cannot be read: {redact(str(error))}") from None
    shown, hidden = hide_secrets(text or "", find_literals(config, str(path)))
    version = hashlib.sha256((text or "").encode()).hexdigest()[:32]
    return ShownFile(path, shown, version, text is not None, _is_writable(path), hidden)


def hide_secrets(text: str, literals: Iterable[LiteralSecret]) -> tuple[str, tuple[str, ...]]:
    """Return the text with each secret replaced by `<hidden N>`, and the secrets in the order of their numbers."""
    known = [literal for literal in literals if len(literal.value) >= SHORTEST_SECRET]
    if HIDDEN.search(text) or any(literal.is_in_file and literal.value not in text for literal in known):
        raise CannotShow("The file writes a secret in a form that cannot be hidden. Edit it by hand.")
    found = {literal.value for literal in known} | {match[0] for match in SECRET.finditer(text)}
    found |= {match[0][len(match["before"]) :] for match in OTHERS_KEY.finditer(text)}
    found = {secret for secret in found if not secret.startswith(OWN_REFERENCES)}
    if not found:
        return text, ()
    hidden: dict[str, int] = {}
    pattern = re.compile("|".join(re.escape(secret) for secret in sorted(found, key=len, reverse=True)))

    def hide(match: re.Match[str]) -> str:
        return f"<hidden {hidden.setdefault(match[0], len(hidden) + 1)}>"

    return pattern.sub(hide, text), tuple(hidden)


def restore_secrets(text: str, hidden: tuple[str, ...]) -> str:
    """Put the secrets back; raises InvalidArgument for a number that the file did not have."""

    def restore(match: re.Match[str]) -> str:
        number = int(match[1])
        if not 1 <= number <= len(hidden):
            raise InvalidArgument(f"{match[0]} is not in the file. Write the secret itself, or env:NAME.")
        return hidden[number - 1]

    return HIDDEN.sub(restore, text)


def plan_write(shown: ShownFile, text: str) -> FileEdit:
    """Return the change of the file to a text that was made from what was shown."""
    old = restore_secrets(shown.text, shown.hidden) if shown.exists else None
    return FileEdit(shown.path, old, restore_secrets(text, shown.hidden))


def describe_change(shown: ShownFile, text: str) -> str:
    """Return the change as a unified diff, in which secrets are hidden."""
    return FileEdit(shown.path, shown.text, text).diff()


def check_secrets(config: Config, old: Config, environ: Mapping[str, str]) -> None:
    """Raise ConfigError for secrets of changed sections that cannot be read, as a reload does."""
    changed = [section for name, section in config.providers.items() if old.providers.get(name) != section]
    tools = (config.tools.web_search, config.tools.web_fetch) if config.tools != old.tools else ()
    problems = [found for section in (*changed, *tools) for found in find_unreadable_secrets(section, environ)]
    if problems:
        raise ConfigError(problems)


def find_literals(config: Config, file: str) -> Iterator[LiteralSecret]:
    """Yield every secret that the configuration has as it is, rather than naming where it is."""
    shared = config.server, config.debug, config.store, config.fetch, config.tools, config.limits
    for section in (*shared, *config.providers.values()):
        yield from _find_literals(section, file)


def _find_literals(value: object, file: str) -> Iterator[LiteralSecret]:
    match value:
        case SecretSource():
            if not value.text.startswith(OWN_REFERENCES):
                yield LiteralSecret(value.text, value.file == file)
        case Secret():
            yield LiteralSecret(value.reveal(), is_in_file=False)
        case str():
            yield from (
                LiteralSecret(found[0].partition(":")[2], is_in_file=False) for found in URL_PASSWORD.finditer(value)
            )
            yield from (LiteralSecret(found[0], is_in_file=False) for found in PASSWORD_PARAMETER.finditer(value))
        case dict():
            for inner in value.values():
                yield from _find_literals(inner, file)
        case tuple() | list():
            for inner in value:
                yield from _find_literals(inner, file)
        case Struct():
            for field in fields(value):
                yield from _find_literals(getattr(value, field.name), file)
        case _:
            return


def _is_writable(path: Path) -> bool:
    """Return whether the file can be replaced: that needs the right to write to its directory."""
    directory = next(parent for parent in path.parents if parent.exists())
    return os.access(directory, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.W_OK))
