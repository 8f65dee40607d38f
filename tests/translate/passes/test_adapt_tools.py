"""Tools fitted to an upstream and raised again in its reply: only what must change changes, and nothing is mixed up."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.hub.events import CallBlock, Closed, Delta, Event, Opened
from dragoman.translate.hub.loss import Ledger, Loss, LossKind
from dragoman.translate.hub.ports import ToolLimits
from dragoman.translate.hub.request import (
    Custom,
    Function,
    Grammar,
    Hosted,
    Pick,
    Request,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from dragoman.translate.passes.adapt_tools import (
    WRAPPED_PARAMETERS,
    ToolId,
    ToolMap,
    adapt_tools,
    assign_names,
    find_reference,
    map_schemas,
)
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.stages.restore_tools import RestoreTools
from laws import run
from narrowing import expect, expect_all
from replies import END, START, join_deltas

CHAT = ToolLimits(custom=True, namespaces=False, name_max=64)
MESSAGES = ToolLimits(custom=False, namespaces=False, name_max=128)
RESPONSES = ToolLimits(custom=True, namespaces=True, name_max=64)
PATCH = '*** Begin Patch\n+é "x" \\ 🙂\n'


def make_request(*tools: Tool, turns: tuple[Turn, ...] = (), choice: ToolChoice | None = None) -> Request:
    return Request("responses", "m", turns or (Turn(Role.USER, (Text("hi"),)),), tools=tools, tool_choice=choice)


def adapt(request: Request, limits: ToolLimits) -> tuple[Request, ToolMap, list[Loss]]:
    ledger = Ledger()
    return *adapt_tools(request, limits, ledger), list(ledger)


def restore(tool_map: ToolMap, *events: Event) -> list[Event]:
    return run(RestoreTools(tool_map), (START, *events, END))[1:-1]


def test_a_request_that_fits_comes_back_itself() -> None:
    call = Turn(Role.ASSISTANT, (ToolCall("c", "f", "{}"),))
    request = make_request(Function("f", deferred=True), Hosted("web_search", {}), turns=(call,))
    found, tool_map, losses = adapt(request, MESSAGES)
    assert found is request
    assert not tool_map
    assert losses == []


def test_custom_tools_and_namespaces_stay_where_the_protocol_has_them() -> None:
    request = make_request(Custom("apply_patch", grammar=Grammar("lark", "start: x")), Function("f", namespace="mcp"))
    found, tool_map, losses = adapt(request, RESPONSES)
    assert found is request
    assert not tool_map.tools
    assert tool_map.kinds == {(None, "apply_patch"): True, ("mcp", "f"): False}
    assert losses == []


def test_a_namespace_is_flattened_everywhere_and_restored_on_the_call() -> None:
    turns = (
        Turn(Role.ASSISTANT, (Text("so"), ToolCall("c1", "read", "{}", namespace="fs"))),
        Turn(Role.USER, (ToolResult("c1", (Text("ok"),)),)),
    )
    choice = ToolChoice(Pick.NAMED, "/tool_choice", name="read", namespace="fs")
    request = make_request(
        Function("read", namespace="fs", description="d"), Function("read"), turns=turns, choice=choice
    )
    found, tool_map, losses = adapt(request, CHAT)
    assert found.tools == (Function("fs__read", description="d"), Function("read"))
    assert found.turns[0].parts[1] == ToolCall("c1", "fs__read", "{}")
    assert found.turns[1] is turns[1]
    assert found.tool_choice == ToolChoice(Pick.NAMED, "/tool_choice", name="fs__read")
    assert losses == []
    out = restore(tool_map, Opened(0, CallBlock("c", "fs__read")), Opened(1, CallBlock("d", "read")))
    assert out == [Opened(0, CallBlock("c", "read", namespace="fs")), Opened(1, CallBlock("d", "read"))]


def test_names_that_flatten_to_the_same_stay_apart() -> None:
    tools = (Function("b__c", namespace="a"), Function("c", namespace="a__b"), Function("a__b__c"))
    found, tool_map, _ = adapt(make_request(*tools), CHAT)
    names = [tool.name for tool in found.tools if isinstance(tool, Function)]
    assert names[2] == "a__b__c"
    assert len(set(names)) == 3
    for name, tool in zip(names[:2], tools[:2], strict=True):
        (opened,) = restore(tool_map, Opened(0, CallBlock("c", name)))
        assert opened == Opened(0, CallBlock("c", tool.name, namespace=tool.namespace))


def test_an_allowed_subset_follows_the_new_names() -> None:
    choice = ToolChoice(Pick.REQUIRED, "/tool_choice", allowed=("get.time", "plain"))
    found, _, _ = adapt(make_request(Function("get.time"), Function("plain"), choice=choice), MESSAGES)
    assert found.tool_choice is not None
    assert found.tool_choice.allowed == (expect(Function, found.tools[0]).name, "plain")


def test_a_name_that_is_too_long_or_foreign_gets_the_same_alias_each_time() -> None:
    long = "x" * 70
    first, tool_map, _ = adapt(make_request(Function(long), Function("wetter.für-heute")), CHAT)
    again, _, _ = adapt(make_request(Function("other"), Function("wetter.für-heute"), Function(long)), CHAT)
    names = {tool.name for tool in expect_all(Function, first.tools)}
    assert names <= {tool.name for tool in expect_all(Function, again.tools)}
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert {tool_map.tools[name].name for name in names} == {long, "wetter.für-heute"}


def test_an_alias_gives_way_to_a_tool_that_bears_its_name() -> None:
    (alias,) = assign_names([ToolId("a.b")], [], CHAT).values()
    names = assign_names([ToolId("a.b"), ToolId(alias)], [], CHAT)
    assert names[ToolId(alias)] == alias
    assert names[ToolId("a.b")] != alias


def test_a_name_of_the_history_never_takes_that_of_an_offered_tool() -> None:
    names = assign_names([ToolId("b", "a")], [ToolId("a__b")], CHAT)
    assert names[ToolId("b", "a")] == "a__b"
    assert names[ToolId("a__b")] != "a__b"


NAMES = st.text("ab_.é", min_size=0, max_size=6)
IDS = st.lists(st.builds(ToolId, NAMES, st.none() | NAMES, st.booleans()), max_size=12)


@settings(max_examples=100)
@given(IDS, IDS, st.booleans())
def test_no_two_tools_ever_share_a_name(offered: list[ToolId], remembered: list[ToolId], flat: bool) -> None:
    limits = ToolLimits(custom=False, namespaces=not flat, name_max=12)
    names = assign_names(offered, remembered, limits)
    assert set(names) == {*offered, *remembered}
    places = [(None if flat else tool.namespace, name) for tool, name in names.items()]
    assert len(set(places)) == len(places)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,12}", name) for name in names.values())


def test_a_custom_tool_becomes_a_function_with_one_string_and_is_noted() -> None:
    turns = (
        Turn(Role.ASSISTANT, (ToolCall("c1", "apply_patch", PATCH, custom=True),)),
        Turn(Role.USER, (ToolResult("c1", (Text("done"),), custom=True),)),
    )
    grammar = Grammar("lark", "start: begin_patch")
    choice = ToolChoice(Pick.NAMED, "/tool_choice", name="apply_patch", custom=True)
    request = make_request(
        Custom("apply_patch", at="/tools/0", description="Edits files.", grammar=grammar),
        Custom("say", at="/tools/1"),
        turns=turns,
        choice=choice,
    )
    found, tool_map, losses = adapt(request, MESSAGES)
    patch, say = found.tools
    assert patch == Function(
        "apply_patch",
        at="/tools/0",
        description="Edits files.\n\nThe input must match this lark grammar:\nstart: begin_patch",
        parameters=WRAPPED_PARAMETERS,
    )
    assert isinstance(say, Function)
    assert found.turns[0].parts == (
        ToolCall("c1", "apply_patch", '{"input":"*** Begin Patch\\n+é \\"x\\" \\\\ 🙂\\n"}'),
    )
    assert found.turns[1].parts == (ToolResult("c1", (Text("done"),)),)
    assert found.tool_choice == ToolChoice(Pick.NAMED, "/tool_choice", name="apply_patch")
    assert [(loss.path, loss.how) for loss in losses] == [
        ("/tools/0/format", LossKind.APPROXIMATED),
        ("/tools/1", LossKind.APPROXIMATED),
    ]
    assert tool_map.wrapped == {"apply_patch", "say"}


WRAPPED = ToolMap({"apply_patch": ToolId("apply_patch", custom=True)}, frozenset({"apply_patch"}))


def test_interleaved_wrapped_calls_are_unwrapped_apart() -> None:
    out = restore(
        WRAPPED,
        Opened(0, CallBlock("c", "apply_patch")),
        Opened(1, CallBlock("d", "apply_patch")),
        Delta(0, '{"input":"a'),
        Delta(1, '{"input":"x'),
        Delta(0, 'b"}'),
        Closed(0),
        Delta(1, 'y"}'),
        Closed(1),
    )
    assert [event for event in join_deltas(out) if isinstance(event, Delta)] == [
        Delta(0, "a"),
        Delta(1, "x"),
        Delta(0, "b"),
        Delta(1, "y"),
    ]


def test_lowering_and_raising_a_call_is_the_identity() -> None:
    request = make_request(Custom("näme with spaces", namespace="a.b"), Function("x" * 200, namespace="n"))
    found, tool_map, _ = adapt(request, MESSAGES)
    for tool, original in zip(expect_all(Function, found.tools), request.tools, strict=True):
        assert isinstance(original, Custom | Function)
        (opened,) = restore(tool_map, Opened(0, CallBlock("c", tool.name)))
        custom = isinstance(original, Custom)
        assert opened == Opened(0, CallBlock("c", original.name, custom=custom, namespace=original.namespace))


BODY = b"""{"model": "m", "messages": [{"role": "user", "content": "Go on."}], "tools": [
{"type": "function", "function": {"name": "f", "description": "plain"}},
{"type": "custom", "custom": {"name": "p", "description": "freeform"}}]}"""


def test_a_wrapped_tool_is_still_found_where_it_was_freeform() -> None:
    client = PROTOCOLS["chat"].client
    assert client is not None
    request = client.parse(BODY, Ledger())
    lowered, _ = adapt_tools(request, ToolLimits(custom=False, namespaces=False, name_max=64), Ledger())
    pointers = [tool.pointer("description") for tool in lowered.tools if isinstance(tool, Function)]
    assert pointers == ["/tools/0/function/description", "/tools/1/custom/description"]


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#/$defs/a~1b", {"type": "string"}),
        ("#/$defs/a%7E1b", {"type": "string"}),
        ("#/anyOf/1", {"type": "null"}),
        ("#/anyOf/2", None),
        (f"#/anyOf/{'9' * 5000}", None),
        ("#/anyOf/1/type/none", None),
        ("#anchor", None),
        ("https://example.com/schema", None),
        (7, None),
    ],
)
def test_a_reference_is_found_within_its_schema(reference: object, found: object) -> None:
    schema = {"$defs": {"a/b": {"type": "string"}}, "anyOf": [{}, {"type": "null"}]}
    assert find_reference(reference, schema) == found
    assert find_reference("#", schema) is schema


def test_schemas_are_changed_where_a_keyword_holds_them_and_nowhere_else() -> None:
    def mark(schema: object) -> object:
        return ["changed", schema]

    assert map_schemas("properties", {"enum": 1}, mark) == {"enum": ["changed", 1]}
    assert map_schemas("anyOf", [1], mark) == [["changed", 1]]
    assert map_schemas("items", [1], mark) == [["changed", 1]]
    assert map_schemas("items", {}, mark) == ["changed", {}]
    assert map_schemas("enum", [1], mark) == [1]
    assert map_schemas("properties", 1, mark) == 1
