"""How each client is started with the gateway as its upstream: through its environment and arguments alone."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.config.discovery import data_directory, home_directory
from dragoman.config.settings import Config
from dragoman.operate.clients.client_settings import (
    aider_metadata,
    claude_environment,
    codex_provider,
    opencode_settings,
)
from dragoman.operate.clients.connecting import RECIPES, Recipe
from dragoman.operate.clients.settings_file import replace_file
from dragoman.operate.clients.settings_format import CannotMerge, Settings
from dragoman.operate.clients.written_settings import choose_defaults, combine, list_leaves, nest
from dragoman.operate.configuration.effective import KEY_VARIABLE, GatewayTarget, suggest_model
from dragoman.translate.profiles.model_table import find_profile
from dragoman.upstreams.routing import find_configured_targets

KEPT_FILES = 10  # of one client: others that run may still read theirs
APPENDED = frozenset({"GEMINI_CLI_CUSTOM_HEADERS"})  # variables that the user's own value stays in
FILES = "launch"  # their directory, below that of the gateway's data


class Launch(Struct, frozen=True):
    """One client. `recipe` is its name in `connect`; `removes` are variables that would take precedence over ours.

    `others` are the models besides the main one that the user has not chosen himself.
    """

    program: str
    recipe: str
    install: str
    environment: Callable[
        [GatewayTarget, str, Settings], dict[str, str]
    ]  # the gateway and model, the client key, others
    arguments: Callable[[GatewayTarget, Settings], list[str]] = lambda to, others: []
    removes: tuple[str, ...] = ()
    name_variable: Callable[[str], str] = lambda name: name  # name of a setting -> variable that overrides it
    files: Mapping[
        str, Callable[[GatewayTarget], Settings]
    ] = {}  # variable -> JSON of the file that it names, if not empty
    find_problem: Callable[[], str | None] = lambda: None  # what may keep the client from using the gateway


def _claude_environment(to: GatewayTarget, key: str, others: Settings) -> dict[str, str]:
    return {"ANTHROPIC_AUTH_TOKEN": key, **_claude_variables(to, others)}


def _claude_arguments(to: GatewayTarget, others: Settings) -> list[str]:
    """Repeat the environment as settings: those of the user's own file would take precedence over variables."""
    settings = {"env": _claude_variables(to, others)}
    return ["--settings", msgspec.json.encode(settings).decode()]


def _claude_variables(to: GatewayTarget, others: Settings) -> dict[str, str]:
    return {**claude_environment(to), **{path[-1]: str(model) for path, model in list_leaves(others)}}


def _codex_arguments(to: GatewayTarget, others: Settings) -> list[str]:
    fields = ",".join(f"{name}={_quote(value)}" for name, value in codex_provider(to).items())
    settings = ["model_provider=dragoman", f"model_providers.dragoman={{{fields}}}"]
    if to.model is not None:
        settings.append(f"model={_quote(to.model)}")
    if to.window is not None:
        settings.append(f"model_context_window={to.window}")
    return [word for setting in settings for word in ("-c", setting)]


def _opencode_environment(to: GatewayTarget, key: str, others: Settings) -> dict[str, str]:
    settings = combine(opencode_settings(to), others)
    return {KEY_VARIABLE: key, "OPENCODE_CONFIG_CONTENT": msgspec.json.encode(settings).decode()}


GEMINI_SETTINGS = Path(__file__).parent / "gemini_cli_settings.json"


def find_shared_directory(path: Path) -> Path | None:
    """Return the first directory above a path that other users can write to."""
    return next((parent for parent in path.parents if parent.stat().st_mode & 0o022), None)


def _find_gemini_problem() -> str | None:
    shared = find_shared_directory(GEMINI_SETTINGS)
    if shared is None:
        return None
    return (
        f"Other users can write to {shared}, so Gemini CLI ignores the settings that dragoman keeps below it. "
        "If it asks you to sign in with Google, run: dragoman connect gemini --write"
    )


def _gemini_environment(to: GatewayTarget, key: str, others: Settings) -> dict[str, str]:
    """Use an API key even if the user signs in with Google otherwise, which only a settings file can say."""
    return {
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(GEMINI_SETTINGS),
        "GOOGLE_GEMINI_BASE_URL": to.root,
        "GEMINI_API_KEY": key,
        "GEMINI_MODEL": str(to.model),
        # It asks for Google's models by name, for web search and more. Only settings could name others, and it reads
        # settings only from its user's own files and from directories of root.
        "GEMINI_CLI_CUSTOM_HEADERS": f"x-dragoman-fallback-model: {to.model}",
    }


def _aider_environment(to: GatewayTarget, key: str, others: Settings) -> dict[str, str]:
    return {
        "OPENAI_API_BASE": to.api,
        "OPENAI_API_KEY": key,
        "AIDER_OPENAI_API_BASE": to.api,
        "AIDER_MODEL": f"openai/{to.model}",
        **{_aider_variable(path[-1]): str(model) for path, model in list_leaves(others)},
    }


def _aider_variable(option: str) -> str:
    return f"AIDER_{option.upper().replace('-', '_')}"


