"""Echo repeats, thinks and calls tools, in pieces like any upstream."""

import asyncio
import base64

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config.settings import ProviderConfig
from dragoman.net.client import ConnectionLost, HttpClient, OutgoingRequest, SizeLimitExceeded, UpstreamTimeout
from dragoman.translate.hub.events import (
    CallBlock,
    Delta,
    Ended,
    OpaqueAdded,
    Opened,
    Started,
    Stop,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.request import (
    Custom,
    Document,
    Format,
    Function,
    Hosted,
    Image,
    Inline,
    Link,
    Pick,
    Reasoning,
    Request,
    Role,
    Shape,
    Switch,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from dragoman.translate.hub.usage import Usage, UsageSource
from dragoman.translate.protocols.echo import PROTOCOL
from dragoman.upstreams import Surroundings
from dragoman.upstreams.echo.provider import MODELS, Echo, make_echo, split_words, write_reply
from dragoman.upstreams.echo.request import make_example
from echoing import calls_of, make_counter, make_request, read_echo, send_request, text_of
from narrowing import expect, present

WEATHER = Function(
    "get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
)
TIME = Function("get_time")
PATCH = Custom("apply_patch")


# Repeating


@pytest.mark.parametrize("stream", [False, True])
def test_the_last_user_text_is_repeated_and_counted(stream: bool) -> None:
    turns = (
        Turn(Role.SYSTEM, (Text("be brief"),)),
        Turn(Role.USER, (Text("first"),)),
        Turn(Role.ASSISTANT, (Text("first"),)),
        Turn(Role.USER, (Text("grüß dich,  👩‍👩‍👧\n schöne Welt "),)),
    )
    reply = read_echo(Request("chat", "echo", turns, stream=stream))
    assert text_of(reply) == "grüß dich,  👩‍👩‍👧\n schöne Welt "
    assert reply.end == Ended(Stop.END)
    assert reply.usage == Usage(input=2 + 1 + 1 + 5, output=5, source=UsageSource.REPORTED)


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_any_text_comes_back_word_by_word_and_whole(text: str) -> None:
    pieces = split_words(text)
    assert "".join(pieces) == text
    assert all(len(piece.split()) <= 1 for piece in pieces)


async def test_a_stream_comes_one_word_at_a_time() -> None:
    answer = await send_request(make_request(Text("one two three"), stream=True), word_s=0.001)
    pieces = [chunk for _ in range(5) if (chunk := await answer.chunk(1.0))]
    assert [piece.count(b'"type":"delta"') for piece in pieces] == [1, 1, 1, 0]


def test_images_and_files_are_described_in_place() -> None:
    png = Inline("image/png", base64.b64encode(b"x" * 68).decode())
    reply = read_echo(
        make_request(Text("see"), Image(png), Image(Link("https://a.example/a.png")), Document("text", title="a.txt"))
    )
    assert (
        text_of(reply) == "see\n[image image/png, 68 bytes]\n[image https://a.example/a.png]\n[document a.txt, 4 bytes]"
    )


def test_an_empty_message_gets_a_reply() -> None:
    assert text_of(read_echo(Request("chat", "echo", ()))) == "Nothing was said."


def test_max_tokens_cut_the_reply_by_words() -> None:
    reply = read_echo(make_request(Text("one two three"), max_tokens=2))
    assert text_of(reply) == "one two "
    assert reply.end == Ended(Stop.LENGTH)
    assert read_echo(make_request(Text("one two"), max_tokens=2)).end == Ended(Stop.END)
    assert read_echo(make_request(Text("one"), max_tokens=0)).pieces == ()


def test_the_first_stop_sequence_ends_the_reply_before_itself() -> None:
    reply = read_echo(make_request(Text("one STOP two END"), stop=("END", "STOP")))
    assert text_of(reply) == "one "
    assert reply.end == Ended(Stop.STOP_SEQUENCE, "STOP")


def test_a_requested_format_is_used() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert text_of(read_echo(make_request(Text("hi"), format=Format(Shape.SCHEMA, "/f", schema=schema)))) == '{"n":0}'
    assert text_of(read_echo(make_request(Text("hi"), format=Format(Shape.JSON, "/f")))) == '{"echo":"hi"}'
    assert (
        text_of(read_echo(make_request(Text('{"n":9}'), format=Format(Shape.SCHEMA, "/f", schema=schema)))) == '{"n":9}'
    )
    assert text_of(read_echo(make_request(Text("hi"), format=Format(Shape.TEXT, "/f")))) == "hi"


# Thinking


@pytest.mark.parametrize(
    ("reasoning", "thinks"),
    [
        (None, False),
        (Reasoning("/r", effort="low"), True),
        (Reasoning("/r", effort="none"), False),
        (Reasoning("/r", budget=1024), True),
        (Reasoning("/r", switch=Switch.ADAPTIVE), True),
        (Reasoning("/r", switch=Switch.DISABLED, effort="high"), False),
        (Reasoning("/r", show="auto"), False),
    ],
)
def test_echo_thinks_if_requested(reasoning: Reasoning | None, thinks: bool) -> None:
    reply = read_echo(make_request(Text("two words"), reasoning=reasoning))
    assert isinstance(reply.pieces[0].what, ThinkingBlock) is thinks
    assert text_of(reply) == "two words"


def test_thoughts_are_signed_and_counted_as_reasoning() -> None:
    reply = read_echo(make_request(Text("two words"), model="echo-think"))
    thoughts = reply.pieces[0]
    assert thoughts.text == "The user said: two words"
    assert thoughts.opaque is not None
    assert (thoughts.opaque.issuer, thoughts.opaque.model) == ("echo", "echo-think")
    assert reply.usage == Usage(input=2, output=7, reasoning=5)


def test_hidden_thoughts_have_a_signature_and_no_text() -> None:
    reply = read_echo(make_request(Text("hi"), reasoning=Reasoning("/r", effort="low", show="omitted")))
    assert reply.pieces[0].text == ""
    assert reply.pieces[0].opaque is not None


# Tools


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_with_the_arguments_given(stream: bool) -> None:
    reply = read_echo(
        make_request(Text('call get_weather {"city": "Paris, \\"FR\\""}'), tools=(TIME, WEATHER), stream=stream)
    )
    assert calls_of(reply) == [("get_weather", '{"city": "Paris, \\"FR\\""}')]
    assert reply.end == Ended(Stop.TOOL)


def test_without_arguments_the_schema_gives_them() -> None:
    assert calls_of(read_echo(make_request(Text("Please call get_weather."), tools=(WEATHER,)))) == [
        ("get_weather", '{"city":"echo"}')
    ]
    assert calls_of(read_echo(make_request(Text("call get_time {broken"), tools=(TIME,)))) == [("get_time", "{}")]


def test_several_lines_make_parallel_calls_unless_that_is_forbidden() -> None:
    text = Text('call get_weather {"city":"A"}\ncall get_weather {"city":"B"}')
    reply = read_echo(make_request(text, tools=(WEATHER,)))
    assert calls_of(reply) == [("get_weather", '{"city":"A"}'), ("get_weather", '{"city":"B"}')]
    assert len({expect(CallBlock, piece.what).id for piece in reply.pieces}) == 2
    assert len(calls_of(read_echo(make_request(text, tools=(WEATHER,), parallel=False)))) == 1


def test_a_custom_tool_gets_raw_text() -> None:
    reply = read_echo(make_request(Text("call apply_patch *** Begin Patch {}"), tools=(PATCH,)))
    assert calls_of(reply) == [("apply_patch", "*** Begin Patch {}")]
    assert expect(CallBlock, reply.pieces[0].what).custom


def test_a_namespace_comes_back_with_the_call() -> None:
    reply = read_echo(make_request(Text("call fs__read"), tools=(Function("read", namespace="fs"),)))
    assert isinstance(reply.pieces[0].what, CallBlock)
    assert (reply.pieces[0].what.name, reply.pieces[0].what.namespace) == ("read", "fs")


def test_tools_that_are_not_offered_are_not_called() -> None:
    assert text_of(read_echo(make_request(Text("call get_weather"), tools=(TIME,)))) == "call get_weather"
    assert (
        text_of(read_echo(make_request(Text("call web_search"), tools=(Hosted("web_search", {}),))))
        == "call web_search"
    )


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        (ToolChoice(Pick.AUTO, "/c"), []),
        (ToolChoice(Pick.REQUIRED, "/c"), ["get_time"]),
        (ToolChoice(Pick.REQUIRED, "/c", allowed=("get_weather",)), ["get_weather"]),
        (ToolChoice(Pick.NAMED, "/c", name="get_weather"), ["get_weather"]),
        (ToolChoice(Pick.NONE, "/c"), []),
    ],
)
def test_the_tool_choice_is_obeyed(choice: ToolChoice, called: list[str]) -> None:
    prompt = "call get_time" if choice.pick is Pick.NONE else "hi"
    reply = read_echo(make_request(Text(prompt), tools=(TIME, WEATHER), tool_choice=choice))
    assert [name for name, _ in calls_of(reply)] == called


