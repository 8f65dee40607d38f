"""Tools and settings as Chat writes them, and Chat requests rebuilt unchanged."""

import copy
from collections.abc import Iterator

import msgspec
import pytest

from dragoman.hub.failure import RequestError
from dragoman.hub.loss import Ledger, LossKind
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.profile import Profile, Target
from dragoman.hub.request import (
    Custom,
    Format,
    Function,
    Grammar,
    Hosted,
    Pick,
    Reasoning,
    Request,
    Shape,
    Switch,
    Text,
    Thinking,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from dragoman.protocols.chat.build import build
from dragoman.protocols.chat.parse import parse
from laws import assert_linear_function
from protocols.chat.chat_building import (
    CALLS,
    FIXTURE,
    LOCAL,
    OPENAI,
    STRICT,
    Wire,
    assistant,
    build_body,
    expect_refusal_at,
    losses,
    request,
    result,
    user,
)
from tables import each_row
from wire_json import Json

F = Function("f", "/tools/0", description="does", parameters={"type": "object"}, strict=True)


C = Custom("c", "/tools/1", description="writes", grammar=Grammar("lark", "start: x"))


def test_functions_and_custom_tools_are_nested() -> None:
    body, lost = build_body(request(tools=(F, C), parallel=False))
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "f", "description": "does", "parameters": {"type": "object"}, "strict": True},
        },
        {
            "type": "custom",
            "custom": {
                "name": "c",
                "description": "writes",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: x"}},
            },
        },
    ]
    assert body["parallel_tool_calls"] is False
    assert lost == []


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        (ToolChoice(Pick.AUTO, "/t"), "auto"),
        (ToolChoice(Pick.NONE, "/t"), "none"),
        (ToolChoice(Pick.REQUIRED, "/t"), "required"),
        (ToolChoice(Pick.NAMED, "/t", name="f"), {"type": "function", "function": {"name": "f"}}),
        (ToolChoice(Pick.NAMED, "/t", name="c", custom=True), {"type": "custom", "custom": {"name": "c"}}),
        (
            ToolChoice(Pick.REQUIRED, "/t", allowed=("f", "c")),
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [
                        {"type": "function", "function": {"name": "f"}},
                        {"type": "custom", "custom": {"name": "c"}},
                    ],
                },
            },
        ),
    ],
)
def test_each_choice_is_sent(choice: ToolChoice, wire: object) -> None:
    assert build_body(request(tools=(F, C), tool_choice=choice))[0]["tool_choice"] == wire


def test_a_choice_without_tools_is_left_out_or_refused() -> None:
    assert "tool_choice" not in build_body(request(tool_choice=ToolChoice(Pick.AUTO, "/t")))[0]
    assert expect_refusal_at(request(tool_choice=ToolChoice(Pick.REQUIRED, "/t"))) == "/t"


def test_a_hosted_tool_beside_others_is_dropped_and_else_refused() -> None:
    search = Hosted("web_search", {}, "/tools/9")
    body, lost = build_body(request(tools=(F, search)))
    assert len(body["tools"]) == 1
    assert lost == [("/tools/9", LossKind.DROPPED)]
    assert expect_refusal_at(request(tools=(search,))) == "/tools/9"
    forced = ToolChoice(Pick.NAMED, "/t", hosted="web_search")
    assert expect_refusal_at(request(tools=(F, search), tool_choice=forced)) == "/tools/9"


def test_a_deferred_tool_is_offered_at_once() -> None:
    expected = request(tools=(msgspec.structs.replace(F, deferred=True),))
    assert losses(expected) == [("/tools/0/defer_loading", LossKind.APPROXIMATED)]


def test_the_cap_has_the_name_that_the_server_uses() -> None:
    assert build_body(request(max_tokens=9))[0]["max_completion_tokens"] == 9
    older = Target("m", "local", quirks=frozenset({"max_tokens"}))
    assert build_body(request(max_tokens=9), older)[0]["max_tokens"] == 9


def test_a_stream_is_always_requested_its_usage() -> None:
    body, _ = build_body(request(stream=True, include_usage=False))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert "stream_options" not in build_body(request())[0]


def test_settings_that_chat_lacks_are_dropped_by_name() -> None:
    expected = request(top_k=5, max_tool_calls=2, where={"top_k": "/generation/top_k"})
    assert losses(expected) == [("/generation/top_k", LossKind.DROPPED), ("/max_tool_calls", LossKind.DROPPED)]


