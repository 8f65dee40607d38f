"""What is suggested for a word that is no choice: only what the word may stand for."""

import pytest

from dragoman.config.presets import OTHER_NAMES, load_presets, suggest_vendor
from dragoman.config.problems import find_similar, suggest
from dragoman.config.providers import KINDS

VENDORS = {
    "vertex": ["gemini"],
    "google": ["gemini"],
    "nope": [],
    "foo": [],
    "local": [],
    "x": [],
    "azure": ["azure-openai", "azure-claude"],
    "open": ["openai", "openai-compatible", "openrouter"],
    "openai-compat": ["openai-compatible"],
    "opnai": ["openai"],
    "open-router": ["openrouter"],
    "anthorpic": ["anthropic"],
    "Anthropic": ["anthropic"],
    "claude": ["anthropic"],
    "grog": ["groq"],
    "grok": ["xai"],
    "olama": ["ollama"],
    "lm-studio": ["lmstudio"],
    "llama.cpp": ["llamacpp"],
    "github": ["github-models"],
    "together-ai": ["together"],
    "vllm-local": ["vllm"],
    "bedrok": ["bedrock"],
    "aws": ["bedrock"],
}
SETTINGS = ("host", "port", "first_token_timeout_s", "token_timeout_s", "idle_timeout_s", "api_key", "to")
NAMES = {
    "prot": ("port",),
    "hsot": ("host",),
    "hostname": ("host",),
    "idle-timeout": ("idle_timeout_s",),
    "timeout": ("first_token_timeout_s", "token_timeout_s", "idle_timeout_s"),
    "key": ("api_key",),
    "apikey": ("api_key",),
    "too": ("to",),
    "it": (),
    "": (),
    "flavour": (),
    "post": ("host", "port"),
}


@pytest.mark.rest
def test_a_vendor_is_suggested_only_if_the_word_may_stand_for_it() -> None:
    def list_suggested(word: str) -> list[str]:
        return [name for name in (*KINDS, *load_presets()) if f'"{name}"' in suggest_vendor(word, KINDS)]

    assert {word: list_suggested(word) for word in VENDORS} == VENDORS


def test_what_people_call_a_vendor_by_leads_to_a_vendor_and_hides_none() -> None:
    known = {*KINDS, *load_presets()}
    assert set(OTHER_NAMES.values()) <= known
    assert not set(OTHER_NAMES) & known


def test_a_name_is_suggested_if_it_is_misspelt_cut_short_or_extended() -> None:
    assert {word: find_similar(word, SETTINGS) for word in NAMES} == NAMES


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("prot", '; did you mean "port"?'),
        ("post", '; did you mean "host" or "port"?'),
        ("timeout", '; did you mean "first_token_timeout_s", "token_timeout_s" or "idle_timeout_s"?'),
        ("flavour", ""),
    ],
)
def test_several_suggestions_are_one_sentence(word: str, sentence: str) -> None:
    assert suggest(word, SETTINGS) == sentence


def test_nothing_is_suggested_where_there_is_no_choice() -> None:
    assert find_similar("port", ()) == ()
    assert find_similar("port" * 1_000_000, ("port",)) == ()
