"""An address and a model come in; what each client must be told goes out: lines to paste, and settings to write."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.admin.settings_text import Settings, merge_env, merge_json, merge_toml, merge_yaml

KEY_VARIABLE = "DRAGOMAN_API_KEY"
KEY = f"${KEY_VARIABLE}"
PRINT_KEY = f"printenv {KEY_VARIABLE}"

Where = Callable[[Mapping[str, str], Path], Path]  # environment, home -> the client's settings file


class Target(Struct, frozen=True):
    """`root` is the gateway's address without a path; `model` is None where the person must choose."""

    root: str
    model: str | None = None

    @property
    def api(self) -> str:
        """The address as OpenAI's clients want it, with the version."""
        return f"{self.root}/v1"

    @property
    def model_or_placeholder(self) -> str:
        return self.model or "MODEL"


class SettingsFile(Struct, frozen=True):
    """A client's own settings at user level. No key is ever written into one."""

    where: Where
    merge: Callable[[str, Settings], str]
    settings: Callable[[Target], Settings]
    needs_model: bool = False
    read_model: Callable[[str], object] = lambda text: None  # the model that the file's text names already


class Recipe(Struct, frozen=True):
    """One client. `lines` belong into a shell or onto a settings page, or are the text of the settings file."""

    title: str
    protocol: str
    lines: Callable[[Target], list[str]]
    file: SettingsFile | None = None
    lines_are_file: bool = False
    why_no_file: str = ""
    notes: tuple[str, ...] = ()
    notes_on_file: tuple[str, ...] = ()
    prefers: tuple[str, ...] = ()  # parts of model names; the client works best with the first that is there


def _folder(variable: str, default: str, name: str) -> Where:
    def where(environ: Mapping[str, str], home: Path) -> Path:
        return Path(environ.get(variable) or home / default).expanduser() / name

    return where


def _claude_lines(to: Target) -> list[str]:
    return [
        f"export ANTHROPIC_BASE_URL={to.root}",
        f"export ANTHROPIC_AUTH_TOKEN={KEY}",
        f"claude --model {to.model_or_placeholder}",
    ]


def _claude_settings(to: Target) -> Settings:
    env = {"ANTHROPIC_BASE_URL": to.root}
    if to.model is not None:
        # The second one is asked for titles and the like, in the background.
        env |= {"ANTHROPIC_MODEL": to.model, "ANTHROPIC_DEFAULT_HAIKU_MODEL": to.model}
    return {"apiKeyHelper": PRINT_KEY, "env": env}


def _claude_model(text: str) -> object:
    env = msgspec.json.decode(text).get("env") if text.strip() else None
    return env.get("ANTHROPIC_MODEL") if isinstance(env, dict) else None


def _codex_lines(to: Target) -> list[str]:
    top = [f'model = "{to.model}"'] if to.model else []
    return [
        *top,
        'model_provider = "dragoman"',
        "",
        "[model_providers.dragoman]",
        'name = "dragoman"',
        f'base_url = "{to.api}"',
        f'env_key = "{KEY_VARIABLE}"',
        'wire_api = "responses"',
    ]


def _codex_settings(to: Target) -> Settings:
    provider = {"name": "dragoman", "base_url": to.api, "env_key": KEY_VARIABLE, "wire_api": "responses"}
    top = {"model": to.model} if to.model else {}
    return {"model_provider": "dragoman", **top, "model_providers": {"dragoman": provider}}


def _codex_model(text: str) -> object:
    return tomllib.loads(text).get("model")


def _gemini_lines(to: Target) -> list[str]:
    return [
        f"export GOOGLE_GEMINI_BASE_URL={to.root}",
        f"export GEMINI_API_KEY={KEY}",
        f"gemini -m {to.model_or_placeholder}",
    ]


def _gemini_settings(to: Target) -> Settings:
    model = {"GEMINI_MODEL": to.model} if to.model else {}
    return {"GOOGLE_GEMINI_BASE_URL": to.root, **model}


def _opencode_settings(to: Target) -> Settings:
    model = to.model_or_placeholder
    return {
        "provider": {
            "dragoman": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "dragoman",
                "options": {"baseURL": to.api, "apiKey": f"{{env:{KEY_VARIABLE}}}"},
                "models": {model: {"name": model}},
            }
        },
        "model": f"dragoman/{model}",
    }


def _opencode_lines(to: Target) -> list[str]:
    return merge_json("", _opencode_settings(to)).splitlines()


def _aider_lines(to: Target) -> list[str]:
    return [
        f"export OPENAI_API_BASE={to.api}",
        f"export OPENAI_API_KEY={KEY}",
        f"aider --model openai/{to.model_or_placeholder}",
    ]


