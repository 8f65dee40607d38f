"""How to point each client at the gateway: lines to paste, and the settings to write into its own file."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from dragoman.operate.clients.client_settings import (
    PRINT_KEY,
    aider_metadata,
    aider_other_models,
    aider_settings,
    claude_environment,
    claude_other_models,
    claude_settings,
    codex_settings,
    gemini_helper_settings,
    gemini_settings,
    opencode_settings,
    zed_settings,
)
from dragoman.operate.clients.settings_format import (
    ENV,
    JSON,
    TOML,
    YAML,
    Settings,
    SettingsFormat,
    merge_json,
    read_json_object,
)
from dragoman.operate.configuration.effective import KEY_VARIABLE, GatewayTarget

KEY = f"${KEY_VARIABLE}"

FindFile = Callable[[Mapping[str, str], Path], Path]  # environment, home directory -> the client's settings file


class SettingsFile(Struct, frozen=True):
    """A client's own settings file at user level. No key is ever written into one."""

    find: FindFile
    format: SettingsFormat
    settings: Callable[[GatewayTarget], Settings]
    needs_model: bool = False
    read_model: Callable[[str], object] = lambda text: None  # the model that the text of the file names already
    defaults: Callable[[GatewayTarget], Settings] = lambda to: {}  # only where the user has set nothing


class Recipe(Struct, frozen=True):
    """One client. `lines` are for a shell or a settings page, or are the text of the settings file."""

    title: str
    protocol: str
    lines: Callable[[GatewayTarget], list[str]]
    file: SettingsFile | None = None
    lines_are_file: bool = False
    why_no_file: str = ""
    notes: tuple[str, ...] = ()
    notes_on_file: tuple[str, ...] = ()
    second_file: SettingsFile | None = None  # for what has no place in the first
    preferred_models: tuple[str, ...] = ()  # parts of model names, the best first

    def base_url(self, to: GatewayTarget) -> str:
        """Return the address that the client is given: some SDKs add the version themselves."""
        return to.root if self.protocol in ("messages", "gemini") else to.api


def _in_directory(variable: str, default: str, name: str) -> FindFile:
    def find(environ: Mapping[str, str], home: Path) -> Path:
        return Path(environ.get(variable) or home / default).expanduser() / name

    return find


def _find_opencode_file(environ: Mapping[str, str], home: Path) -> Path:
    """Return the file with comments if there is one: opencode reads either."""
    plain = _in_directory("XDG_CONFIG_HOME", ".config", "opencode/opencode.json")(environ, home)
    commented = plain.with_suffix(".jsonc")
    return commented if commented.is_file() and not plain.is_file() else plain


def _claude_lines(to: GatewayTarget) -> list[str]:
    variables = {**claude_environment(to), **claude_other_models(to)}
    lines = [f"export {name}={value}" for name, value in variables.items()]
    start = "claude" if to.model is not None else "claude --model MODEL"
    return [lines[0], f"export ANTHROPIC_AUTH_TOKEN={KEY}", *lines[1:], start]


def _claude_model(text: str) -> object:
    env = read_json_object(text).get("env")
    return env.get("ANTHROPIC_MODEL") if isinstance(env, dict) else None


def _codex_lines(to: GatewayTarget) -> list[str]:
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


def _codex_model(text: str) -> object:
    return tomllib.loads(text).get("model")


def _gemini_lines(to: GatewayTarget) -> list[str]:
    return [
        f"export GOOGLE_GEMINI_BASE_URL={to.root}",
        f"export GEMINI_API_KEY={KEY}",
        f"gemini -m {to.model_or_placeholder}",
    ]


def _opencode_lines(to: GatewayTarget) -> list[str]:
    small = {"small_model": f"dragoman/{to.model_or_placeholder}"}
    return merge_json("", {**opencode_settings(to), **small}).splitlines()


def _aider_lines(to: GatewayTarget) -> list[str]:
    model = to.model_or_placeholder
    return [
        f"export OPENAI_API_BASE={to.api}",
        f"export OPENAI_API_KEY={KEY}",
        f"aider --model openai/{model} --weak-model openai/{model} --editor-model openai/{model}",
    ]


def _cline_lines(to: GatewayTarget) -> list[str]:
    lines = [
        "API Provider         OpenAI Compatible",
        f"Base URL             {to.api}",
        f"API Key              the value of {KEY}",
        f"Model ID             {to.model_or_placeholder}",
    ]
    return lines if to.window is None else [*lines, f"Context Window Size  {to.window}"]


def _continue_lines(to: GatewayTarget) -> list[str]:
    """Return a whole file: Continue refuses one without a name, a version and a schema."""
    lines = [
        "name: dragoman",
        "version: 1.0.0",
        "schema: v1",
        "models:",
        "  - name: dragoman",
        "    provider: openai",
        f"    model: {to.model_or_placeholder}",
        f"    apiBase: {to.api}",
        f"    apiKey: ${{{{ secrets.{KEY_VARIABLE} }}}}",
    ]
    if to.window is not None:
        lines += ["    defaultCompletionOptions:", f"      contextLength: {to.window}"]
    return lines


def _llm_lines(to: GatewayTarget) -> list[str]:
    return [
        "- model_id: dragoman",
        f"  model_name: {to.model_or_placeholder}",
        f"  api_base: {to.api}",
        "  api_key_name: dragoman",
        "  supports_tools: true",
    ]


