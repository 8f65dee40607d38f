"""Relayed replies: held while another target may answer, then passed on, with nothing changed but our secrets."""

import pytest

from dragoman.net.headers import Headers
from dragoman.proxy.relay import prepare_relayed
from dragoman.proxy.replies.relayed import EMPTY, HELD_BYTES, RelayedReplies, RelayedReply, RelayedWriter
from dragoman.proxy.step import Ask, Completed
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.upstreams.routing import Route
from narrowing import present
from proxy.in_memory import MemoryWire, make_provider, make_sink
from proxy.relayed import new_relayed_call
from proxy.rigs import make_watch

SECRET = b"sk-0123456789abcdef"
JSON, EVENTS, SOUND = b"application/json", b"text/event-stream", b"audio/mpeg"
EVENT, LAST = b'data: {"choices":[{"text":"Hi"}]}\n\n', b"data: [DONE]\n\n"
BROKEN = Failure(Kind.LOST, "the connection broke")


async def begin(content_type: bytes, status: int = 200) -> tuple[MemoryWire, RelayedReply]:
    wire, call = MemoryWire(), new_relayed_call("completions", b"")
    call.take_json(b'{"model":"m"}')
    provider, route = make_provider(key=SECRET), Route("up", "m")
    replies = RelayedReplies(call, RelayedWriter(make_sink(wire)), make_watch)
    replies.begin_turn(Ask(route, provider, 1), await prepare_relayed(call, route, provider))
    assert replies.begin_answer(status, Headers([(b"content-type", content_type)]), is_stream=False)
    assert replies.reads_events(b"")
    return wire, replies.open_stream(b"")


async def test_a_short_document_is_one_write_without_the_gateways_secret() -> None:
    wire, reply = await begin(JSON, status=201)
    for piece in (b'{"echoed":"', SECRET[:7], SECRET[7:], b'"}'):
        assert reply.feed(piece)
        assert not reply.has_begun
    reply.end()
    assert (reply.early_failure, reply.is_over) == (None, True)
    await reply.commit()
    assert (reply.conclude(), wire.written) == (Completed(), b"")
    await reply.finish()
    assert (wire.reply.status, len(wire.writes)) == (201, 1)
    assert wire.reply.body.startswith(b'{"echoed":"')
    assert SECRET not in wire.written


@pytest.mark.parametrize(
    ("content_type", "piece"), [(JSON, b"x" * (HELD_BYTES + 1)), (SOUND, b"RIFF"), (EVENTS, EVENT), (b"", b"")]
)
async def test_a_reply_begins_with_what_must_not_be_held(content_type: bytes, piece: bytes) -> None:
    wire, reply = await begin(content_type)
    begun = piece or b"x" * (HELD_BYTES + 1)
    if content_type in (JSON, b""):
        reply.feed(begun[:-1])
        assert not reply.has_begun
        begun = begun[-1:]
    reply.feed(begun)
    assert reply.has_begun
    await reply.commit()
    assert wire.reply.body.endswith(begun)


async def test_events_that_never_come_are_held_up_to_the_limit() -> None:
    _, reply = await begin(EVENTS)
    reply.feed(b"x" * HELD_BYTES)
    assert not reply.has_begun
    reply.feed(b"x")
    assert reply.has_begun


async def test_a_secret_that_is_cut_over_two_pieces_of_a_stream_is_redacted() -> None:
    wire, reply = await begin(EVENTS)
    reply.feed(EVENT)
    await reply.commit()
    for piece in (b"data: " + SECRET[:9], SECRET[9:] + b"\n\n", LAST):
        assert reply.feed(piece)
    reply.end()
    await reply.finish()
    assert (reply.conclude(), wire.reply.complete) == (Completed(), True)
    assert SECRET not in wire.reply.body
    assert (reply.watch.read_chunks, reply.watch.ended) == (4, True)


async def test_a_long_document_is_observed_to_its_end() -> None:
    wire, reply = await begin(JSON)
    body = b'{"data":"' + b"x" * HELD_BYTES + b'","usage":{"prompt_tokens":7,"completion_tokens":3}}'
    reply.feed(body[:-20])
    await reply.commit()
    reply.feed(body[-20:])
    reply.end()
    await reply.finish()
    assert (wire.reply.body, wire.reply.complete) == (body, True)
    usage = present(reply.usage)
    assert (usage.input, usage.output) == (7, 3)


@pytest.mark.parametrize(
    ("content_type", "body", "kind"),
    [
        (JSON, b"", EMPTY.kind),
        (EVENTS, b"", EMPTY.kind),
        (JSON, b'{"error":{"message":"no","code":"server_error"}}', Kind.UPSTREAM),
        (EVENTS, b'data: {"error":{"message":"no","code":"server_error"}}\n\n', Kind.UPSTREAM),
    ],
)
async def test_a_failure_that_comes_before_anything_is_sent_is_no_reply(
    content_type: bytes, body: bytes, kind: Kind
) -> None:
    wire, reply = await begin(content_type)
    if body:
        reply.feed(body)
    if reply.early_failure is None:
        reply.end()
    assert present(reply.early_failure).kind is kind
    assert not wire.written


async def test_a_reply_without_content_is_complete() -> None:
    wire, reply = await begin(JSON, status=204)
    reply.end()
    assert reply.early_failure is None
    await reply.finish()
    assert wire.reply.status == 204


@pytest.mark.parametrize(("content_type", "begun"), [(EVENTS, EVENT), (SOUND, b"RIFF")])
async def test_a_reply_that_breaks_off_cannot_pass_for_a_complete_one(content_type: bytes, begun: bytes) -> None:
    wire, reply = await begin(content_type)
    reply.feed(begun)
    await reply.commit()
    reply.interrupt(BROKEN)
    assert reply.conclude() == Completed(BROKEN)
    await reply.finish()
    if content_type is EVENTS:
        assert wire.reply.complete
        assert wire.reply.body.startswith(begun + b'\n\ndata: {"error"')
    else:
        assert wire.dropped


async def test_a_stream_without_its_last_event_ends_with_an_error_event() -> None:
    wire, reply = await begin(EVENTS)
    reply.feed(EVENT)
    await reply.commit()
    reply.end()
    await reply.finish()
    assert present(reply.watch.failure).kind is Kind.TRUNCATED
    assert b'data: {"error"' in wire.reply.body