def test_a_model_without_sampling_gets_none() -> None:
    fixed = Target("o9", "openai", Profile(sampling=False))
    body, lost = build_body(request(temperature=0.5, top_p=0.9), fixed)
    assert body.keys() == {"model", "messages"}
    assert lost == [("/temperature", LossKind.DROPPED), ("/top_p", LossKind.DROPPED)]


def test_more_answers_than_one_are_requested() -> None:
    assert build_body(request(n=2))[0]["n"] == 2


VENDORS = {
    "verbosity": "low",
    "cache_key": "k",
    "safety_identifier": "s",
    "metadata": {"a": "b"},
    "service_tier": "flex",
}


def test_a_server_that_refuses_unknown_fields_is_spared_openais_own() -> None:
    expected = request(protocol="responses", **VENDORS)
    body, lost = build_body(expected)
    assert body["prompt_cache_key"] == "k"
    assert {key: body[key] for key in ("verbosity", "safety_identifier", "metadata", "service_tier")} == {
        key: VENDORS[key] for key in ("verbosity", "safety_identifier", "metadata", "service_tier")
    }
    assert lost == []
    assert build_body(expected, LOCAL)[1] == []
    body, lost = build_body(expected, STRICT)
    assert body.keys() == {"model", "messages"}
    assert {path for path, _ in lost} == {"/" + key for key in VENDORS}


def test_an_end_user_of_another_vendor_is_nearly_the_same() -> None:
    body, lost = build_body(request(user="someone", where={"user": "/metadata/user_id"}))
    assert body["user"] == "someone"
    assert lost == [("/metadata/user_id", LossKind.APPROXIMATED)]


def test_openai_takes_four_stop_sequences() -> None:
    expected = request(stop=("a", "b", "c", "d", "e"), where={"stop": "/stop_sequences"})
    body, lost = build_body(expected)
    assert body["stop"] == ["a", "b", "c", "d"]
    assert lost == [("/stop_sequences", LossKind.DROPPED)]
    assert build_body(expected, LOCAL)[0]["stop"] == ["a", "b", "c", "d", "e"]


def test_a_schema_without_a_name_gets_one() -> None:
    expected = request(format=Format(Shape.SCHEMA, "/format", schema={"type": "object"}))
    body, lost = build_body(expected)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "reply", "schema": {"type": "object"}},
    }
    assert lost == [("/format", LossKind.INVENTED)]


def test_json_mode_is_requested() -> None:
    assert build_body(request(format=Format(Shape.JSON, "/format")))[0]["response_format"] == {"type": "json_object"}


@each_row(
    ("reasoning", "efforts", "effort", "lost"),
    [
        (Reasoning("/e", effort="high"), ("low", "high"), "high", []),
        (Reasoning("/e", effort="max"), ("low", "high"), "high", [("/e", LossKind.APPROXIMATED)]),
        (Reasoning("/e", effort="minimal"), ("low", "high"), "low", [("/e", LossKind.APPROXIMATED)]),
        (Reasoning("/e", effort="minimal"), ("none", "low"), "low", [("/e", LossKind.APPROXIMATED)]),
        (Reasoning("/e", effort="medium"), ("low", "high"), "low", [("/e", LossKind.APPROXIMATED)]),
        (Reasoning("/e", effort="high"), (), None, [("/e", LossKind.DROPPED)]),
        (Reasoning("/e", budget=2000, budget_at="/b"), ("low", "medium"), "medium", [("/b", LossKind.APPROXIMATED)]),
        (Reasoning("/e", switch=Switch.DISABLED, switch_at="/s"), ("none", "low"), "none", []),
        (Reasoning("/e", switch=Switch.DISABLED, switch_at="/s"), ("low",), "low", [("/s", LossKind.APPROXIMATED)]),
        (Reasoning("/e", switch=Switch.DISABLED, switch_at="/s"), (), None, []),
        (Reasoning("/e", switch=Switch.ADAPTIVE, switch_at="/s"), ("low",), None, [("/s", LossKind.APPROXIMATED)]),
        (Reasoning("/e", effort="low", show="auto", show_at="/v"), ("low",), "low", [("/v", LossKind.DROPPED)]),
    ],
)
def test_effort_is_fitted_to_the_model(
    reasoning: Reasoning, efforts: tuple[str, ...], effort: str | None, lost: list[tuple[str, LossKind]]
) -> None:
    target = Target("gpt-x", "openai", Profile(efforts=efforts))
    body, recorded = build_body(request(protocol="responses", reasoning=reasoning), target)
    assert body.get("reasoning_effort") == effort
    assert recorded == lost


