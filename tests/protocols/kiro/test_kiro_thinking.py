"""Thinking for Kiro: by the model's own fields where its schema has them, else by tags at the front of the prompt."""

import pytest

from dragoman.protocols.kiro.build_thinking import MAX_BUDGET
from dragoman.protocols.kiro.wire import KiroOptions
from protocols.kiro.kiro_requests import Built, ask, chat, messages, user
from wire_json import Json, JsonObject

EFFORTS = ["low", "medium", "high", "max"]
CLAUDE = {
    "type": "object",
    "properties": {
        "thinking": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"type": {"const": "adaptive"}, "display": {"enum": ["summarized", "omitted"]}},
                    "required": ["type"],
                    "additionalProperties": False,
                },
                {
                    "type": "object",
                    "properties": {"type": {"const": "disabled"}},
                    "required": ["type"],
                    "additionalProperties": False,
                },
            ]
        },
        "output_config": {"$ref": "#/$defs/output"},
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 64000},
    },
    "additionalProperties": False,
    "$defs": {"output": {"type": "object", "properties": {"effort": {"enum": EFFORTS}}, "additionalProperties": False}},
}
GPT = {
    "type": "object",
    "properties": {"reasoning": {"type": "object", "properties": {"effort": {"enum": ["low", "medium", "high"]}}}},
}


def options(schema: JsonObject | None = None, by: str = "auto") -> KiroOptions:
    return KiroOptions(conversation_id="c", thinking_by=by, fields_schema=schema)


def think(schema: JsonObject | None = None, by: str = "auto", **fields: object) -> Built:
    return ask("messages", messages(user("hi"), **fields), options(schema, by))


def fields_of(built: Built) -> Json:
    """Return the thinking settings in the model's own fields."""
    found = built.payload.get("additionalModelRequestFields", {})
    return {key: value for key, value in found.items() if key != "max_tokens"} or None


def reason(effort: str, schema: JsonObject | None = None, budgets: dict[str, int] | None = None) -> Built:
    return ask("chat", chat(user("hi"), reasoning_effort=effort), options(schema), budgets)


def test_without_a_setting_nothing_is_requested() -> None:
    for schema in (None, CLAUDE, GPT):
        built = think(schema)
        assert fields_of(built) is None
        assert built.current["content"] == "hi"


def test_adaptive_thinking_is_requested_in_claudes_own_fields() -> None:
    built = think(CLAUDE, thinking={"type": "adaptive", "display": "summarized"}, output_config={"effort": "high"})
    assert fields_of(built) == {
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "high"},
    }
    assert built.current["content"] == "hi"
    assert not {path for path in built.approximated | built.dropped if path.startswith(("/thinking", "/output_config"))}


def test_thinking_switched_off_is_sent_in_claudes_own_fields() -> None:
    assert fields_of(think(CLAUDE, thinking={"type": "disabled"})) == {"thinking": {"type": "disabled"}}
    assert fields_of(reason("none", CLAUDE)) == {"thinking": {"type": "disabled"}}


