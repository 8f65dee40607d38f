"""How each client is started with the gateway as its upstream: through its environment and arguments alone."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.admin.clients import Recipe, claude_environment, codex_provider, opencode_settings
from dragoman.admin.configuration import KEY_VARIABLE, Target, suggest_model
from dragoman.config import Config
from dragoman.providers.models import find_profile
from dragoman.routing import find_configured_targets


class Launch(Struct, frozen=True):
    """One client. `recipe` is its name in `connect`; `removes` are variables that would take precedence over ours."""

    program: str
    recipe: str
    install: str
    environment: Callable[[Target, str], dict[str, str]]  # the gateway and model, the client key
    arguments: Callable[[Target], list[str]] = lambda to: []
    removes: tuple[str, ...] = ()
    find_problem: Callable[[], str | None] = lambda: None  # what may keep the client from using the gateway


def _claude_environment(to: Target, key: str) -> dict[str, str]:
    return {"ANTHROPIC_AUTH_TOKEN": key, **claude_environment(to)}


def _claude_arguments(to: Target) -> list[str]:
    """Repeat the environment as settings: those of the user's own file would take precedence over variables."""
    settings = {"env": claude_environment(to)}
    return ["--settings", msgspec.json.encode(settings).decode()]


def _codex_arguments(to: Target) -> list[str]:
    fields = ",".join(f"{name}={_quote(value)}" for name, value in codex_provider(to).items())
    settings = ["model_provider=dragoman", f"model_providers.dragoman={{{fields}}}"]
    if to.model is not None:
        settings.append(f"model={_quote(to.model)}")
    if to.window is not None:
        settings.append(f"model_context_window={to.window}")
    return [word for setting in settings for word in ("-c", setting)]


def _opencode_environment(to: Target, key: str) -> dict[str, str]:
    return {KEY_VARIABLE: key, "OPENCODE_CONFIG_CONTENT": msgspec.json.encode(opencode_settings(to)).decode()}


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


def _gemini_environment(to: Target, key: str) -> dict[str, str]:
    """Use an API key even if the user signs in with Google otherwise, which only a settings file can say."""
    return {
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(GEMINI_SETTINGS),
        "GOOGLE_GEMINI_BASE_URL": to.root,
        "GEMINI_API_KEY": key,
        "GEMINI_MODEL": str(to.model),
    }


def _aider_environment(to: Target, key: str) -> dict[str, str]:
    return {
        "OPENAI_API_BASE": to.api,
        "OPENAI_API_KEY": key,
        "AIDER_OPENAI_API_BASE": to.api,
        "AIDER_MODEL": f"openai/{to.model}",
    }


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
        "codex", "codex", "npm install -g @openai/codex", lambda to, key: {KEY_VARIABLE: key}, _codex_arguments
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
        "aider", "aider", "python -m pip install aider-chat", _aider_environment, removes=("AIDER_OPENAI_API_KEY",)
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
    if isinstance(present, str) and _is_served(present, ids, config):
        return present
    return suggested or _choose_model(ids, recipe.preferred_models)


def _is_served(name: str, ids: Sequence[str], config: Config) -> bool:
    return name in ids or bool(find_configured_targets(name, config.models, {}))


def _choose_model(ids: Sequence[str], preferred: Sequence[str]) -> str | None:
    """Return the first model whose name contains the best of the preferred parts that any name contains."""
    for part in (*preferred, ""):
        matching = [id for id in ids if part in id.rpartition("/")[2]]
        if matching:
            return matching[0]
    return None


def find_window(config: Config, model: str) -> int | None:
    """Return the context window, in tokens, of the model that answers to a name; None if it is not known."""
    targets = find_configured_targets(model, config.models, {})
    return find_profile(targets[0].model if targets else model).window


def make_command(
    launch: Launch, program: str, to: Target, arguments: tuple[str, ...], key: str, environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the whole environment of the client."""
    kept = {name: value for name, value in environ.items() if name not in launch.removes}
    return [program, *launch.arguments(to), *arguments], {**kept, **launch.environment(to, key)}


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of a program that $PATH leads to."""
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(directory or ".") / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None
