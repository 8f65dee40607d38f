"""Passes over turns: merging, tagging, flattening, dropping reasoning, linked media."""

import msgspec

from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import ToolLimits
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    Document,
    Function,
    Hosted,
    Image,
    Inline,
    Link,
    Part,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.translate.passes.adapt_tools import ToolId, assign_names
from dragoman.translate.passes.adapt_turns import (
    digest_reasoning,
    drop_reasoning,
    drop_rejected,
    find_links,
    inline_links,
    tag_later_instructions,
)
from dragoman.translate.passes.pair_results import flatten_tools, merge_turns
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.protocols.kiro.build_tools import DOCS_HEADING, move_tool_docs
from narrowing import expect
from request_fields import set_fields
from tables import each_row
from wire_json import Json, JsonObject

HI = Turn(Role.USER, (Text("hi"),), "/0")
SYSTEM = Turn(Role.SYSTEM, (Text("S"),), "/s")


def make_request(*turns: Turn, **fields: object) -> Request:
    return set_fields(Request("chat", "m", turns), **fields)


def list_losses(ledger: Ledger) -> list[tuple[str, LossKind]]:
    return [(loss.path, loss.how) for loss in ledger]


def test_a_request_that_needs_no_change_comes_back_itself() -> None:
    turns = (SYSTEM, HI, Turn(Role.ASSISTANT, (Text("A"),)), HI)
    assert merge_turns(turns, Ledger()) == turns
    opening = make_request(SYSTEM, Turn(Role.DEVELOPER, (Text("D"),)), HI)
    assert tag_later_instructions(opening, Ledger()) is opening
    plain = make_request(HI, Turn(Role.ASSISTANT, ()))
    assert flatten_tools(plain, Ledger()) is plain
    assert drop_reasoning(plain, Ledger()) is plain
    short = make_request(HI, tools=(Function("f", description="x" * 10), Function("g"), Hosted("web_search", {})))
    assert move_tool_docs(short, 10, Ledger()) is short
    assert inline_links(LINKING, {}) is LINKING
    assert inline_links(LINKING, {"https://a.example/other": Inline("image/png", "")}) is LINKING


def test_turns_of_one_role_are_joined_in_order() -> None:
    ledger = Ledger()
    other = Turn(Role.USER, (Text("there"),), "/1", {"name": "ann"})
    [turn] = merge_turns((HI, other), ledger)
    assert turn == Turn(Role.USER, (Text("hi"), Text("there")), "/0")
    assert list_losses(ledger) == [("/1/name", LossKind.DROPPED)]


def test_later_instructions_are_tagged_in_place() -> None:
    ledger = Ledger()
    found = tag_later_instructions(make_request(SYSTEM, HI, SYSTEM, HI), ledger).turns
    assert found[0] is SYSTEM
    assert found[2] == Turn(Role.USER, (Text("<system>\nS\n</system>"),), "/s")
    assert list_losses(ledger) == [("/s", LossKind.APPROXIMATED)]


def test_calls_and_results_without_tools_become_text() -> None:
    ledger = Ledger()
    image = Image(Inline("image/png", "AA=="))
    call = Turn(Role.ASSISTANT, (Text("I look."), ToolCall("c", "look", '{"at":1}', "/c")))
    results = Turn(Role.USER, (ToolResult("c", (Text("seen"), image), "/r"), ToolResult("x", (), "/x", is_error=True)))
    found = flatten_tools(make_request(HI, call, results), ledger).turns
    assert all(isinstance(part, Text | Image) for turn in found for part in turn.parts)
    call_text = expect(Text, found[1].parts[1]).text
    assert "look" in call_text
    assert '{"at":1}' in call_text
    assert "look" in expect(Text, found[2].parts[0]).text
    assert found[2].parts[1:3] == (Text("seen"), image)
    assert "Error" in expect(Text, found[2].parts[3]).text
    assert {"/c", "/r", "/x"} <= {path for path, how in list_losses(ledger) if how is LossKind.APPROXIMATED}


def test_reasoning_is_dropped_and_text_stays() -> None:
    thinking = Thinking("hm")
    turns = (HI, Turn(Role.ASSISTANT, (thinking, Text("A"))), Turn(Role.ASSISTANT, (thinking,)), Turn(Role.USER, ()))
    found = drop_reasoning(make_request(*turns), Ledger()).turns
    assert found == (HI, Turn(Role.ASSISTANT, (Text("A"),)), Turn(Role.USER, ()))


