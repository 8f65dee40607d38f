"""Replies that pass: their input to the byte, watched, and at most an error event is appended."""

import asyncio
from pathlib import Path

import pytest

from dragoman.net.headers import Headers
from dragoman.proxy import upstream
from dragoman.proxy.prepared import Passthrough
from dragoman.proxy.replies.passed import PassedDocument, PassedStream
from dragoman.proxy.replies.reply import ReplyOrigin
from dragoman.proxy.step import Ask, Completed
from dragoman.translate.hub.failure import Failure, Kind
from laws import pieces_of
from narrowing import expect, present
from proxy.in_memory import (
    CHAT,
    CHAT_STREAM,
    MESSAGES_STREAM,
    MemoryWire,
    make_call,
    make_document_writer,
    make_provider,
    make_sink,
    prepare_for,
    run,
)
from proxy.rigs import WHOLE, WriterRig, make_watch
from tables import each_row

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
STREAMS = sorted(path for protocol in ("chat", "messages") for path in (FIXTURES / protocol).glob("*.sse"))
BROKEN = Failure(Kind.LOST, "the connection broke")
BODIES = {"chat": CHAT_STREAM, "messages": MESSAGES_STREAM}
WORD = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
SECRET = b"sk-secret-0123456789"


class Passing:
    """A stream that passes, to a client in memory."""

    def __init__(self, rig: WriterRig, reply: PassedStream) -> None:
        self.rig, self.reply = rig, reply

    @property
    def body(self) -> bytes:
        return self.rig.wire.reply.body

    async def pass_all(self, pieces: list[bytes]) -> None:
        """Feed these pieces; the first token commits the reply, or the first piece."""
        self.reply.feed(pieces[0])
        await self.reply.commit()
        for piece in pieces[1:]:
            assert self.reply.feed(piece)


async def begin(protocol: str = "chat", key: bytes = b"", keep_alive_s: float = 3600.0) -> Passing:
    rig = WriterRig(protocol, BODIES[protocol], keep_alive_s)
    prepared = await prepare_for(rig.call, make_provider("up", (protocol,), key=key))
    rig.replies.begin_turn(Ask(prepared.route, prepared.provider, 1), prepared)
    rig.replies.begin_answer(200, Headers([(b"x-vendor", b"1")]), is_stream=True)
    return Passing(rig, expect(PassedStream, rig.replies.open_stream(b"")))


@each_row("path", STREAMS)
def test_what_passes_is_its_input_to_the_byte_and_at_most_an_error_is_appended(path: Path) -> None:
    stream = path.read_bytes()
    for size in (1, 7, 500):
        passed = run(pass_stream(path.parent.name, pieces_of(stream, size)))
        assert passed.startswith(stream)
        assert (passed != stream) is path.stem.startswith("truncated")


async def pass_stream(protocol: str, pieces: list[bytes]) -> bytes:
    passing = await begin(protocol)
    await passing.pass_all(pieces)
    passing.reply.end()
    await passing.reply.finish()
    return passing.body


@pytest.mark.parametrize(
    ("begun", "apart"),
    [(b"data: {}\n\n", b""), (b"data: {}\r\n\r\n", b""), (b"data: {}\n", b"\n\n"), (b"data: {", b"\n\n"), (b"", b"")],
)
async def test_an_error_is_set_apart_from_an_event_that_was_cut(begun: bytes, apart: bytes) -> None:
    passing = await begin()
    await passing.pass_all([begun])
    passing.reply.interrupt(BROKEN)
    await passing.reply.finish()
    sent = passing.body.removeprefix(begun)
    assert sent.startswith(apart + b"data: ")
    assert b"the connection broke" in sent
    assert passing.reply.conclude() == Completed(BROKEN)


async def test_an_error_that_the_upstream_has_sent_is_not_sent_twice() -> None:
    error = b'data: {"error":{"message":"overloaded","type":"server_error"}}\n\n'
    passing = await begin()
    await passing.pass_all([WORD, error])
    passing.reply.end()
    await passing.reply.finish()
    assert passing.body == WORD + error
    assert present(passing.reply.conclude().failure).kind is Kind.UPSTREAM


