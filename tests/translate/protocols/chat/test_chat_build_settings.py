"""Tools and settings as Chat writes them, and Chat requests rebuilt unchanged."""

import copy
from collections.abc import Iterator

import msgspec
import pytest

from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.profile import Profile, Target
from dragoman.translate.hub.request import (
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
    Tool,
    ToolCall,
    ToolChoice,
)
from dragoman.translate.protocols.chat.build import build
from dragoman.translate.protocols.chat.parse import parse
from laws import assert_linear_function
from tables import each_row
from translate.protocols.chat.chat_building import (
    APPROXIMATED,
    CALLS,
    DROPPED,
    FIXTURE,
    INVENTED,
    LOCAL,
    OPENAI,
    STRICT,
    Losses,
    Wire,
    assert_built,
    assistant,
    build_body,
    expect_refusal_at,
    losses,
    request,
    result,
    user,
)
from wire_json import Json, JsonObject

F = Function("f", "/tools/0", description="does", parameters={"type": "object"}, strict=True)
C = Custom("c", "/tools/1", description="writes", grammar=Grammar("lark", "start: x"))
BARE, G = Function("f", "/tools/0"), Function("g", "/tools/1")
SEARCH = Hosted("web_search", {}, "/tools/9")
UP = Target("gpt-x", "up")
OLDER = Target("m", "local", quirks=frozenset({"max_tokens"}))
ODD = Target(
    "llama", "local", quirks=frozenset({"json_object_schema", "no_required", "text_content", "needs_parameters"})
)
SCHEMA: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}}
REQUIRED, AUTO = ToolChoice(Pick.REQUIRED, "/t"), ToolChoice(Pick.AUTO, "/t")


def name_function(name: str) -> Wire:
    return {"type": "function", "function": {"name": name}}


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


@each_row(
    ("choice", "wire"),
    [
        (AUTO, "auto"),
        (ToolChoice(Pick.NONE, "/t"), "none"),
        (REQUIRED, "required"),
        (ToolChoice(Pick.NAMED, "/t", name="f"), name_function("f")),
        (ToolChoice(Pick.NAMED, "/t", name="c", custom=True), {"type": "custom", "custom": {"name": "c"}}),
        (
            ToolChoice(Pick.REQUIRED, "/t", allowed=("f", "c")),
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [name_function("f"), {"type": "custom", "custom": {"name": "c"}}],
                },
            },
        ),
    ],
)
def test_each_choice_is_sent(choice: ToolChoice, wire: object) -> None:
    assert build_body(request(tools=(F, C), tool_choice=choice))[0]["tool_choice"] == wire


@each_row(
    ("tools", "choice", "wire", "lost"),
    [
        ((BARE,), REQUIRED, name_function("f"), []),
        ((C,), REQUIRED, {"type": "custom", "custom": {"name": "c"}}, []),
        ((BARE, G), ToolChoice(Pick.REQUIRED, "/t", allowed=("g",)), name_function("g"), []),
        ((BARE, G), AUTO, "auto", []),
        ((BARE, SEARCH), REQUIRED, name_function("f"), [("/tools/9", DROPPED)]),
        ((BARE, G), REQUIRED, "required", [("/t", APPROXIMATED)]),  # such a server takes it for a preference
    ],
)
def test_a_call_that_must_be_made_is_requested_by_name_where_one_tool_is_left(
    tools: tuple[Tool, ...], choice: ToolChoice, wire: object, lost: Losses
) -> None:
    assert_built(request(tools=tools, tool_choice=choice), ODD, {"tool_choice": wire}, lost)


@each_row(
    ("tools", "choice", "at"),
    [
        ((), REQUIRED, "/t"),
        ((SEARCH,), None, "/tools/9"),
        ((F, SEARCH), ToolChoice(Pick.NAMED, "/t", hosted="web_search"), "/tools/9"),
        ((Hosted("bash_20250124", {}, "/tools/0"),), None, "/tools/0"),
    ],
)
def test_a_tool_that_must_be_there_and_cannot_is_refused(
    tools: tuple[Tool, ...], choice: ToolChoice | None, at: str
) -> None:
    assert expect_refusal_at(request(tools=tools, tool_choice=choice)) == at


@each_row(
    ("tools", "sent", "lost"),
    [
        ((F, SEARCH), ["f"], [("/tools/9", DROPPED)]),
        (  # however many fields it has
            (F, Hosted("web_search", {}, "/tools/9", context_size="low", ext={"cache_control": {"type": "ephemeral"}})),
            ["f"],
            [("/tools/9", DROPPED)],
        ),
        ((Hosted("frobnicate_20270101", {}, "/tools/0", known=False),), [], [("/tools/0", DROPPED)]),
        ((msgspec.structs.replace(F, deferred=True),), ["f"], [("/tools/0/defer_loading", APPROXIMATED)]),
    ],
)
def test_a_tool_that_chat_lacks_is_one_loss(tools: tuple[Tool, ...], sent: list[str], lost: Losses) -> None:
    body, recorded = build_body(request(tools=tools))
    assert [tool["function"]["name"] for tool in body.get("tools", [])] == sent
    assert recorded == lost


