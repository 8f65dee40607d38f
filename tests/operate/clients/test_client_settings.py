"""The settings of clients name every model that a client asks for by itself, and the window if it is known."""

from dragoman.operate.clients.client_settings import (
    aider_metadata,
    claude_other_models,
    codex_settings,
    gemini_helper_settings,
    opencode_settings,
)
from dragoman.operate.configuration.effective import GatewayTarget

ROOT = "http://127.0.0.1:8484"
LOCAL = GatewayTarget(ROOT, "ollama/qwen3:8b", 32_768)
UNKNOWN = GatewayTarget(ROOT, "ollama/qwen3:8b")


def test_a_window_that_is_not_known_is_not_invented() -> None:
    assert aider_metadata(UNKNOWN) == {}
    assert "model" not in gemini_helper_settings(UNKNOWN)
    assert "model_context_window" not in codex_settings(UNKNOWN)
    assert "limit" not in str(opencode_settings(UNKNOWN))


def test_a_known_window_reaches_every_client_that_can_take_it() -> None:
    assert codex_settings(LOCAL)["model_context_window"] == 32_768
    assert "{'context': 32768, 'output': 32000}" in str(opencode_settings(LOCAL))
    assert aider_metadata(LOCAL) == {
        "openai/ollama/qwen3:8b": {"max_input_tokens": 32_768, "litellm_provider": "openai", "mode": "chat"}
    }
    assert gemini_helper_settings(LOCAL)["model"] == {"compressionThreshold": 0.015625}


def test_gemini_clis_own_window_needs_no_setting() -> None:
    assert "model" not in gemini_helper_settings(GatewayTarget(ROOT, "m", 1_048_576))


def test_without_a_model_no_model_is_named() -> None:
    assert claude_other_models(GatewayTarget(ROOT)) == {}
    assert gemini_helper_settings(GatewayTarget(ROOT)) == {}