async def test_what_we_cannot_read_after_the_first_token_is_the_clients_to_read() -> None:
    for ending, appended in ((b"data: [DONE]\n\n", False), (b"", True)):
        passing = await begin()
        stream = WORD + b"data: {nonsense\n\n" + ending
        await passing.pass_all([stream[:-9], stream[-9:]])
        assert passing.reply.watch.failure is None
        passing.reply.interrupt(BROKEN)
        await passing.reply.finish()
        assert passing.body.startswith(stream)
        assert (passing.body != stream) is appended


async def test_a_secret_is_hidden_also_where_it_is_cut() -> None:
    stream = WORD.replace(b"Hi", SECRET)
    for size in (1, 7, 500):
        passing = await begin(key=SECRET)
        await passing.pass_all(pieces_of(stream, size))
        await passing.reply.finish()
        assert passing.body == stream.replace(SECRET, b"***")


async def test_everything_is_held_until_the_first_token_and_then_sent_with_the_upstreams_headers() -> None:
    passing = await begin()
    opening = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    assert passing.reply.feed(opening)
    assert not passing.reply.has_begun
    assert passing.rig.wire.writes == []
    passing.reply.feed(WORD)
    assert passing.reply.has_begun
    await passing.reply.commit()
    assert passing.body == opening + WORD
    assert passing.rig.wire.reply.headers.get(b"x-vendor") == b"1"


async def test_a_reply_that_is_cancelled_while_its_client_reads_slowly_ends_with_an_error_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passing = await begin()
    passing.reply.feed(WORD)
    passing.rig.wire.blocked = True
    monkeypatch.setattr(passing.rig.wire, "wait_writable", asyncio.Event().wait)
    committing = asyncio.create_task(passing.reply.commit())
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    passing.reply.interrupt(BROKEN)
    await passing.rig.writer.fail(BROKEN)
    assert passing.body.startswith(WORD)
    assert b"the connection broke" in passing.body


async def test_keep_alives_of_the_upstream_pass_before_the_first_token_once_they_are_due() -> None:
    passing = await begin("messages", keep_alive_s=0.0)
    passing.rig.writer.close()  # no timer: what is tested is what passes at once
    ping = b'event: ping\ndata: {"type": "ping"}\n\n'
    assert passing.reply.feed(ping)
    assert passing.body == ping
    passing.rig.wire.blocked = True
    assert not passing.reply.feed(ping)
    assert await passing.reply.wait_for_room() is None


async def test_what_is_held_is_counted_and_may_find_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "MAX_REPLY_BYTES", 30)
    passing = await begin()
    before = passing.rig.call.buffered.held
    comment = b": still waiting\n\n"
    assert passing.reply.feed(comment)
    assert passing.rig.call.buffered.held == before + len(comment)
    assert not passing.reply.feed(comment)
    assert present(await passing.reply.wait_for_room()).kind is Kind.UPSTREAM


# Documents


async def test_a_document_passes_to_the_byte_without_our_secrets() -> None:
    wire = MemoryWire()
    call = make_call("chat", CHAT)
    prepared = expect(Passthrough, await prepare_for(call, make_provider(key=SECRET)))
    ask = Ask(prepared.route, prepared.provider, 1)
    origin = ReplyOrigin(call, ask, prepared, Headers([]), make_watch(), prepared.why)
    odd = WHOLE.replace(b"Half", SECRET) + b"\n"
    reply = PassedDocument(origin, make_document_writer(make_sink(wire), call), origin.watch, odd)
    reply.take(reply.read())
    await reply.commit()
    assert reply.conclude() == Completed()
    await reply.finish()
    assert wire.reply.body == odd.replace(SECRET, b"***")
    assert present(reply.usage).input == 7
    assert reply.tap(lambda source: source) == prepared.secrets


async def test_a_document_that_is_interrupted_has_failed() -> None:
    rig = WriterRig()
    prepared = await rig.begin_passthrough()
    origin = ReplyOrigin(
        rig.call, Ask(prepared.route, prepared.provider, 1), prepared, Headers([]), make_watch(), prepared.why
    )
    reply = PassedDocument(origin, make_document_writer(make_sink(MemoryWire()), rig.call), origin.watch, b"{}")
    reply.interrupt(BROKEN)
    assert reply.watch.failure == BROKEN