def test_tool_results_are_repeated() -> None:
    turns = (
        Turn(Role.USER, (Text("call both"),)),
        Turn(Role.ASSISTANT, (ToolCall("a", "get_time", "{}"), ToolCall("b", "get_weather", "{}"))),
        Turn(Role.USER, (ToolResult("a", (Text("noon"),)),)),
        Turn(Role.USER, (ToolResult("b", (Text("no such city"),), is_error=True),)),
    )
    choice = ToolChoice(Pick.REQUIRED, "/c")
    reply = read_echo(Request("chat", "echo", turns, tools=(TIME, WEATHER), tool_choice=choice))
    assert text_of(reply) == "get_time returned: noon\nget_weather failed: no such city"


def test_a_call_truncated_by_max_tokens_stays_truncated() -> None:
    reply = read_echo(make_request(Text('call get_weather {"city": "Paris"}'), tools=(WEATHER,), max_tokens=1))
    assert calls_of(reply) == [("get_weather", '{"city": ')]
    assert reply.end == Ended(Stop.LENGTH)


# The provider


def test_every_listed_model_replies() -> None:
    provider = make_echo(ProviderConfig(name="echo", kind="echo"), Surroundings(HttpClient().send, {}))
    assert provider.endpoint.protocols == ("echo",)
    assert [model.id for model in provider.catalogue.models] == [name for name, _ in MODELS]
    for name, _ in MODELS:
        answer = asyncio.run(send_request(make_request(Text("hi"), model=name)))
        assert answer.status == 200