def _cursor_lines(to: GatewayTarget) -> list[str]:
    return [
        f"Override OpenAI Base URL  {to.api}",
        f"OpenAI API Key            the value of {KEY}",
        f"Add custom model          {to.model_or_placeholder}",
    ]


def _openai_lines(to: GatewayTarget) -> list[str]:
    return [
        f"export OPENAI_BASE_URL={to.api}",
        f"export OPENAI_API_KEY={KEY}",
        "python - <<'END'",
        "from openai import OpenAI",
        f'reply = OpenAI().responses.create(model="{to.model_or_placeholder}", input="Hello")',
        "print(reply.output_text)",
        "END",
    ]


def _anthropic_lines(to: GatewayTarget) -> list[str]:
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
            _in_directory("CLAUDE_CONFIG_DIR", ".claude", "settings.json"),
            JSON,
            claude_settings,
            read_model=_claude_model,
            defaults=lambda to: {"env": claude_other_models(to)},
        ),
        preferred_models=("claude-sonnet", "claude"),
        notes_on_file=(
            f"Claude Code runs `{PRINT_KEY}` to get the key: export {KEY_VARIABLE} where you start claude.",
            "Unset ANTHROPIC_AUTH_TOKEN and ANTHROPIC_API_KEY: they take precedence.",
        ),
    ),
    "codex": Recipe(
        "Codex",
        "responses",
        _codex_lines,
        SettingsFile(
            _in_directory("CODEX_HOME", ".codex", "config.toml"), TOML, codex_settings, read_model=_codex_model
        ),
        preferred_models=("codex", "gpt-5", "gpt"),
        lines_are_file=True,
        notes_on_file=(f"Codex reads the key from ${KEY_VARIABLE}: export it where you start codex.",),
    ),
    "gemini": Recipe(
        "Gemini CLI",
        "gemini",
        _gemini_lines,
        SettingsFile(_in_directory("GEMINI_CLI_HOME", "", ".gemini/.env"), ENV, gemini_settings),
        second_file=SettingsFile(
            _in_directory("GEMINI_CLI_HOME", "", ".gemini/settings.json"),
            JSON,
            lambda to: {"security": {"auth": {"selectedType": "gemini-api-key"}}},
            defaults=gemini_helper_settings,
        ),
        preferred_models=("gemini",),
        notes=(
            "Its web search and other helpers name models of their own (gemini-3-flash-preview and the like), which "
            "these lines do not change: use --write or `dragoman launch gemini`.",
        ),
        notes_on_file=(f"The key is not written: export GEMINI_API_KEY={KEY} where you start gemini.",),
    ),
    "opencode": Recipe(
        "opencode",
        "chat",
        _opencode_lines,
        SettingsFile(
            _find_opencode_file,
            JSON,
            opencode_settings,
            needs_model=True,
            defaults=lambda to: {"small_model": f"dragoman/{to.model_or_placeholder}"},
        ),
        lines_are_file=True,
        notes_on_file=(f"opencode reads the key from ${KEY_VARIABLE}: export it where you start opencode.",),
    ),
    "aider": Recipe(
        "aider",
        "chat",
        _aider_lines,
        SettingsFile(
            lambda environ, home: home / ".aider.conf.yml",
            YAML,
            aider_settings,
            needs_model=True,
            defaults=aider_other_models,
        ),
        second_file=SettingsFile(
            lambda environ, home: home / ".aider.model.metadata.json", JSON, lambda to: {}, defaults=aider_metadata
        ),
        notes_on_file=(f"The key is not written: export OPENAI_API_KEY={KEY} where you start aider.",),
    ),
    "cline": Recipe(
        "Cline",
        "chat",
        _cline_lines,
        why_no_file="Cline keeps its settings in the editor's storage. Enter these on its settings page.",
    ),
    "zed": Recipe(
        "Zed",
        "chat",
        lambda to: merge_json("", zed_settings(to)).splitlines(),
        SettingsFile(_in_directory("XDG_CONFIG_HOME", ".config", "zed/settings.json"), JSON, zed_settings, True),
        lines_are_file=True,
        notes_on_file=(f"Zed reads the key from ${KEY_VARIABLE}: export it where you start zed.",),
    ),
    "continue": Recipe(
        "Continue, in ~/.continue/config.yaml",
        "chat",
        _continue_lines,
        why_no_file="Continue keeps all its settings in one file, ~/.continue/config.yaml. Add these lines to it.",
        notes=(
            "This is a whole file. If you already have one, add only the entry of `models`.",
            f"Continue reads the key from the line {KEY_VARIABLE}=... of ~/.continue/.env.",
        ),
    ),
    "llm": Recipe(
        'llm, in extra-openai-models.yaml of the directory that `dirname "$(llm logs path)"` prints',
        "chat",
        _llm_lines,
        why_no_file="llm lists its extra models in one file. Add these lines to it.",
        notes=("`llm keys set dragoman` stores the client key; then: llm -m dragoman Hello",),
    ),
    "cursor": Recipe(
        "Cursor",
        "chat",
        _cursor_lines,
        why_no_file="Cursor keeps its settings in its own database. Enter these under Settings, Models.",
        notes=("Cursor calls from its own servers: they must be able to reach the gateway's address.",),
    ),
    "openai": Recipe(
        "OpenAI SDK",
        "responses",
        _openai_lines,
        why_no_file="The SDK has no settings file: it reads these variables.",
    ),
    "anthropic": Recipe(
        "Anthropic SDK",
        "messages",
        _anthropic_lines,
        why_no_file="The SDK has no settings file: it reads these variables.",
    ),
}
