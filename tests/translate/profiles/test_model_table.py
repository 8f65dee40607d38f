"""The table of models: one name for all spellings, and what each model accepts."""

import pytest

from dragoman.translate.hub.profile import EFFORTS, Profile
from dragoman.translate.profiles.model_table import find_profile, normalise_name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("us.anthropic.claude-opus-4-6-v1:0", "claude-opus-4-6"),
        ("claude-opus-4-1@20250805", "claude-opus-4-1"),
        ("claude-opus-4-6[1m]", "claude-opus-4-6"),
        ("Claude-3-5-Sonnet-latest", "claude-3-5-sonnet"),
        ("claude-opus-4-20250514", "claude-opus-4"),
        ("openai/gpt-5.4-mini", "gpt-5-4-mini"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
    ],
)
def test_one_model_has_one_name(model: str, name: str) -> None:
    assert normalise_name(model) == name


@pytest.mark.parametrize(
    ("model", "thinking", "off", "default"),
    [
        ("claude-sonnet-4-5", ("enabled", "disabled"), "disabled", False),
        ("claude-opus-4-6", ("adaptive", "enabled", "disabled"), "disabled", False),
        ("claude-opus-4-8", ("adaptive", "disabled"), "disabled", False),
        ("claude-sonnet-5", ("adaptive", "disabled"), "disabled", True),
        ("claude-haiku-5-5", ("adaptive", "disabled"), "disabled", True),
        ("claude-sonnet-5-5", ("adaptive", "between_tools"), "between_tools", True),
        ("claude-opus-5-5", ("adaptive",), None, True),
        ("claude-fable-5", ("adaptive",), None, True),
        ("claude-mythos-5-1", ("adaptive",), None, True),
    ],
)
def test_claude_models_think_as_in_the_table(
    model: str, thinking: tuple[str, ...], off: str | None, default: bool
) -> None:
    profile = find_profile(model)
    assert (profile.thinking, profile.thinking_off, profile.thinking_default) == (thinking, off, default)


@pytest.mark.parametrize(
    ("model", "efforts"),
    [
        ("claude-sonnet-4-5", ()),
        ("claude-opus-4-5", ("low", "medium", "high")),
        ("claude-sonnet-4-6", ("low", "medium", "high", "max")),
        ("claude-opus-4-7", ("low", "medium", "high", "xhigh", "max")),
        ("gpt-6-astra", ("low", "medium", "high", "xhigh", "max")),
        ("gpt-6.1-sol", ("low", "medium", "high", "xhigh", "max")),
        ("gpt-5.6-luna", ("none", "low", "medium", "high", "xhigh", "max")),
        ("gpt-5.5", ("none", "low", "medium", "high", "xhigh")),
        ("gpt-5.1", ("none", "low", "medium", "high")),
        ("gpt-5-mini", ("minimal", "low", "medium", "high")),
        ("o4-mini", ("low", "medium", "high")),
        ("gpt-4o", ()),
    ],
)
def test_efforts_are_those_of_the_table(model: str, efforts: tuple[str, ...]) -> None:
    assert find_profile(model).efforts == efforts


@pytest.mark.parametrize(
    ("model", "prefill", "later_system", "forced", "forced_while_thinking", "sampling"),
    [
        ("claude-opus-4-5", True, False, True, False, True),
        ("claude-opus-4-6", False, False, True, True, True),
        ("claude-opus-4-7", False, False, True, True, False),
        ("claude-opus-4-8", False, True, True, True, False),
        ("claude-sonnet-5", False, False, True, True, False),
        ("claude-opus-5", False, True, True, True, False),
        ("claude-haiku-5-5", False, True, True, True, False),
        ("claude-opus-5-5", False, True, False, False, False),
        ("claude-fable-5-1", False, True, False, False, False),
    ],
)
def test_newer_models_reject_more_fields(
    model: str, prefill: bool, later_system: bool, forced: bool, forced_while_thinking: bool, sampling: bool
) -> None:
    profile = find_profile(model)
    assert (profile.prefill, profile.later_system) == (prefill, later_system)
    assert (profile.forced_choice, profile.forced_choice_while_thinking) == (forced, forced_while_thinking)
    assert profile.sampling == sampling


@pytest.mark.parametrize(
    ("model", "works"),
    [
        ("gpt-5.4", False),
        ("gpt-5.5", False),
        ("gpt-5.6-sol", False),
        ("gpt-6-sol", False),
        ("gpt-5.2", True),
        ("gpt-4o", True),
    ],
)
def test_tools_on_the_chat_endpoint_ended_with_gpt_5_4(model: str, works: bool) -> None:
    assert ("chat" not in find_profile(model).no_tools_in) == works


def test_an_unknown_claude_gets_the_profile_of_the_newest() -> None:
    profile = find_profile("claude-opus-6-1")
    assert (profile.sampling, profile.prefill, profile.thinking) == (False, False, ("adaptive",))


@pytest.mark.parametrize("model", ["kimi-k2", "llama3.1:8b", "", "échø"])
def test_an_unknown_model_accepts_everything(model: str) -> None:
    assert find_profile(model) == Profile()
    assert find_profile(model).efforts == EFFORTS


@pytest.mark.parametrize(
    ("model", "thinking", "efforts", "budget", "mixes"),
    [
        ("gemini-3-pro-preview", ("adaptive",), ("low", "high"), None, True),
        ("gemini-3.1-pro-preview", ("adaptive",), ("low", "medium", "high"), None, True),
        ("gemini-3-flash-preview", ("adaptive",), ("minimal", "low", "medium", "high"), None, True),
        ("gemini-3.5-flash-lite", ("adaptive",), ("minimal", "low", "medium", "high"), None, True),
        ("gemini-3.7-flash", ("adaptive",), ("low", "medium", "high"), None, True),
        ("models/gemini-3.8-flash", ("adaptive",), ("low", "medium", "high"), None, True),
        ("gemini-4-argon", ("adaptive",), ("low", "medium", "high"), None, True),
        ("gemini-flash-latest", ("adaptive",), ("low", "medium", "high"), None, True),
        ("gemini-2.5-pro", ("enabled",), ("low", "medium", "high"), (128, 32_768), False),
        ("gemini-2.5-flash", ("enabled", "disabled"), ("none", "low", "medium", "high"), (1, 24_576), False),
        ("gemini-2.5-flash-lite", ("enabled", "disabled"), ("none", "low", "medium", "high"), (512, 24_576), False),
        ("gemini-2.5-flash-image", (), (), None, False),
        ("gemini-2.0-flash-001", (), (), None, False),
        ("gemma-3-27b-it", (), (), None, False),
    ],
)
def test_gemini_models_are_as_in_the_table(
    model: str, thinking: tuple[str, ...], efforts: tuple[str, ...], budget: tuple[int, int] | None, mixes: bool
) -> None:
    profile = find_profile(model)
    assert (profile.thinking, profile.efforts, profile.hosted_beside_functions) == (thinking, efforts, mixes)
    assert (None if profile.budget is None else (profile.budget.least, profile.budget.most)) == budget
    assert profile.schema_beside_functions is profile.media_in_results is mixes
    assert profile.instructions is (not model.startswith("gemma"))
