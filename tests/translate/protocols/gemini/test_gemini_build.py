"""Settings of other protocols' clients, written for one Gemini model."""

import msgspec
import pytest

from tables import each_row
from translate.protocols.gemini.gemini_requests import (
    GEMMA,
    HELLO,
    NEW,
    OLD,
    WEATHER,
    build_from,
    from_chat,
    losses_from_chat,
    refusal_from_chat,
    settings,
)
from wire_json import JsonObject

SCHEMA: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT: JsonObject = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


def test_a_plain_request_is_plain() -> None:
    body, lost = build_from("chat", {"model": "m", "messages": HELLO, "stream": True})
    assert body == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    assert lost == {}


@pytest.mark.parametrize(
    ("fields", "sent", "lost"),
    [
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "topP": 0.9}, {}),
        ({"max_completion_tokens": 9, "stop": ["a", "b"]}, {"maxOutputTokens": 9, "stopSequences": ["a", "b"]}, {}),
        ({"max_tokens": 900_000}, {"maxOutputTokens": 65_536}, {"/max_tokens": "approximated"}),
        ({"seed": 7, "frequency_penalty": 0.5}, {"seed": 7, "frequencyPenalty": 0.5}, {}),
        ({"seed": 2**40}, {"seed": 2**40 % (2**31 - 1)}, {"/seed": "approximated"}),
        ({"logprobs": True, "top_logprobs": 3}, {"responseLogprobs": True, "logprobs": 3}, {}),
        ({"logprobs": True}, {"responseLogprobs": True}, {}),
        ({"verbosity": "low"}, {}, {"/verbosity": "dropped"}),
    ],
)
def test_sampling_is_carried(fields: JsonObject, sent: JsonObject, lost: JsonObject) -> None:
    assert settings(from_chat(**fields)) == sent
    assert losses_from_chat(**fields) == lost


def test_several_answers_are_requested_as_far_as_google_gives_them() -> None:
    assert settings(from_chat(n=8)) == {"candidateCount": 8}
    assert refusal_from_chat(n=9)[0] == "/n"


@pytest.mark.parametrize(("tier", "sent"), [("flex", "flex"), ("priority", "priority"), ("default", "standard")])
def test_tiers_have_googles_names(tier: str, sent: str) -> None:
    assert from_chat(service_tier=tier)["serviceTier"] == sent
    assert losses_from_chat(service_tier=tier) == {"/service_tier": "approximated"}
    assert losses_from_chat(service_tier="scale") == {"/service_tier": "dropped"}


def test_metadata_is_labels_on_vertex_alone() -> None:
    vertex = from_chat(quirks=frozenset({"vertex"}), metadata={"Team": "Blue Sky"})
    assert vertex["labels"] == {"team": "blue_sky"}
    assert losses_from_chat(metadata={"Team": "x"}) == {"/metadata": "dropped"}


# Thinking


@each_row(
    ("model", "effort", "sent"),
    [
        ("gemini-3.5-flash", "minimal", {"thinkingLevel": "MINIMAL", "includeThoughts": True}),
        ("gemini-3.5-flash", "xhigh", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3.5-flash", "none", {"thinkingLevel": "MINIMAL"}),
        ("gemini-3-pro-preview", "medium", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3.1-pro-preview", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-3.8-flash", "none", {"thinkingLevel": "LOW"}),
        ("gemini-4-argon", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        ("gemini-2.5-flash", "minimal", {"thinkingBudget": 512, "includeThoughts": True}),
        ("gemini-2.5-flash", "low", {"thinkingBudget": 1024, "includeThoughts": True}),
        ("gemini-2.5-flash", "high", {"thinkingBudget": 24_576, "includeThoughts": True}),
        ("gemini-2.5-flash", "max", {"thinkingBudget": 24_576, "includeThoughts": True}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "xhigh", {"thinkingBudget": 32_768, "includeThoughts": True}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128}),
        ("gemini-2.5-flash-image", "high", None),
        ("gemini-2.0-flash", "high", None),
        (GEMMA, "high", None),
    ],
)
def test_an_effort_becomes_the_models_level_or_budget(model: str, effort: str, sent: JsonObject | None) -> None:
    assert settings(from_chat(model, reasoning_effort=effort)).get("thinkingConfig") == sent


@pytest.mark.parametrize(
    ("model", "budget", "sent"),
    [
        ("gemini-2.5-pro", 40_000, {"thinkingBudget": 32_768, "includeThoughts": True}),
        ("gemini-2.5-flash", 2048, {"thinkingBudget": 2048, "includeThoughts": True}),
        ("gemini-3.5-flash", 2048, {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
    ],
)
def test_a_budget_is_clamped_or_becomes_a_level(model: str, budget: int, sent: JsonObject) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    body, lost = build_from(
        "messages", {"model": "m", "max_tokens": 50_000, "messages": HELLO, "thinking": thinking}, model
    )
    assert settings(body)["thinkingConfig"] == sent
    assert ("/thinking/budget_tokens" in lost) == (budget == 40_000 or model == NEW)


@pytest.mark.parametrize(("summary", "shown"), [(None, None), ("auto", True), ("detailed", True)])
def test_a_responses_client_gets_thoughts_only_if_it_asks_for_them(summary: str | None, shown: bool | None) -> None:
    reasoning = {"effort": "low"} | ({"summary": summary} if summary else {})
    body, _ = build_from("responses", {"model": "m", "input": "hi", "reasoning": reasoning})
    assert settings(body)["thinkingConfig"].get("includeThoughts") == shown


def test_omitted_thoughts_are_not_requested() -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    body, _ = build_from("messages", {"model": "m", "max_tokens": 9, "messages": HELLO, "thinking": thinking})
    assert "generationConfig" in body
    assert "thinkingConfig" not in settings(body)


# The format of the reply


def test_a_schema_binds_the_reply() -> None:
    body = from_chat(response_format=FORMAT)
    assert settings(body) == {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    assert losses_from_chat(response_format=FORMAT) == {"/response_format": "approximated"}


def test_json_mode_has_no_schema() -> None:
    body = from_chat(response_format={"type": "json_object"})
    assert settings(body) == {"responseMimeType": "application/json"}
    assert losses_from_chat(response_format={"type": "json_object"}) == {}


def test_beside_functions_the_instructions_of_an_old_model_request_json() -> None:
    body = from_chat(OLD, response_format=FORMAT, tools=[WEATHER])
    [part] = body["systemInstruction"]["parts"]
    assert msgspec.json.encode(SCHEMA).decode() in part["text"]
    assert "generationConfig" not in body
    assert "responseJsonSchema" in settings(from_chat(NEW, response_format=FORMAT, tools=[WEATHER]))
