"""The native protocol: the hub's own values over the wire and back, cut anywhere."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.framing.sse import Broken
from dragoman.translate.hub.events import (
    CitationAdded,
    Closed,
    Delta,
    Event,
    Failed,
    HostedBlock,
    OpaqueAdded,
    Opened,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    Citation,
    Custom,
    Document,
    Foreign,
    Function,
    Image,
    Inline,
    Link,
    Pick,
    Reasoning,
    Request,
    Role,
    Sampling,
    Text,
    Thinking,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.echo import PROTOCOL
from dragoman.translate.protocols.echo.build import build, read_request
from dragoman.translate.protocols.echo.decode import Decoder, LineFramer, decode_whole
from dragoman.translate.protocols.echo.errors import read_failure
from laws import assert_any_cut_agrees, assert_linear, assert_total, run
from replies import END, START, call, text
from request_fields import RECORDS

ISSUER = Issuer("echo", "echo-think")
SEAL = Opaque("echo", OpaqueForm.SIGNATURE, "c2lnbmVk", "echo-think")
EVENTS: list[Event] = [
    START,
    Opened(0, ThinkingBlock()),
    Delta(0, "hm… 🙂"),
    OpaqueAdded(0, SEAL),
    Closed(0),
    *text(1, "one\n", "two"),
    *call(2, "f", '{"a":', "1}"),
    Opened(3, HostedBlock("h", "web_search", {"query": "x"}, (Citation(url="https://a.example"),))),
    Closed(3),
    Opened(4, TextBlock()),
    Delta(4, "b", msgspec.Raw(b'[{"token":"b","logprob":-0.5}]')),
    CitationAdded(4, Citation(title="t", start=0, end=1)),
    Closed(4),
    UsageReported(Usage(3, 4)),
    END,
]
STREAM = b"".join(msgspec.json.encode(event) + b"\n" for event in EVENTS)


class Reader:
    """Framer and decoder as one machine."""

    def __init__(self) -> None:
        self._framer = LineFramer(max_line_bytes=4096)
        self._decoder = Decoder(ISSUER, Ledger())

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for frame in self._framer.feed(chunk) for event in self._decoder.feed(frame)]

    def finish(self) -> list[Event]:
        return [*self._decoder.finish()]


def failure_of(events: list[Event]) -> Kind:
    assert isinstance(events[-1], Failed)
    return events[-1].failure.kind


def test_every_event_survives_the_wire() -> None:
    assert msgspec.json.encode(run(Reader(), [STREAM])) == msgspec.json.encode(EVENTS)


def test_any_cut_of_the_stream_agrees() -> None:
    assert_any_cut_agrees(Reader, STREAM, fold=msgspec.json.encode)


def test_a_whole_reply_means_what_the_stream_means() -> None:
    body = msgspec.json.encode(EVENTS)
    assert msgspec.json.encode(decode_whole(body, ISSUER, Ledger())) == msgspec.json.encode(run(Reader(), [STREAM]))


def test_opaque_reasoning_is_stamped_with_who_answered() -> None:
    events = run(Decoder(Issuer("mine", "m"), Ledger()), [msgspec.json.encode(OpaqueAdded(0, SEAL))])
    assert events[0] == OpaqueAdded(0, Opaque("mine", OpaqueForm.SIGNATURE, "c2lnbmVk", "m"))


def test_a_stream_without_its_end_is_truncated_even_inside_a_line() -> None:
    assert failure_of(run(Reader(), [STREAM[: STREAM.rindex(b'{"type":"ended"')]])) is Kind.TRUNCATED
    assert failure_of(run(Reader(), [STREAM[:-5]])) is Kind.TRUNCATED
    assert failure_of(decode_whole(msgspec.json.encode(EVENTS[:-1]), ISSUER, Ledger())) is Kind.TRUNCATED


def test_what_is_no_event_is_corrupt_and_ends_the_reply() -> None:
    for junk in (b"<html>\n", b'{"type":"unheard"}\n', b'{"type":"delta","block":"x"}\n', b"[" * 4000 + b"\n"):
        events = run(Reader(), [msgspec.json.encode(START) + b"\n" + junk + msgspec.json.encode(END) + b"\n"])
        assert events[0] == START
        assert failure_of(events) is Kind.CORRUPT
        assert len(events) == 2
    assert failure_of(decode_whole(b"<html>", ISSUER, Ledger())) is Kind.CORRUPT


def test_what_follows_the_end_is_ignored() -> None:
    assert len(run(Reader(), [STREAM, STREAM])) == len(EVENTS)


def test_an_endless_line_is_broken_once_and_after_the_good_lines() -> None:
    framer = LineFramer(max_line_bytes=10)
    assert run(framer, [b"one\n\ntwo\n", b"x" * 6, b"x" * 6 + b"\nthree\n"]) == [
        b"one",
        b"two",
        Broken("a line is longer than 10 bytes"),
    ]


@settings(max_examples=50)
@given(st.binary(max_size=40))
def test_any_bytes_end_in_an_end(junk: bytes) -> None:
    assert_total(Reader, junk)
    assert isinstance(run(Reader(), [junk])[-1], Failed)


def test_a_line_in_many_pieces_costs_linear_time() -> None:
    assert_linear(LineFramer, b"x", 4_000)


SEEN = (Text("hi"), Image(Inline("image/png", "AA==")), Document("plain"), Document(Link("https://a.example/b.pdf")))
DONE = (Thinking("hm", opaque=SEAL), ToolCall("c", "f", '{"a":1}'), ToolCall("d", "p", "raw", custom=True))
REQUEST = Request(
    "messages",
    "asked-for",
    (
        Turn(Role.SYSTEM, (Text("be brief"),)),
        Turn(Role.USER, SEEN),
        Turn(Role.ASSISTANT, DONE),
        Turn(Role.USER, (ToolResult("c", (Text("1"),), is_error=True), ToolResult("d", (), custom=True))),
    ),
    tools=(Function("f", parameters={"type": "object"}, namespace="n"), Custom("p")),
    tool_choice=ToolChoice(Pick.NAMED, "/tool_choice", name="f", namespace="n"),
    max_tokens=5,
    sampling=Sampling(stop=("END",)),
    reasoning=Reasoning("/effort", effort="high"),
    stream=True,
    where={"stop": "/stop_sequences"},
    raw={"model": "asked-for"},
)


def test_a_request_arrives_as_intended_with_the_target_model() -> None:
    ledger = Ledger()
    sent = read_request(build(REQUEST, Target("echo-think", "echo"), ledger))
    assert sent == msgspec.structs.replace(REQUEST, model="echo-think", where={}, raw={})
    assert len(ledger) == 0


def test_every_field_of_a_request_arrives() -> None:
    others = {name for name in Request.__struct_fields__ if name not in RECORDS}
    fields = others.union(*(record.__struct_fields__ for record in RECORDS.values()))
    assert msgspec.json.decode(build(REQUEST, Target("m", "echo"), Ledger())).keys() == fields


def test_what_only_the_clients_protocol_has_is_recorded_as_lost() -> None:
    turn = Turn(
        Role.USER, (Text("hi", at="/messages/0/content/0"), Foreign("search_result", {}, at="/messages/0/content/1"))
    )
    request = Request("messages", "m", (turn,), ext={"container": "c1"})
    ledger = Ledger()
    build(request, Target("echo", "echo"), ledger)
    assert [loss.path for loss in ledger] == ["/container", "/messages/0/content/1"]


def test_reasoning_of_another_issuer_never_leaves() -> None:
    foreign = Opaque("anthropic", OpaqueForm.SIGNATURE, "other-vendors-signature")
    turn = Turn(Role.ASSISTANT, (Thinking("secret thoughts", at="/messages/1/content/0", opaque=foreign), Text("so")))
    ledger = Ledger()
    body = build(Request("messages", "m", (turn,)), Target("echo", "echo"), ledger)
    assert b"other-vendors-signature" not in body
    assert b"secret thoughts" not in body
    assert [loss.path for loss in ledger] == ["/messages/1/content/0"]


def test_more_than_one_choice_is_refused_by_name() -> None:
    request = Request("chat", "m", (), sampling=Sampling(n=2), where={"n": "/n"})
    with pytest.raises(RequestError) as refused:
        build(request, Target("echo", "echo"), Ledger())
    assert refused.value.failure.at == "/n"


def test_an_error_body_is_read_and_an_unknown_one_is_read_by_its_status() -> None:
    decoded = Failure(Kind.CONTEXT_TOO_LONG, "prompt is too long", code="x")
    assert read_failure(400, {}, msgspec.json.encode(decoded)) == Failure(
        Kind.CONTEXT_TOO_LONG, "prompt is too long", 400, "x"
    )
    limited = read_failure(429, {b"retry-after": b"3"}, b"<html>busy</html>")
    assert (limited.kind, limited.status, limited.retry_after) == (Kind.RATE_LIMITED, 429, 3.0)
    assert read_failure(500, {b"retry-after": b"soon"}, b"").kind is Kind.UPSTREAM
    assert read_failure(500, {}, b'{"kind": "upstream", "message": "\xff"}').kind is Kind.UPSTREAM  # not UTF-8


def test_no_client_uses_the_native_protocol() -> None:
    assert PROTOCOL.client is None
    assert PROTOCOL.upstream is not None