def _quote(value: object) -> str:
    return msgspec.json.encode(value).decode()


LAUNCHES: Mapping[str, Launch] = {
    "claude": Launch(
        "claude",
        "claude-code",
        "npm install -g @anthropic-ai/claude-code",
        _claude_environment,
        _claude_arguments,
        ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
    ),
    "codex": Launch(
        "codex", "codex", "npm install -g @openai/codex", lambda to, key, others: {KEY_VARIABLE: key}, _codex_arguments
    ),
    "gemini": Launch(
        "gemini",
        "gemini",
        "npm install -g @google/gemini-cli",
        _gemini_environment,
        removes=("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GOOGLE_CLOUD_PROJECT"),
        find_problem=_find_gemini_problem,
    ),
    "opencode": Launch("opencode", "opencode", "npm install -g opencode-ai", _opencode_environment),
    "aider": Launch(
        "aider",
        "aider",
        "python -m pip install aider-chat",
        _aider_environment,
        removes=("AIDER_OPENAI_API_KEY",),
        name_variable=_aider_variable,
        files={"AIDER_MODEL_METADATA_FILE": aider_metadata},
    ),
}


def choose_model(recipe: Recipe, config: Config, present: object, list_ids: Callable[[], Sequence[str]]) -> str | None:
    """Return the model that the settings name already if the gateway serves it, else the most suitable one.

    `list_ids` returns the models that the gateway lists; it is called only if needed. None where there are none and
    the configuration names none.
    """
    suggested = suggest_model(config)
    if present is None and suggested is not None:
        return suggested
    ids = list_ids()
    if isinstance(present, str) and (present in ids or bool(find_configured_targets(present, config.models, {}))):
        return present
    return suggested or _choose_model(ids, recipe.preferred_models)


def _choose_model(ids: Sequence[str], preferred: Sequence[str]) -> str | None:
    """Return the first model whose name contains the best of the preferred parts that any name contains."""
    for part in (*preferred, ""):
        matching = [id for id in ids if part in id.rpartition("/")[2]]
        if matching:
            return matching[0]
    return None


def find_window(config: Config, model: str, listed: Mapping[str, int]) -> int | None:
    """Return the context window, in tokens, of the model that answers to a name; None if it is not known.

    `listed` are the windows that the gateway lists. For a model that is not in its list, the table of known models
    counts, then `context_window` of the provider.
    """
    if model in listed:
        return listed[model]
    targets = find_configured_targets(model, config.models, {})
    name = str(targets[0]) if targets else model
    provider = config.providers.get(name.partition("/")[0])
    return find_profile(name).window or (None if provider is None else provider.context_window)


class ClientStart(Struct, frozen=True):
    """Which client a user starts, and with what."""

    launch: Launch
    program: str  # where it is installed
    arguments: tuple[str, ...] = ()  # its own
    model: str | None = None  # None: one is chosen


def make_command(
    start: ClientStart, to: GatewayTarget, key: str, environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the whole environment of the client; write the files that it is to read."""
    launch = start.launch
    kept = {name: value for name, value in environ.items() if name not in launch.removes}
    others = _find_others(launch, to, environ)
    variables = launch.environment(to, key, others) | _write_files(launch, to, environ)
    for name in APPENDED & environ.keys() & variables.keys():
        variables[name] = f"{environ[name]}, {variables[name]}"
    return [start.program, *launch.arguments(to, others), *start.arguments], {**kept, **variables}


def _find_others(launch: Launch, to: GatewayTarget, environ: Mapping[str, str]) -> Settings:
    """Return the models besides the main one that neither a variable nor the client's own settings choose."""
    file, home = RECIPES[launch.recipe].file, home_directory(environ)
    if file is None:
        return {}
    defaults = file.defaults(to)
    if home is not None:
        with suppress(CannotMerge, OSError):  # the client will report what is wrong with its file
            defaults = choose_defaults(file.find(environ, home), file.format, defaults)
    leaves = list_leaves(defaults)
    return nest((path, model) for path, model in leaves if launch.name_variable(path[-1]) not in environ)


def _write_files(launch: Launch, to: GatewayTarget, environ: Mapping[str, str]) -> dict[str, str]:
    """Write the files of a client into the gateway's own directory, and return the variables that name them."""
    home = home_directory(environ)
    variables: dict[str, str] = {}
    for variable, make in launch.files.items():
        settings = make(to)
        if home is None or not settings or variable in environ:
            continue
        content = msgspec.json.format(msgspec.json.encode(settings)).decode()
        directory = data_directory(environ, home) / FILES
        path = directory / f"{launch.program}-{hashlib.sha256(content.encode()).hexdigest()[:12]}.json"
        with suppress(OSError):  # a disk that is full or cannot be written: the client works without
            replace_file(path, content, 0o600)
            variables[variable] = str(path)
            _remove_old_files(directory, launch.program)
    return variables


def _remove_old_files(directory: Path, program: str) -> None:
    for path in sorted(directory.glob(f"{program}-*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT_FILES]:
        path.unlink(missing_ok=True)


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of a program that $PATH leads to."""
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(directory or ".") / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None
