"""Thinking for Kiro: by the model's own fields where its schema has them, else by tags at the front of the prompt."""

from collections.abc import Callable

from dragoman.translate.protocols.kiro.build_thinking import MAX_BUDGET
from dragoman.translate.protocols.kiro.wire import KiroOptions
from tables import each_row
from translate.protocols.kiro.kiro_requests import Built, ask, chat, messages, user
from wire_json import Json, JsonObject

EFFORTS = ["low", "medium", "high", "max"]


CLOSED = {"type": "object", "additionalProperties": False}
ADAPTIVE_FIELDS = {"type": {"const": "adaptive"}, "display": {"enum": ["summarized", "omitted"]}}
CLAUDE = {
    **CLOSED,
    "properties": {
        "thinking": {
            "oneOf": [
                {**CLOSED, "properties": ADAPTIVE_FIELDS, "required": ["type"]},
                {**CLOSED, "properties": {"type": {"const": "disabled"}}, "required": ["type"]},
            ]
        },
        "output_config": {"$ref": "#/$defs/output"},
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 64000},
    },
    "$defs": {"output": {**CLOSED, "properties": {"effort": {"enum": EFFORTS}}}},
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


OFF, ADAPTIVE = {"type": "disabled"}, {"type": "adaptive"}


@each_row(
    ("build", "fields", "approximated"),
    [
        (lambda: think(CLAUDE, thinking=OFF), {"thinking": OFF}, set()),
        (lambda: reason("none", CLAUDE), {"thinking": OFF}, {"/reasoning_effort"}),
        (
            lambda: think(CLAUDE, thinking={"type": "enabled", "budget_tokens": 8000}),  # there are no budgets
            {"thinking": ADAPTIVE, "output_config": {"effort": "medium"}},
            {"/thinking", "/thinking/budget_tokens"},
        ),
        (
            lambda: reason("low", CLAUDE),
            {"output_config": {"effort": "low"}},
            {"/reasoning_effort"},
        ),  # it switches nothing on
        (lambda: reason("xhigh", CLAUDE), {"output_config": {"effort": "max"}}, {"/reasoning_effort"}),
        (lambda: reason("minimal", CLAUDE), {"output_config": {"effort": "low"}}, {"/reasoning_effort"}),
        (lambda: reason("high", GPT), {"reasoning": {"effort": "high"}}, set()),
        (lambda: reason("max", GPT), {"reasoning": {"effort": "high"}}, {"/reasoning_effort"}),
        (lambda: think(GPT, thinking=OFF), {"reasoning": {"effort": "low"}}, {"/thinking"}),  # it always thinks
        (lambda: think(GPT, thinking=ADAPTIVE), None, {"/thinking"}),  # it may think as it likes
    ],
)
def test_thinking_is_requested_in_the_models_own_fields(
    build: Callable[[], Built], fields: Json, approximated: set[str]
) -> None:
    built = build()
    assert fields_of(built) == fields
    assert built.current["content"] == "hi"
    assert built.approximated == approximated


def test_fields_that_the_schema_refuses_give_way_to_tags() -> None:
    for kind in ("string", "nonsense"):
        built = think({"type": "object", "properties": {"thinking": {"type": kind}}}, thinking=ADAPTIVE)
        assert fields_of(built) is None
        assert built.current["content"].startswith("<thinking_mode>adaptive</thinking_mode>")


def test_without_fields_tags_open_the_prompt() -> None:
    built = think(thinking={"type": "enabled", "budget_tokens": 2000}, system="S")
    tags = "<thinking_mode>enabled</thinking_mode><max_thinking_length>2000</max_thinking_length>"
    assert built.current["content"] == f"{tags}\n\nS\n\nhi"
    assert "/thinking" in built.approximated


@each_row(
    ("build", "budget"),
    [
        (lambda: reason("high"), 4000),
        (lambda: reason("high", budgets={"high": 7000}), 7000),
        (lambda: reason("high", budgets={"high": 50_000}), MAX_BUDGET),
        (lambda: think(thinking={"type": "enabled", "budget_tokens": 31_999}), MAX_BUDGET),
    ],
)
def test_an_effort_becomes_a_budget_within_bounds(build: Callable[[], Built], budget: int) -> None:
    assert f"<max_thinking_length>{budget}<" in build().current["content"]


def test_tags_stand_in_the_first_message_only() -> None:
    turns = (user("1"), {"role": "assistant", "content": "A"}, user("2"))
    built = ask("messages", messages(*turns, thinking={"type": "adaptive"}, output_config={"effort": "low"}))
    tags = "<thinking_mode>adaptive</thinking_mode><thinking_effort>low</thinking_effort>"
    assert built.history[0]["content"] == f"{tags}\n\n1"
    assert built.current["content"] == "2"


def test_tags_are_never_written_twice() -> None:
    written = "<thinking_mode>enabled</thinking_mode><max_thinking_length>9</max_thinking_length>"
    for fields in ({"system": f"{written} S"}, {"system": "S"}):
        question = user("hi" if written in str(fields) else f"{written} hi")
        built = ask("messages", messages(question, thinking={"type": "adaptive"}, **fields))
        assert built.body.count(b"<thinking_mode>") == 1


def test_an_effort_alone_of_a_client_with_a_switch_or_switched_off_writes_no_tags() -> None:
    alone, off = think(output_config={"effort": "high"}), think(thinking=OFF)
    assert alone.current["content"] == off.current["content"] == "hi"
    assert "/output_config/effort" in alone.dropped
    assert "/thinking" not in {loss.path for loss in off.ledger}


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