FORMAT = "response_format"
WITHOUT_USAGE = {"stream": True, "include_usage": False}
NO_PARAMETERS = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
STOPS = ("a", "b", "c", "d", "e")


@each_row(
    ("target", "fields", "sent", "lost"),
    [
        (OPENAI, {"tool_choice": AUTO}, {"tool_choice": None}, []),
        (OPENAI, {"max_tokens": 9}, {"max_completion_tokens": 9}, []),
        (OLDER, {"max_tokens": 9}, {"max_tokens": 9}, []),
        (UP, {"max_tokens": 0}, {"max_completion_tokens": 1}, [("/max_tokens", APPROXIMATED)]),  # warms a cache
        (OPENAI, WITHOUT_USAGE, {"stream_options": {"include_usage": True}, "stream": True}, []),
        (OPENAI, {}, {"stream_options": None}, []),
        (
            OPENAI,
            {"top_k": 5, "max_tool_calls": 2, "where": {"top_k": "/generation/top_k"}},
            {"top_k": None, "max_tool_calls": None},
            [("/generation/top_k", DROPPED), ("/max_tool_calls", DROPPED)],
        ),
        (
            Target("o9", "openai", Profile(sampling=False)),
            {"temperature": 0.5, "top_p": 0.9},
            {"temperature": None, "top_p": None},
            [("/temperature", DROPPED), ("/top_p", DROPPED)],
        ),
        (OPENAI, {"n": 2}, {"n": 2}, []),
        (
            OPENAI,
            {"user": "someone", "where": {"user": "/metadata/user_id"}},
            {"user": "someone"},
            [("/metadata/user_id", APPROXIMATED)],
        ),
        (OPENAI, {"stop": STOPS, "where": {"stop": "/s"}}, {"stop": ["a", "b", "c", "d"]}, [("/s", DROPPED)]),
        (LOCAL, {"stop": STOPS}, {"stop": list(STOPS)}, []),
        (
            OPENAI,
            {"format": Format(Shape.SCHEMA, "/format", schema={"type": "object"})},
            {FORMAT: {"type": "json_schema", "json_schema": {"name": "reply", "schema": {"type": "object"}}}},
            [("/format", INVENTED)],
        ),
        (OPENAI, {"format": Format(Shape.JSON, "/format")}, {FORMAT: {"type": "json_object"}}, []),
        (
            ODD,
            {"format": Format(Shape.SCHEMA, "/format", name="answer", schema=SCHEMA, strict=True)},
            {FORMAT: {"type": "json_object", "schema": SCHEMA}},
            [("/format", APPROXIMATED)],
        ),
        (ODD, {"format": Format(Shape.JSON, "/format")}, {FORMAT: {"type": "json_object"}}, []),
        (ODD, {"tools": (BARE,)}, {"tools": [NO_PARAMETERS]}, []),
        (
            UP,
            {"protocol": "responses", "ext": {"prompt_cache_options/ttl": "12h"}},
            {"prompt_cache_options": None},
            [("/prompt_cache_options/ttl", DROPPED)],
        ),
        (
            UP,
            {
                "protocol": "responses",
                "ext": {"moderation": {"model": "m"}, "prompt_cache_options/mode": "explicit", "truncation": "auto"},
            },
            {"moderation": {"model": "m"}, "prompt_cache_options": {"mode": "explicit"}, "truncation": None},
            [("/truncation", DROPPED)],
        ),
    ],
)
def test_each_setting_is_sent_as_the_server_takes_it(target: Target, fields: Wire, sent: Wire, lost: Losses) -> None:
    assert_built(request(**fields), target, sent, lost)


def test_a_long_name_of_the_end_user_is_sent_as_its_digest() -> None:
    body, lost = build_body(request(user="u" * 65), UP)
    assert len(body["user"]) == 64
    assert body["user"] != "u" * 64
    assert lost == [("/user", APPROXIMATED)]
    assert build_body(request(user="u" * 64), UP)[0]["user"] == "u" * 64
    assert build_body(request(user="u" * 65, protocol="responses"), UP)[0]["user"] == "u" * 65


@each_row(
    ("reasoning", "effort", "lost"),
    [
        (
            Reasoning("/thinking", budget=5000, budget_at="/b", switch=Switch.ENABLED, switch_at="/thinking"),
            "medium",
            [("/b", APPROXIMATED)],
        ),
        (
            Reasoning("/e", effort="low", switch=Switch.ADAPTIVE, switch_at="/s"),
            "low",
            [("/s", APPROXIMATED), ("/e", APPROXIMATED)],
        ),
        (
            Reasoning("/e", effort="high", switch=Switch.DISABLED, switch_at="/s"),
            "none",
            [("/e", DROPPED), ("/s", APPROXIMATED)],
        ),
        (Reasoning("/e", effort="max"), "max", [("/e", APPROXIMATED)]),
    ],
)
def test_wishes_about_reasoning_become_one_effort(reasoning: Reasoning, effort: str, lost: Losses) -> None:
    assert_built(request(reasoning=reasoning), UP, {"reasoning_effort": effort}, lost)
    if reasoning.effort == "max":  # which OpenAI's Chat has not
        assert_built(request(reasoning=reasoning), OPENAI, {"reasoning_effort": "xhigh"}, lost)


