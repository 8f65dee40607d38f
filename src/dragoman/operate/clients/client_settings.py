"""The settings and variables that each client gets: address, models and context window, never the key."""

from dragoman.operate.clients.settings_format import Settings
from dragoman.operate.configuration.effective import KEY_VARIABLE, GatewayTarget

DEFAULT_WINDOW = 128_000  # tokens, for clients that require a window, if the model's is not known
OPENCODE_OUTPUT = 32_000  # tokens; opencode requires a limit of the reply beside that of the window
PRINT_KEY = f"printenv {KEY_VARIABLE}"
CLAUDE_WINDOWS = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW")
# What `opus`, `sonnet` and so on mean when a subagent or the user asks for them, and the model for titles and the like
# in older versions. CLAUDE_CODE_SUBAGENT_MODEL is left alone: it would override the models of the user's own subagents.
CLAUDE_OTHER_MODELS = (
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
)
# The names under which Gemini CLI keeps the models that it uses by itself: for web search, web fetch, summaries, loop
# detection, compression and so on. Those that are not here extend one of these.
GEMINI_HELPERS = (
    "gemini-2.5-flash-base",
    "gemini-3-flash-base",
    "gemini-3.5-flash-base",
    "agent-history-provider-summarizer",
    "chat-compression-default",
    "classifier",
    "edit-corrector",
    "fast-ack-helper",
    "loop-detection-double-check",
    "prompt-completion",
    "summarizer-default",
    "summarizer-shell",
)
GEMINI_AGENTS = ("browser_agent", "cli_help", "codebase_investigator")  # its own subagents that name a model
GEMINI_WINDOW = 1_048_576  # tokens; Gemini CLI assumes it of every model that it does not know
COMPRESS_AT = 0.5  # of the window: Gemini CLI's own default


def claude_environment(to: GatewayTarget) -> dict[str, str]:
    """Return the variables that point Claude Code at the gateway, without the key."""
    # With the second one, its picker asks the gateway for models.
    env = {"ANTHROPIC_BASE_URL": to.root, "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1"}
    if to.model is not None:
        # Claude Code uses the second one for titles and the like, in the background.
        env |= {"ANTHROPIC_MODEL": to.model, "ANTHROPIC_DEFAULT_HAIKU_MODEL": to.model}
        if "claude" not in to.model.rpartition("/")[2].lower():
            # Else its prompts begin with a line that differs from session to session, and no server can cache them.
            env["CLAUDE_CODE_ATTRIBUTION_HEADER"] = "0"
    if to.window is not None:
        # The first is for models that it does not know; the second limits the window of those that it does.
        env |= {name: str(to.window) for name in CLAUDE_WINDOWS}
    return env


def claude_other_models(to: GatewayTarget) -> dict[str, str]:
    return {} if to.model is None else dict.fromkeys(CLAUDE_OTHER_MODELS, to.model)


def claude_settings(to: GatewayTarget) -> Settings:
    return {"apiKeyHelper": PRINT_KEY, "env": claude_environment(to)}


def codex_provider(to: GatewayTarget) -> dict[str, str]:
    return {"name": "dragoman", "base_url": to.api, "env_key": KEY_VARIABLE, "wire_api": "responses"}


def codex_settings(to: GatewayTarget) -> Settings:
    top: dict[str, object] = {"model": to.model} if to.model else {}
    if to.window is not None:
        top["model_context_window"] = to.window
    return {"model_provider": "dragoman", **top, "model_providers": {"dragoman": codex_provider(to)}}


def gemini_settings(to: GatewayTarget) -> Settings:
    model = {"GEMINI_MODEL": to.model} if to.model else {}
    return {"GOOGLE_GEMINI_BASE_URL": to.root, **model}


def gemini_helper_settings(to: GatewayTarget) -> Settings:
    """Return settings that have all of Gemini CLI's own requests use the model, and compress in time."""
    settings: dict[str, object] = {}
    if to.model is not None:
        helper = {"extends": "base", "modelConfig": {"model": to.model}}
        settings["modelConfigs"] = {"customAliases": dict.fromkeys(GEMINI_HELPERS, helper)}
        agent = {"modelConfig": {"model": to.model}}
        settings["agents"] = {"overrides": dict.fromkeys(GEMINI_AGENTS, agent)}
    if to.window is not None and to.window < GEMINI_WINDOW:
        settings["model"] = {"compressionThreshold": round(COMPRESS_AT * to.window / GEMINI_WINDOW, 6)}
    return settings


def opencode_settings(to: GatewayTarget) -> Settings:
    model = to.model_or_placeholder
    described: dict[str, object] = {"name": model}
    if to.window is not None:
        described["limit"] = {"context": to.window, "output": min(to.window, OPENCODE_OUTPUT)}
    return {
        "provider": {
            "dragoman": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "dragoman",
                "options": {"baseURL": to.api, "apiKey": f"{{env:{KEY_VARIABLE}}}"},
                "models": {model: described},
            }
        },
        "model": f"dragoman/{model}",
    }


def aider_settings(to: GatewayTarget) -> Settings:
    return {"openai-api-base": to.api, "model": f"openai/{to.model_or_placeholder}"}


def aider_other_models(to: GatewayTarget) -> Settings:
    """Return the models for commit messages and for edits: without them, aider asks OpenAI's own for those it knows."""
    return dict.fromkeys(("weak-model", "editor-model"), f"openai/{to.model_or_placeholder}")


def aider_metadata(to: GatewayTarget) -> Settings:
    """Return a description of the model for aider, in the shape of litellm; nothing if its window is not known."""
    if to.model is None or to.window is None:
        return {}
    return {f"openai/{to.model}": {"max_input_tokens": to.window, "litellm_provider": "openai", "mode": "chat"}}


def zed_settings(to: GatewayTarget) -> Settings:
    model = to.model_or_placeholder
    listed = {"name": model, "display_name": model, "max_tokens": to.window or DEFAULT_WINDOW}
    provider = {"api_url": to.api, "available_models": [listed]}
    return {"language_models": {"openai_compatible": {"dragoman": provider}}}
