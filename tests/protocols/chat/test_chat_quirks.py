"""What is sent to servers with quirks, and which losses are recorded."""

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.framing.sse import Frame
from dragoman.hub.events import CallBlock, Closed, Delta, Ended, Event, Failed, Opened, Started, Stop
from dragoman.hub.failure import Kind
from dragoman.hub.loss import Ledger, LossKind
from dragoman.hub.ports import Issuer
from dragoman.hub.profile import Target
from dragoman.hub.request import (
    Cache,
    Custom,
    Format,
    Function,
    Hosted,
    Pick,
    Request,
    Role,
    Shape,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from dragoman.protocols.chat.build import build
from dragoman.protocols.chat.decode import Decoder
from wire_json import JsonObject

ODD = frozenset({"json_object_schema", "no_required", "text_content", "needs_parameters"})
LOCAL = Target("llama", "local", quirks=ODD)
F = Function("f", "/tools/0")
G = Function("g", "/tools/1")
C = Custom("c", "/tools/2")
SEARCH = Hosted("web_search", {}, "/tools/3")
SCHEMA: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}}


HI = (Turn(Role.USER, (Text("Hi", "/m"),), "/u"),)


def build_body(turns: tuple[Turn, ...] = HI, **settings: object) -> tuple[JsonObject, list[tuple[str, LossKind]]]:
    request = replace(Request("messages", "m", turns), **settings)
    ledger = Ledger()
    body = msgspec.json.decode(build(request, LOCAL, ledger), type=JsonObject)
    return body, [(loss.path, loss.how) for loss in ledger]


def test_a_schema_is_sent_beside_json_object_and_its_name_is_recorded_as_lost() -> None:
    body, lost = build_body(format=Format(Shape.SCHEMA, "/format", name="answer", schema=SCHEMA, strict=True))
    assert body["response_format"] == {"type": "json_object", "schema": SCHEMA}
    assert lost == [("/format", LossKind.APPROXIMATED)]


def test_json_mode_is_the_same_for_such_a_server() -> None:
    assert build_body(format=Format(Shape.JSON, "/format")) == (
        build_body()[0] | {"response_format": {"type": "json_object"}},
        [],
    )


@pytest.mark.parametrize(
    ("tools", "choice", "wire"),
    [
        ((F,), ToolChoice(Pick.REQUIRED, "/t"), {"type": "function", "function": {"name": "f"}}),
        ((C,), ToolChoice(Pick.REQUIRED, "/t"), {"type": "custom", "custom": {"name": "c"}}),
        ((F, G), ToolChoice(Pick.REQUIRED, "/t", allowed=("g",)), {"type": "function", "function": {"name": "g"}}),
        ((F, G), ToolChoice(Pick.AUTO, "/t"), "auto"),
    ],
)
def test_a_call_that_must_be_made_is_requested_by_name_where_one_tool_is_left(
    tools: tuple[Tool, ...], choice: ToolChoice, wire: object
) -> None:
    body, lost = build_body(tools=tools, tool_choice=choice)
    assert body["tool_choice"] == wire
    assert lost == []


def test_a_tool_that_the_vendor_runs_leaves_the_other_one_to_name() -> None:
    body, lost = build_body(tools=(F, SEARCH), tool_choice=ToolChoice(Pick.REQUIRED, "/t"))
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert lost == [("/tools/3", LossKind.DROPPED)]


def test_a_choice_among_several_is_recorded_as_a_preference() -> None:
    body, lost = build_body(tools=(F, G), tool_choice=ToolChoice(Pick.REQUIRED, "/t"))
    assert body["tool_choice"] == "required"
    assert lost == [("/t", LossKind.APPROXIMATED)]


def test_content_is_one_string_and_never_null() -> None:
    marked = Text("a", "/a", cache=Cache("/a/cache_control"))
    body, lost = build_body(
        (
            Turn(Role.USER, (marked, Text("b", "/b")), "/u"),
            Turn(Role.ASSISTANT, (ToolCall("c1", "f", "{}", "/c"),), "/v"),
            Turn(Role.USER, (ToolResult("c1", (Text("r", "/r"), Text("s", "/s")), "/w"),), "/w"),
        )
    )
    messages = msgspec.convert(body["messages"], list[JsonObject])
    assert [message["content"] for message in messages] == ["a\n\nb", "", "r\n\ns"]
    assert lost == [("/a/cache_control", LossKind.DROPPED)]


def test_a_tool_without_parameters_gets_none_by_name() -> None:
    body, lost = build_body(tools=(F,))
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert lost == []


# Replies


def decode_all(*frames: bytes, quirks: frozenset[str] = frozenset({"cut_then_done"})) -> list[Event]:
    decoder = Decoder(Issuer("local", "llama", quirks=quirks), Ledger())
    return [event for data in frames for event in decoder.feed(Frame("", data))] + decoder.finish()


def chunk(delta: bytes, finish: bytes = b"null") -> bytes:
    return b'{"id":"chatcmpl-1","choices":[{"index":0,"finish_reason":%s,"delta":%s}]}' % (finish, delta)


def test_a_stream_that_is_done_without_a_reason_was_cut() -> None:
    text, done = chunk(b'{"content":"The sun"}'), b"[DONE]"
    *_, end = decode_all(text, done)
    assert isinstance(end, Failed)
    assert end.failure.kind is Kind.TRUNCATED
    assert decode_all(text, chunk(b"{}", b'"stop"'), done)[-1] == Ended(Stop.END)
    assert decode_all(text, done, quirks=frozenset())[-1] == Ended(Stop.END), "other servers never give a reason"


def test_a_call_sent_twice_and_named_in_every_piece_is_one_call() -> None:
    def piece(arguments: bytes) -> bytes:
        function = b'{"name":"f","arguments":"%s"}' % arguments
        call = b'[{"index":0,"id":"call_0","type":"function","function":%s}]' % function
        return chunk(b'{"role":null,"content":null,"function_call":%s,"tool_calls":%s}' % (function, call))

    first = chunk(b'{"role":"assistant","content":null,"function_call":null,"tool_calls":null}')
    last = chunk(b'{"content":null,"function_call":null,"tool_calls":null}', b'"tool_calls"')
    events = decode_all(first, piece(b"{"), piece(b"}"), piece(b""), last, b"[DONE]")
    assert events == [
        Started("chatcmpl-1", "llama"),
        Opened(0, CallBlock("call_0", "f")),
        Delta(0, "{"),
        Delta(0, "}"),
        Closed(0),
        Ended(Stop.TOOL),
    ]
