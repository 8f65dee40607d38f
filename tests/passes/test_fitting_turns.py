"""The small passes over turns: merging, tagging, flattening, dropping thoughts, moving long descriptions."""

from msgspec.structs import replace

from dragoman.hub.loss import Ledger, LossKind
from dragoman.hub.ports import ToolLimits
from dragoman.hub.request import (
    Cache,
    Function,
    Hosted,
    Image,
    Inline,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.passes.adapt_tools import ToolId, assign_names
from dragoman.passes.drop_reasoning import drop_reasoning
from dragoman.passes.pair_results import flatten_tools, merge_turns
from dragoman.passes.tag_instructions import tag_later_instructions
from dragoman.protocols.kiro.build_tools import DOCS_HEADING, move_tool_docs
from narrowing import expect

HI = Turn(Role.USER, (Text("hi"),), "/0")
SYSTEM = Turn(Role.SYSTEM, (Text("S"),), "/s")


def make_request(*turns: Turn, **fields: object) -> Request:
    return replace(Request("chat", "m", turns), **fields)


def list_losses(ledger: Ledger) -> list[tuple[str, LossKind]]:
    return [(loss.path, loss.how) for loss in ledger]


def test_turns_that_alternate_are_not_touched() -> None:
    turns = (SYSTEM, HI, Turn(Role.ASSISTANT, (Text("A"),)), HI)
    assert merge_turns(turns, Ledger()) == turns


def test_turns_of_one_role_are_joined_in_order() -> None:
    ledger = Ledger()
    other = Turn(Role.USER, (Text("there"),), "/1", {"name": "ann"})
    [turn] = merge_turns((HI, other), ledger)
    assert turn == Turn(Role.USER, (Text("hi"), Text("there")), "/0")
    assert list_losses(ledger) == [("/1/name", LossKind.DROPPED)]


def test_opening_instructions_are_not_tagged() -> None:
    request = make_request(SYSTEM, Turn(Role.DEVELOPER, (Text("D"),)), HI)
    assert tag_later_instructions(request, Ledger()) is request


def test_later_instructions_are_tagged_in_place() -> None:
    ledger = Ledger()
    found = tag_later_instructions(make_request(SYSTEM, HI, SYSTEM, HI), ledger).turns
    assert found[0] is SYSTEM
    assert found[2] == Turn(Role.USER, (Text("<system>\nS\n</system>"),), "/s")
    assert list_losses(ledger) == [("/s", LossKind.APPROXIMATED)]


def test_calls_and_results_without_tools_become_text() -> None:
    ledger = Ledger()
    image = Image(Inline("image/png", "AA=="))
    call = Turn(Role.ASSISTANT, (Text("I look."), ToolCall("c", "look", '{"at":1}', "/c", cache=Cache("/cache"))))
    results = Turn(Role.USER, (ToolResult("c", (Text("seen"), image), "/r"), ToolResult("x", (), "/x", is_error=True)))
    found = flatten_tools(make_request(HI, call, results), ledger).turns
    assert all(isinstance(part, Text | Image) for turn in found for part in turn.parts)
    call_text = expect(Text, found[1].parts[1]).text
    assert "look" in call_text
    assert '{"at":1}' in call_text
    assert "look" in expect(Text, found[2].parts[0]).text
    assert found[2].parts[1:3] == (Text("seen"), image)
    assert "Error" in expect(Text, found[2].parts[3]).text
    assert ("/cache", LossKind.DROPPED) in list_losses(ledger)
    assert {"/c", "/r", "/x"} <= {path for path, how in list_losses(ledger) if how is LossKind.APPROXIMATED}


def test_a_request_without_traffic_is_not_flattened() -> None:
    request = make_request(HI)
    assert flatten_tools(request, Ledger()) is request


def test_reasoning_is_dropped_and_text_stays() -> None:
    thinking = Thinking("hm")
    turns = (HI, Turn(Role.ASSISTANT, (thinking, Text("A"))), Turn(Role.ASSISTANT, (thinking,)), Turn(Role.USER, ()))
    found = drop_reasoning(make_request(*turns), Ledger()).turns
    assert found == (HI, Turn(Role.ASSISTANT, (Text("A"),)), Turn(Role.USER, ()))


def test_a_request_without_thoughts_comes_back_itself() -> None:
    request = make_request(HI, Turn(Role.ASSISTANT, ()))
    assert drop_reasoning(request, Ledger()) is request


def test_short_descriptions_stay_where_they_are() -> None:
    request = make_request(HI, tools=(Function("f", description="x" * 10), Function("g"), Hosted("web_search", {})))
    assert move_tool_docs(request, 10, Ledger()) is request


def test_long_descriptions_stand_after_the_instructions() -> None:
    ledger = Ledger()
    long = Function("f", "/tools/0", description="F" * 11, fields_at="/tools/0/function")
    tools = (long, Function("g", "/tools/1", description="short"))
    found = move_tool_docs(make_request(SYSTEM, HI, tools=tools), 10, ledger)
    assert [turn.role for turn in found.turns] == [Role.SYSTEM, Role.SYSTEM, Role.USER]
    assert found.turns[1].parts == (Text(f"{DOCS_HEADING}\n\n## Tool: f\n\n{'F' * 11}"),)
    assert "Tool: f" in (expect(Function, found.tools[0]).description or "")
    assert found.tools[1] is tools[1]
    assert list_losses(ledger) == [("/tools/0/function/description", LossKind.APPROXIMATED)]


def test_a_name_begins_with_a_letter_where_it_must() -> None:
    limits = ToolLimits(custom=False, namespaces=False, name_max=64, letter_first=True)
    tools = [ToolId("1st"), ToolId("_a"), ToolId("fine"), ToolId("9" * 64)]
    names = assign_names(tools, [], limits)
    assert names[ToolId("fine")] == "fine"
    assert all(name[0].isalpha() and len(name) <= 64 for name in names.values())
    assert len(set(names.values())) == len(tools)
    anything = ToolLimits(custom=False, namespaces=False, name_max=64)
    assert assign_names(tools, [], anything)[ToolId("1st")] == "1st"