def test_a_budget_becomes_an_effort_where_there_are_no_budgets() -> None:
    built = think(CLAUDE, thinking={"type": "enabled", "budget_tokens": 8000})
    assert fields_of(built) == {"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}
    assert {"/thinking", "/thinking/budget_tokens"} <= built.approximated


def test_an_effort_alone_switches_nothing_on() -> None:
    assert fields_of(reason("low", CLAUDE)) == {"output_config": {"effort": "low"}}


@pytest.mark.parametrize(("effort", "sent"), [("xhigh", "max"), ("minimal", "low")])
def test_an_effort_that_the_schema_lacks_becomes_the_nearest(effort: str, sent: str) -> None:
    built = reason(effort, CLAUDE)
    assert fields_of(built) == {"output_config": {"effort": sent}}
    assert "/reasoning_effort" in built.approximated


def test_an_effort_is_gpts_own_reasoning() -> None:
    built = reason("high", GPT)
    assert fields_of(built) == {"reasoning": {"effort": "high"}}
    assert not len(built.ledger)
    assert fields_of(reason("max", GPT)) == {"reasoning": {"effort": "high"}}


def test_a_gpt_that_always_thinks_is_requested_as_little_as_possible() -> None:
    built = think(GPT, thinking={"type": "disabled"})
    assert fields_of(built) == {"reasoning": {"effort": "low"}}
    assert "/thinking" in built.approximated


def test_a_gpt_that_may_think_as_it_likes_gets_no_fields() -> None:
    built = think(GPT, thinking={"type": "adaptive"})
    assert fields_of(built) is None
    assert built.current["content"] == "hi"
    assert "/thinking" in built.approximated


def test_fields_that_the_schema_refuses_give_way_to_tags() -> None:
    strange = {"type": "object", "properties": {"thinking": {"type": "string"}}}
    built = think(strange, thinking={"type": "adaptive"})
    assert fields_of(built) is None
    assert built.current["content"].startswith("<thinking_mode>adaptive</thinking_mode>")


def test_a_schema_that_is_none_is_never_satisfied() -> None:
    broken = {"properties": {"thinking": {"type": "nonsense"}}}
    assert fields_of(think(broken, thinking={"type": "adaptive"})) is None


def test_without_fields_tags_open_the_prompt() -> None:
    built = think(thinking={"type": "enabled", "budget_tokens": 2000}, system="S")
    tags = "<thinking_mode>enabled</thinking_mode><max_thinking_length>2000</max_thinking_length>"
    assert built.current["content"] == f"{tags}\n\nS\n\nhi"
    assert "/thinking" in built.approximated


def test_tags_stand_in_the_first_message_only() -> None:
    turns = (user("1"), {"role": "assistant", "content": "A"}, user("2"))
    built = ask("messages", messages(*turns, thinking={"type": "adaptive"}, output_config={"effort": "low"}))
    tags = "<thinking_mode>adaptive</thinking_mode><thinking_effort>low</thinking_effort>"
    assert built.history[0]["content"] == f"{tags}\n\n1"
    assert built.current["content"] == "2"


def test_an_effort_becomes_a_budget_within_bounds() -> None:
    assert "<max_thinking_length>4000<" in reason("high").current["content"]
    assert "<max_thinking_length>7000<" in reason("high", budgets={"high": 7000}).current["content"]
    assert f"<max_thinking_length>{MAX_BUDGET}<" in reason("high", budgets={"high": 50_000}).current["content"]
    capped = think(thinking={"type": "enabled", "budget_tokens": 31_999})
    assert f"<max_thinking_length>{MAX_BUDGET}<" in capped.current["content"]


def test_tags_are_never_written_twice() -> None:
    written = "<thinking_mode>enabled</thinking_mode><max_thinking_length>9</max_thinking_length>"
    for fields in ({"system": f"{written} S"}, {"system": "S"}):
        question = user("hi" if written in str(fields) else f"{written} hi")
        built = ask("messages", messages(question, thinking={"type": "adaptive"}, **fields))
        assert built.body.count(b"<thinking_mode>") == 1


def test_an_effort_alone_of_a_client_with_a_switch_writes_no_tags() -> None:
    built = think(output_config={"effort": "high"})
    assert built.current["content"] == "hi"
    assert "/output_config/effort" in built.dropped


def test_switched_off_writes_no_tags_and_loses_nothing() -> None:
    built = think(thinking={"type": "disabled"})
    assert built.current["content"] == "hi"
    assert "/thinking" not in {loss.path for loss in built.ledger}


def test_how_thinking_is_requested_is_configured() -> None:
    reasoning = {"type": "adaptive"}
    assert fields_of(think(CLAUDE, "native", thinking=reasoning))
    tagged = think(CLAUDE, "tags", thinking=reasoning)
    assert fields_of(tagged) is None
    assert "<thinking_mode>" in tagged.current["content"]
    for by, schema in (("off", CLAUDE), ("native", None)):
        silent = think(schema, by, thinking=reasoning)
        assert fields_of(silent) is None
        assert silent.current["content"] == "hi"
        assert "/thinking" in silent.dropped


def test_a_cap_is_sent_where_the_schema_has_one() -> None:
    built = think(CLAUDE)
    assert built.payload["additionalModelRequestFields"] == {"max_tokens": 100}
    assert "/max_tokens" not in built.dropped
    assert "/max_tokens" in think(GPT).dropped
    assert "/max_tokens" in think().dropped


def test_a_cap_above_the_schemas_is_lowered_to_it() -> None:
    built = ask("messages", {**messages(user("hi")), "max_tokens": 999_999}, options(CLAUDE))
    assert built.payload["additionalModelRequestFields"] == {"max_tokens": 64000}
    assert "/max_tokens" in built.approximated