def test_only_rejected_values_are_dropped_and_newer_reasoning_stays() -> None:
    ledger = Ledger()
    old = Thinking("hm", "/old", Opaque("anthropic", OpaqueForm.SIGNATURE, "c2VhbA=="))
    new = Thinking("so", "/new", Opaque("anthropic", OpaqueForm.SIGNATURE, "bmV3"))
    plain = Thinking("no seal", "/plain")
    first = make_request(HI, Turn(Role.ASSISTANT, (old, plain, Text("A"))))
    rejected = digest_reasoning(first)
    assert [len(digest) for digest in rejected] == [8]
    later = make_request(*first.turns, Turn(Role.ASSISTANT, (old,)), Turn(Role.ASSISTANT, (new, Text("B"))))
    found = drop_rejected(later, ledger, rejected).turns
    assert found == (HI, Turn(Role.ASSISTANT, (plain, Text("A"))), Turn(Role.ASSISTANT, (new, Text("B"))))
    assert list_losses(ledger) == [("/old", LossKind.DROPPED)]
    assert drop_rejected(make_request(HI), ledger, rejected).turns == (HI,)


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


AUTOMATIC = {"type": "ephemeral", "ttl": "1h"}
KEPT = {"mode": "explicit", "ttl": "12h"}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}}


def make_tool_result(content: object) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": content}]}


def build_body(
    target: str, *messages: object, quirks: frozenset[str] = frozenset(), **fields: object
) -> tuple[JsonObject, dict[str, LossKind]]:
    """The body for an upstream, and the losses of the request."""
    client, upstream = PROTOCOLS["messages"].client, PROTOCOLS[target].upstream
    assert client is not None
    assert upstream is not None
    body = {"model": "m", "max_tokens": 100, "cache_control": AUTOMATIC, "messages": messages, **fields}
    ledger = Ledger()
    request = client.parse(msgspec.json.encode(body), ledger)
    sent = upstream.build(request, Target("vendor-model", "vendor", quirks=quirks), ledger)
    return msgspec.json.decode(sent), {loss.path: loss.how for loss in ledger}


def contents(body: JsonObject) -> list[Json]:
    """Return the text of each message or item, in order."""
    turns = body.get("messages") or body["input"]
    return [item.get("content", item.get("output")) for item in turns]


@each_row("target", ["chat", "responses", "gemini", "kiro"])
def test_upstreams_that_find_prefixes_themselves_need_no_breakpoint(target: str) -> None:
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "5m"}}
    body, lost = build_body(target, {"role": "user", "content": [marked]})
    assert b"cache" not in msgspec.json.encode(body)
    assert [path for path in lost if "cache" in path] == []


def test_its_own_protocol_keeps_it_word_for_word() -> None:
    setting = {**AUTOMATIC, "scope": "x"}
    body, lost = build_body("messages", {"role": "user", "content": "a"}, cache_control=setting)
    assert body["cache_control"] == setting
    assert (contents(body), lost) == (["a"], {})
    unheard = {"type": "eternal", "ttl": "9y"}
    assert (
        build_body("messages", {"role": "user", "content": "a"}, cache_control=unheard)[0]["cache_control"] == unheard
    )


def test_with_four_breakpoints_of_its_own_the_first_one_goes() -> None:
    marked = [{"type": "text", "text": str(n), "cache_control": {"type": "ephemeral"}} for n in range(4)]
    body, lost = build_body("messages", {"role": "user", "content": marked})
    assert ["cache_control" in block for block in contents(body)[0]] == [False, True, True, True]
    assert lost == {"/messages/0/content/0/cache_control": LossKind.DROPPED}


PNG = "https://a.example/a.png"
PDF = "https://a.example/b.pdf"
LINKING = Request(
    "responses",
    "m",
    (
        Turn(Role.USER, (Text("see"), Image(Link(PNG), detail="low"), Document(Link(PDF), title="b.pdf"))),
        Turn(Role.USER, (ToolResult("c", (Image(Link(PNG)), Text("x"))), Image(Inline("image/png", "AA==")))),
    ),
)


def is_document(part: Part) -> bool:
    return isinstance(part, Document)


def test_each_link_to_fetch_is_listed_once() -> None:
    assert find_links(LINKING, lambda part: True) == [PNG, PDF]
    assert find_links(LINKING, is_document) == [PDF]


def test_fetched_links_are_replaced_wherever_they_stand() -> None:
    image = Inline("image/png", "iVBO")
    found = inline_links(LINKING, {PNG: image})
    assert found.turns[0].parts == (Text("see"), Image(image, detail="low"), Document(Link(PDF), title="b.pdf"))
    assert found.turns[1].parts[0] == ToolResult("c", (Image(image), Text("x")))
    assert found.turns[1].parts[1] is LINKING.turns[1].parts[1]
