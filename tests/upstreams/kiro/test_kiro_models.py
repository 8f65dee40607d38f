"""Model names as clients write them, and Kiro's own ids."""

import asyncio

import msgspec
import pytest

from dragoman.upstreams.kiro.model_cache import ModelCache, fallback_models, normalise_name, resolve_name
from dragoman.upstreams.kiro.services import ListedModel, TokenLimits
from tables import each_row

WINDOW = 123_456
IDS = [model.id for model in fallback_models(WINDOW)]


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("claude-opus-4-5", "claude-opus-4.5"),
        ("claude-opus-4-5-20251101", "claude-opus-4.5"),
        ("claude-haiku-4-5", "claude-haiku-4.5"),
        ("claude-haiku-4.5", "claude-haiku-4.5"),
        ("claude-sonnet-4-5", "claude-sonnet-4.5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4.5"),
        ("claude-sonnet-4-5-latest", "claude-sonnet-4.5"),
        ("claude-sonnet-4", "claude-sonnet-4"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-sonnet-5", "claude-sonnet-5"),
        ("claude-3-7-sonnet-20250219", "CLAUDE_3_7_SONNET_20250219_V1_0"),
        ("claude-4.5-opus-high", "claude-opus-4.5"),
        ("claude-4-sonnet", "claude-sonnet-4"),
        ("claude-4-5-sonnet-thinking", "claude-sonnet-4.5"),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4.5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4.5"),
        ("anthropic/claude-opus-4-8", "claude-opus-4.8"),
        ("claude-opus-4-6[1m]", "claude-opus-4.6"),
        ("CLAUDE_SONNET_4_5_20250929_V1_0", "claude-sonnet-4.5"),
        ("CLAUDE_3_7_SONNET_20250219_V1_0", "CLAUDE_3_7_SONNET_20250219_V1_0"),
        ("auto", "auto"),
        ("minimax-m2-1", "minimax-m2.1"),
        ("deepseek-3-2", "deepseek-3.2"),
        ("gpt-5-6-sol", "gpt-5.6-sol"),
        ("qwen3-coder-next", "qwen3-coder-next"),
    ],
)
def test_a_name_in_any_spelling_becomes_kiros_id(name: str, id: str) -> None:
    assert normalise_name(name) == id
    assert normalise_name(id) == id


@pytest.mark.parametrize(
    "name", ["My-Model-1-2", "claude-3-5-sonnet-latest", "claude-2", "llama-3-1-70b", "x-20250101"]
)
def test_an_unknown_name_is_unchanged(name: str) -> None:
    assert normalise_name(name) == name


def test_a_listed_id_wins_over_its_normal_spelling() -> None:
    assert resolve_name("claude-sonnet-4-5", ["claude-sonnet-4-5"]) == "claude-sonnet-4-5"
    assert resolve_name("claude-sonnet-4-5", IDS) == "claude-sonnet-4.5"


def test_the_older_id_is_used_if_only_that_is_listed() -> None:
    assert resolve_name("claude-sonnet-4-5", ["CLAUDE_SONNET_4_5_20250929_V1_0"]) == "CLAUDE_SONNET_4_5_20250929_V1_0"
    assert resolve_name("CLAUDE_SONNET_4_20250514_V1_0", IDS) == "claude-sonnet-4"
    assert resolve_name("claude-3-7-sonnet", ["claude-3.7-sonnet"]) == "claude-3.7-sonnet"


def test_a_wide_window_is_used_if_it_is_listed() -> None:
    assert resolve_name("claude-opus-4-6[1m]", ["claude-opus-4.6", "claude-opus-4.6-1m"]) == "claude-opus-4.6-1m"
    assert resolve_name("claude-opus-4-6[1m]", ["claude-opus-4.6"]) == "claude-opus-4.6"


def test_an_unlisted_id_is_used_anyway() -> None:
    assert resolve_name("claude-opus-9-1", IDS) == "claude-opus-9.1"
    assert resolve_name("something", IDS) == "something"


def test_the_fallback_lists_each_model_once_with_a_window() -> None:
    assert len(set(IDS)) == len(IDS)
    assert "auto" in IDS
    assert {model.max_input for model in fallback_models(WINDOW)} == {WINDOW}
    assert all(normalise_name(id) == id for id in IDS)


def test_a_model_without_a_window_has_the_default_one_everywhere() -> None:
    async def list_models() -> list[ListedModel]:
        return [ListedModel("wide", token_limits=TokenLimits(max_input_tokens=1_000_000)), ListedModel("silent")]

    cache = ModelCache(list_models, WINDOW)
    windows = {model.id: model.max_input for model in asyncio.run(cache.fetch())}
    assert windows == {"wide": 1_000_000, "silent": WINDOW}
    assert [cache.context_window(id) for id in ("wide", "silent", "unheard-of")] == [1_000_000, WINDOW, WINDOW]


@each_row(
    ("fields", "rate"),
    [
        ({"rateMultiplier": 1.3, "rateUnit": "Credit"}, 1.3),
        ({"rateMultiplier": 0.4}, 0.4),
        ({"rateMultiplier": 2, "rateUnit": "request"}, None),
        ({"rateMultiplier": "1.3"}, None),
        ({"rateMultiplier": -1}, None),
        ({"rateMultiplier": True}, None),
        ({"rateMultiplier": None, "rateUnit": 7}, None),
        ({}, None),
    ],
)
def test_a_model_has_the_credit_rate_that_kiro_lists(fields: dict[str, object], rate: float | None) -> None:
    listed = msgspec.convert({"modelId": "m", **fields}, ListedModel)

    async def list_models() -> list[ListedModel]:
        return [listed]

    [model] = asyncio.run(ModelCache(list_models, WINDOW).fetch())
    assert model.credit_rate == rate
