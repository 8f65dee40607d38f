"""Settings of other protocols' clients, written for one Claude model."""

import msgspec
import pytest

from dragoman.hub.loss import Ledger, LossKind
from dragoman.hub.profile import Profile, Target
from dragoman.hub.request import Format, Reasoning, Role, Shape, Text, Turn
from dragoman.providers.models import find_profile
from protocols.messages.messages_dialogue import UPSTREAM, build_body, chat, losses, parse, refusal_at
from wire_json import JsonObject

OLD = find_profile("claude-sonnet-4-5")
OPUS_4_6 = find_profile("claude-opus-4-6")
OPUS_5 = find_profile("claude-opus-5")
OPUS_5_5 = find_profile("claude-opus-5-5")
SONNET_5_5 = find_profile("claude-sonnet-5-5")


def test_a_plain_request_is_plain() -> None:
    body, recorded = build_body(chat(max_tokens=9, stream=True))
    assert body == {
        "model": "claude-up",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }
    assert recorded == {}


@pytest.mark.parametrize(("profile", "cap"), [(Profile(), 32_000), (OLD, 64_000), (OPUS_5_5, 128_000)])
def test_a_missing_cap_is_the_models_own(profile: Profile, cap: int) -> None:
    assert build_body(chat(), profile)[0]["max_tokens"] == cap


def test_a_cap_beyond_the_model_is_lowered() -> None:
    body, recorded = build_body(chat(max_tokens=200_000), OLD)
    assert (body["max_tokens"], recorded) == (64_000, {"/max_tokens": LossKind.APPROXIMATED})


@pytest.mark.parametrize(
    ("fields", "sent", "recorded"),
    [
        ({"temperature": 0.5}, {"temperature": 0.5}, {}),
        ({"temperature": 1.7}, {"temperature": 1}, {"/temperature": LossKind.APPROXIMATED}),
        ({"top_p": 0.9, "top_k": 5}, {"top_p": 0.9, "top_k": 5}, {}),
    ],
)
def test_sampling_is_clamped(fields: JsonObject, sent: JsonObject, recorded: dict[str, LossKind]) -> None:
    body, losses = build_body(chat(**fields))
    assert {key: body.get(key) for key in sent} == sent
    assert losses == recorded


def test_sampling_is_dropped_for_models_that_refuse_it() -> None:
    body, recorded = build_body(chat(temperature=0.5, top_p=1.0), OPUS_5)
    assert "temperature" not in body
    assert "top_p" not in body
    assert recorded == {"/temperature": LossKind.DROPPED}


def test_a_model_that_thinks_with_a_budget_chooses_its_temperature() -> None:
    request = chat(temperature=0.5, reasoning=Reasoning("/reasoning_effort", "low"))
    body, recorded = build_body(request, OLD)
    assert "temperature" not in body
    assert recorded["/temperature"] is LossKind.DROPPED


def test_temperature_and_top_p_go_on_to_models_that_take_sampling() -> None:
    body, recorded = build_body(chat(temperature=0.5, top_p=0.9), OLD)
    assert (body["temperature"], body["top_p"], recorded) == (0.5, 0.9, {})


def test_settings_that_messages_lacks_are_dropped_with_a_loss() -> None:
    request = chat(
        frequency_penalty=0.5,
        presence_penalty=0.5,
        seed=7,
        logprobs=True,
        top_logprobs=3,
        verbosity="low",
        cache_key="k",
        metadata={"a": "b"},
        where={"cache_key": "/prompt_cache_key"},
    )
    _, recorded = build_body(request)
    assert recorded == dict.fromkeys(
        [
            "/frequency_penalty",
            "/presence_penalty",
            "/seed",
            "/logprobs",
            "/top_logprobs",
            "/verbosity",
            "/prompt_cache_key",
            "/metadata",
        ],
        LossKind.DROPPED,
    )


def test_defaults_are_no_loss() -> None:
    request = chat(frequency_penalty=0, presence_penalty=0.0, logprobs=False, n=1, verbosity="medium", metadata={})
    assert build_body(request)[1] == {}


def test_several_answers_are_refused() -> None:
    assert refusal_at(chat(n=2)) == "/n"


def test_stops_of_white_space_are_dropped() -> None:
    body, recorded = build_body(chat(stop=("END", "\n")))
    assert (body["stop_sequences"], recorded) == (["END"], {"/stop": LossKind.DROPPED})


def test_the_end_user_is_named_in_the_metadata() -> None:
    body, recorded = build_body(chat(user="u", safety_identifier="s"))
    assert body["metadata"] == {"user_id": "u"}
    assert recorded == {"/user": LossKind.APPROXIMATED, "/safety_identifier": LossKind.DROPPED}