def _aider_settings(to: Target) -> Settings:
    return {"openai-api-base": to.api, "model": f"openai/{to.model_or_placeholder}"}


def _cline_lines(to: Target) -> list[str]:
    return [
        "API Provider  OpenAI Compatible",
        f"Base URL      {to.api}",
        f"API Key       the value of {KEY}",
        f"Model ID      {to.model_or_placeholder}",
    ]


def _cursor_lines(to: Target) -> list[str]:
    return [
        f"Override OpenAI Base URL  {to.api}",
        f"OpenAI API Key            the value of {KEY}",
        f"Add custom model          {to.model_or_placeholder}",
    ]


def _openai_lines(to: Target) -> list[str]:
    return [
        f"export OPENAI_BASE_URL={to.api}",
        f"export OPENAI_API_KEY={KEY}",
        "python - <<'END'",
        "from openai import OpenAI",
        f'reply = OpenAI().responses.create(model="{to.model_or_placeholder}", input="Hello")',
        "print(reply.output_text)",
        "END",
    ]


def _anthropic_lines(to: Target) -> list[str]:
    model = to.model_or_placeholder
    return [
        f"export ANTHROPIC_BASE_URL={to.root}",
        f"export ANTHROPIC_API_KEY={KEY}",
        "python - <<'END'",
        "from anthropic import Anthropic",
        'hello = [{"role": "user", "content": "Hello"}]',
        f'reply = Anthropic().messages.create(model="{model}", max_tokens=1024, messages=hello)',
        "print(reply.content[0].text)",
        "END",
    ]


RECIPES: dict[str, Recipe] = {
    "claude-code": Recipe(
        "Claude Code",
        "messages",
        _claude_lines,
        SettingsFile(
            _folder("CLAUDE_CONFIG_DIR", ".claude", "settings.json"),
            merge_json,
            _claude_settings,
            read_model=_claude_model,
        ),
        prefers=("claude-sonnet", "claude"),
        notes_on_file=(
            f"The key is asked for with `{PRINT_KEY}`: export {KEY_VARIABLE} where you start claude.",
            "An exported ANTHROPIC_AUTH_TOKEN or ANTHROPIC_API_KEY would win over it: unset them.",
        ),
    ),
    "codex": Recipe(
        "Codex",
        "responses",
        _codex_lines,
        SettingsFile(
            _folder("CODEX_HOME", ".codex", "config.toml"), merge_toml, _codex_settings, read_model=_codex_model
        ),
        prefers=("codex", "gpt-5", "gpt"),
        lines_are_file=True,
        notes_on_file=(f"Codex reads the key from ${KEY_VARIABLE}: export it where you start codex.",),
    ),
    "gemini": Recipe(
        "Gemini CLI",
        "gemini",
        _gemini_lines,
        SettingsFile(_folder("GEMINI_CLI_HOME", "", ".gemini/.env"), merge_env, _gemini_settings),
        prefers=("gemini",),
        notes_on_file=(f"The key is not written: export GEMINI_API_KEY={KEY} where you start gemini.",),
    ),
    "opencode": Recipe(
        "opencode",
        "chat",
        _opencode_lines,
        SettingsFile(
            _folder("XDG_CONFIG_HOME", ".config", "opencode/opencode.json"),
            merge_json,
            _opencode_settings,
            needs_model=True,
        ),
        lines_are_file=True,
        notes_on_file=(f"opencode reads the key from ${KEY_VARIABLE}: export it where you start opencode.",),
    ),
    "aider": Recipe(
        "aider",
        "chat",
        _aider_lines,
        SettingsFile(lambda environ, home: home / ".aider.conf.yml", merge_yaml, _aider_settings, needs_model=True),
        notes_on_file=(f"The key is not written: export OPENAI_API_KEY={KEY} where you start aider.",),
    ),
    "cline": Recipe(
        "Cline",
        "chat",
        _cline_lines,
        why_no_file="Cline keeps its settings in the editor's own storage; enter these on its settings page.",
    ),
    "cursor": Recipe(
        "Cursor",
        "chat",
        _cursor_lines,
        why_no_file="Cursor keeps its settings in its own database; enter these under Settings, Models.",
        notes=("Cursor calls from its own servers: the gateway's address must be one that they can reach.",),
    ),
    "openai": Recipe(
        "OpenAI SDK",
        "responses",
        _openai_lines,
        why_no_file="the SDK has no settings file; it reads these variables.",
    ),
    "anthropic": Recipe(
        "Anthropic SDK",
        "messages",
        _anthropic_lines,
        why_no_file="the SDK has no settings file; it reads these variables.",
    ),
}