def test_openais_chat_has_no_maximal_effort() -> None:
    assert build_body(request(reasoning=Reasoning("/e", effort="max")))[0]["reasoning_effort"] == "xhigh"


def test_a_prefill_of_another_vendor_is_only_history() -> None:
    turns = user(Text("a")), assistant(Text("The answer is"))
    assert losses(request(*turns)) == [("/a", LossKind.APPROXIMATED)]
    assert losses(request(*turns, protocol="responses")) == []


def test_a_chat_clients_request_is_sent_unchanged() -> None:
    expected = parse(FIXTURE, Ledger())
    ledger = Ledger()
    body = build(expected, Target("gpt-x", "openai"), ledger)
    assert list(ledger) == []
    wire, original = msgspec.json.decode(body), msgspec.json.decode(FIXTURE)
    del original["stream_options"]["include_obfuscation"]
    original["messages"][6] = {"role": "assistant", "content": "Done."}
    original["messages"][1]["content"][0]["prompt_cache_breakpoint"] = {"mode": "explicit", "ttl": "30m"}
    assert wire == original


def leaves(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    items: list[tuple[object, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    if not items:
        yield path
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def without(body: Wire, path: tuple[object, ...]) -> Wire:
    shorter = copy.deepcopy(body)
    holder: Json = shorter
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return shorter


SILENT = {"include_obfuscation", "refusal", "annotations", "mode", "type", "include_usage"}


@pytest.mark.parametrize("protocol", ["chat", "elsewhere"])
@pytest.mark.parametrize("issuer", ["openai", "local"])
def test_no_leaf_vanishes_quietly(protocol: str, issuer: str) -> None:
    original = msgspec.json.decode(FIXTURE)
    if protocol != "chat":
        del original["messages"][2]["content"][4]  # a file id, which is refused
        del original["top_logprobs"]  # which implies logprobs

    def outcome(body: Wire) -> tuple[bytes, list[str]]:
        ledger = Ledger()
        try:
            expected = msgspec.structs.replace(parse(msgspec.json.encode(body), ledger), protocol=protocol)
            return build(expected, Target("up", issuer), ledger), [loss.path for loss in ledger]
        except RequestError as refused:
            return b"refused", [str(refused.failure.at)]

    wire, named = outcome(original)
    assert wire != b"refused"
    vanished = [path for path in leaves(original) if outcome(without(original, path))[0] == wire]
    quiet = [
        path
        for path in vanished
        if path[-1] not in SILENT and not any("/".join(map(str, ("", *path))).startswith(loss) for loss in named)
    ]
    # An assistant's null content beside its calls says nothing either.
    assert quiet == [("messages", 3, "content")]


def test_ids_that_every_step_uses_again_still_find_their_results() -> None:
    steps = [turn for n in "12" for turn in (assistant(CALLS[0]), user(result("a", Text(n))))]
    body, lost = build_body(request(*steps))
    assert [message.get("content") for message in body["messages"]] == [None, "1", None, "2"]
    assert lost == []


def test_a_reasoning_item_of_responses_has_no_place_in_chat() -> None:
    item = Thinking("", "/t", Opaque("local", Form.ENCRYPTED, "ZW5j"))
    body, lost = build_body(request(assistant(item, Text("Yes.")), user(Text("so?")), protocol="responses"), LOCAL)
    assert body["messages"][0] == {"role": "assistant", "content": "Yes."}
    assert lost == [("/t", LossKind.DROPPED)]


def test_a_long_history_of_tools_is_built_in_linear_time() -> None:
    def make_history(steps: int) -> Request:
        turns = [
            turn
            for n in range(steps)
            for turn in (
                assistant(ToolCall(f"c{n}", "f", "{}")),
                user(ToolResult(f"c{n}", (Text("x"),))),
            )
        ]
        return request(*turns)

    assert_linear_function(lambda history: build(history, OPENAI, Ledger()), make_history, 300)