@each_row("effort, sent", [(None, True), ("none", True), ("low", False)])
def test_a_model_that_thinks_takes_no_temperature(effort: str | None, sent: bool) -> None:
    target = Target("gpt-5.2", "openai", Profile(sampling_while_thinking=False))
    reasoning = Reasoning("/e", effort=effort) if effort else None
    expected = request(protocol="responses", temperature=0.3, top_p=1, reasoning=reasoning)
    lost = [] if sent else [("/temperature", DROPPED)]
    assert_built(expected, target, {"temperature": 0.3 if sent else None}, lost)


def test_a_server_that_refuses_unknown_fields_is_spared_openais_own() -> None:
    fields = {"verbosity": "low", "safety_identifier": "s", "metadata": {"a": "b"}, "service_tier": "flex"}
    expected = request(protocol="responses", cache_key="k", **fields)
    for target in (OPENAI, LOCAL):
        assert_built(expected, target, {**fields, "prompt_cache_key": "k"}, [])
    body, lost = build_body(expected, STRICT)
    assert body.keys() == {"model", "messages"}
    assert {path for path, _ in lost} == {"/" + key for key in fields}


@each_row(
    ("reasoning", "efforts", "effort", "lost"),
    [
        (Reasoning("/e", effort="high"), ("low", "high"), "high", []),
        (Reasoning("/e", effort="max"), ("low", "high"), "high", [("/e", APPROXIMATED)]),
        (Reasoning("/e", effort="minimal"), ("low", "high"), "low", [("/e", APPROXIMATED)]),
        (Reasoning("/e", effort="minimal"), ("none", "low"), "low", [("/e", APPROXIMATED)]),
        (Reasoning("/e", effort="medium"), ("low", "high"), "low", [("/e", APPROXIMATED)]),
        (Reasoning("/e", effort="high"), (), None, [("/e", DROPPED)]),
        (Reasoning("/e", budget=2000, budget_at="/b"), ("low", "medium"), "medium", [("/b", APPROXIMATED)]),
        (Reasoning("/e", switch=Switch.DISABLED, switch_at="/s"), ("none", "low"), "none", []),
        (Reasoning("/e", switch=Switch.DISABLED, switch_at="/s"), ("low",), "low", [("/s", APPROXIMATED)]),
        (Reasoning("/e", switch=Switch.DISABLED, switch_at="/s"), (), None, []),
        (Reasoning("/e", switch=Switch.ADAPTIVE, switch_at="/s"), ("low",), None, [("/s", APPROXIMATED)]),
        (Reasoning("/e", effort="low", show="auto", show_at="/v"), ("low",), "low", [("/v", DROPPED)]),
    ],
)
def test_effort_is_fitted_to_the_model(
    reasoning: Reasoning, efforts: tuple[str, ...], effort: str | None, lost: list[tuple[str, LossKind]]
) -> None:
    target = Target("gpt-x", "openai", Profile(efforts=efforts))
    body, recorded = build_body(request(protocol="responses", reasoning=reasoning), target)
    assert body.get("reasoning_effort") == effort
    assert recorded == lost


def test_a_prefill_of_another_vendor_is_only_history() -> None:
    turns = user(Text("a")), assistant(Text("The answer is"))
    assert losses(request(*turns)) == [("/a", APPROXIMATED)]
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
    silent = SILENT if protocol == "chat" else SILENT | {"ttl"}  # of a breakpoint
    quiet = [
        path
        for path in vanished
        if path[-1] not in silent and not any("/".join(map(str, ("", *path))).startswith(loss) for loss in named)
    ]
    # An assistant's null content beside its calls says nothing either.
    assert quiet == [("messages", 3, "content")]


def test_ids_that_every_step_uses_again_still_find_their_results() -> None:
    steps = [turn for n in "12" for turn in (assistant(CALLS[0]), user(result("a", Text(n))))]
    body, lost = build_body(request(*steps))
    assert [message.get("content") for message in body["messages"]] == [None, "1", None, "2"]
    assert lost == []


def test_a_long_history_of_tools_is_built_in_linear_time() -> None:
    def make_history(steps: int) -> Request:
        ids = [f"c{n}" for n in range(steps)]
        return request(
            *(turn for id in ids for turn in (assistant(ToolCall(id, "f", "{}")), user(result(id, Text("x")))))
        )

    assert_linear_function(lambda history: build(history, OPENAI, Ledger()), make_history, 300)