def test_the_events_of_a_reply_come_in_order() -> None:
    events = write_reply(make_request(Text("hi"), model="echo-think"), make_counter())
    kinds = [type(event) for event in events if not isinstance(event, Delta)]
    assert kinds[:3] == [Started, Opened, OpaqueAdded]
    assert isinstance(events[-2], UsageReported)
    assert msgspec.json.encode(events[0]).startswith(b'{"type":"started","id":"echo_0","model":"echo-think"')


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_a_status_that_the_protocol_reads(stream: bool) -> None:
    answer = await send_request(make_request(Text("hi"), model="no-such-model", stream=stream))
    body = await answer.read(1 << 20, 1.0)
    failure = present(PROTOCOL.upstream).read_error(answer.status, dict(answer.headers), body)
    assert (answer.status, failure.kind, failure.code) == (404, Kind.NOT_FOUND, "model_not_found")


async def test_a_slow_piece_is_not_lost_after_a_timeout() -> None:
    answer = await send_request(make_request(Text("one"), stream=True), word_s=0.02)
    with pytest.raises(UpstreamTimeout):
        await answer.chunk(0.001)
    assert b'"one"' in await answer.chunk(1.0)


async def test_a_closed_or_oversized_response_fails_like_any_other() -> None:
    answer = await send_request(make_request(Text("one two three")))
    with pytest.raises(SizeLimitExceeded):
        await answer.read(10, 1.0)
    answer.close()
    with pytest.raises(ConnectionLost):
        await answer.chunk(1.0)


def test_an_unreadable_body_is_a_bad_request() -> None:
    answer = asyncio.run(Echo().send(OutgoingRequest("POST", "http://echo.invalid/replies", (), b"{")))
    assert answer.status == 400


# A value of the types that a schema requires


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (None, {}),
        ({}, {}),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
        ({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}, {"a": "x"}),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/n"}},
                "required": ["a"],
                "$defs": {"n": {"const": 7}},
            },
            {"a": 7},
        ),
        ({"type": "array", "items": {"type": "boolean"}}, []),
        ({"type": ["null", "string"]}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "echo"),
        ({"type": "integer"}, 0),
        ({"type": "boolean"}, False),
        ({"allOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}], "type": "object"}, {"a": None}),
    ],
)
def test_an_example_of_a_schema_has_its_types(schema: object, value: object) -> None:
    assert make_example(schema) == value


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert isinstance(make_example(schema), dict)
    assert make_example({"$ref": "#"}) is None