@pytest.mark.parametrize(
    ("tier", "sent", "recorded"),
    [
        ("auto", None, {}),
        ("default", "standard_only", {"/service_tier": LossKind.APPROXIMATED}),
        ("flex", None, {"/service_tier": LossKind.DROPPED}),
        ("priority", None, {"/service_tier": LossKind.DROPPED}),
    ],
)
def test_service_tiers_follow_the_table(tier: str, sent: str | None, recorded: dict[str, LossKind]) -> None:
    body, losses = build_body(chat(service_tier=tier))
    assert (body.get("service_tier"), losses) == (sent, recorded)


def test_json_mode_is_requested_in_the_prompt() -> None:
    body, recorded = build_body(chat(format=Format(Shape.JSON, "/response_format")))
    assert "JSON" in str(body["system"])
    assert recorded == {"/response_format": LossKind.APPROXIMATED}


def test_an_output_schema_is_cleaned_but_its_names_are_data() -> None:
    schema = {
        "type": "object",
        "properties": {
            "minimum": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many."},
            "when": {"type": "string", "format": "date-time", "pattern": "^2"},
            "odd": {"type": "string", "format": "color"},
            "either": {"oneOf": [{"type": "string", "minLength": 2}, {"$ref": "#/$defs/pattern", "title": "P"}]},
            "list": {"type": "array", "items": {"type": "object", "properties": {}}, "minItems": 1, "maxItems": 4},
        },
        "$defs": {"pattern": {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": True}},
    }
    request = chat(format=Format(Shape.SCHEMA, "/response_format", "n", "d", schema, True))
    body, recorded = build_body(request)
    assert body["output_config"] == {
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {
                    "minimum": {"type": "integer", "description": "How many.\n(minimum: 1; maximum: 9)"},
                    "when": {"type": "string", "format": "date-time", "description": '(pattern: "^2")'},
                    "odd": {"type": "string", "description": '(format: "color")'},
                    "either": {
                        "anyOf": [{"type": "string", "description": "(minLength: 2)"}, {"$ref": "#/$defs/pattern"}]
                    },
                    "list": {
                        "type": "array",
                        "items": {"type": "object", "properties": {}, "additionalProperties": False},
                        "minItems": 1,
                        "description": "(maxItems: 4)",
                    },
                },
                "$defs": {
                    "pattern": {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False}
                },
                "additionalProperties": False,
            },
        }
    }
    assert recorded == {"/response_format": LossKind.APPROXIMATED}


def test_a_reference_at_the_root_keeps_what_it_refers_to() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {}}}}
    body, _ = build_body(chat(format=Format(Shape.SCHEMA, "/f", schema=schema)))
    assert body["output_config"]["format"]["schema"] == {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"type": "object", "properties": {}, "additionalProperties": False}},
    }


def test_a_format_that_is_no_text_is_described_in_words() -> None:
    schema = {"type": "string", "format": ["date", "time"]}
    body, _ = build_body(chat(format=Format(Shape.SCHEMA, "/f", schema=schema)))
    recorded = {"type": "string", "description": '(format: ["date","time"])'}
    assert body["output_config"]["format"]["schema"] == recorded


def test_what_the_values_of_a_map_are_is_described_in_words() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    body, _ = build_body(chat(format=Format(Shape.SCHEMA, "/response_format", name="n", schema=schema)))
    assert body["output_config"]["format"]["schema"] == {
        "type": "object",
        "additionalProperties": False,
        "description": '(additionalProperties: {"type":"string"})',
    }


def test_what_has_no_envelope_is_returned_to_any_upstream_of_its_own_protocol() -> None:
    location = {"type": "char_location", "cited_text": "c", "document_index": 0, "document_title": None}
    text = [
        {"type": "thinking", "thinking": "Hm.", "signature": "bmF0aXZl"},
        {"type": "redacted_thinking", "data": "bmF0aXZl"},
        {"type": "text", "text": "Yes.", "citations": [location]},
    ]
    turns = [{"role": "assistant", "content": text}, {"role": "user", "content": "Go."}]
    request = parse({"model": "m", "max_tokens": 9, "messages": turns})
    body = UPSTREAM.build(request, Target("claude-up", "elsewhere"), ledger := Ledger())
    assert msgspec.json.decode(body)["messages"] == turns
    assert not losses(ledger)


def test_a_conversation_of_a_gemini_client_that_opens_with_the_model_is_refused() -> None:
    turns = [Turn(role, (Text("x", "/contents/0"),), "/contents/0") for role in (Role.ASSISTANT, Role.USER)]
    assert refusal_at(chat(turns, protocol="gemini")) == "/contents/0"
