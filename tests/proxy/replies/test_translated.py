"""Replies that are translated, as a stream or as one body, and what steps between two turns write to them."""

import msgspec

from dragoman.net.headers import Headers
from dragoman.proxy.replies.opening import DocumentReplies
from dragoman.proxy.replies.translated import TranslatedDocument
from dragoman.proxy.request_record import Awaited
from dragoman.proxy.step import Ask, Completed, Interrupted, NoReply
from dragoman.translate.hub.events import Ended, Stop
from dragoman.translate.hub.failure import Failure, Kind
from narrowing import expect, present
from proxy.in_memory import (
    MESSAGES,
    MESSAGES_STREAM,
    MemoryWire,
    make_call,
    make_document_writer,
    make_provider,
    make_sink,
    prepare_for,
)
from proxy.rigs import HALF, SOON_S, STREAM, WriterRig, make_watch
from replies import text
from waiting import wait_until_async

BROKEN = Failure(Kind.LOST, "the connection broke")


async def open_document() -> tuple[MemoryWire, TranslatedDocument]:
    wire = MemoryWire()
    call = make_call("messages", MESSAGES)
    replies = DocumentReplies(call, make_document_writer(make_sink(wire), call), make_watch)
    prepared = await prepare_for(call, make_provider())
    replies.begin_turn(Ask(prepared.route, prepared.provider, 1), prepared)
    replies.begin_answer(200, Headers([]), is_stream=True)
    return wire, expect(TranslatedDocument, replies.open_stream(b""))


async def test_a_stream_is_held_until_it_is_committed_and_its_end_is_one_write() -> None:
    rig = WriterRig("messages", MESSAGES_STREAM)
    reply = await rig.open_translated()
    assert reply.feed(HALF)
    assert rig.wire.writes == []
    await reply.commit()
    assert b"Half" in rig.wire.reply.body
    writes = len(rig.wire.writes)
    assert reply.feed(STREAM[len(HALF) :])
    assert (len(rig.wire.writes), reply.is_over) == (writes, True)
    assert reply.conclude() == Completed()
    await reply.finish()
    assert len(rig.wire.writes) == writes + 1
    assert rig.wire.reply.body.count(b"event: message_stop\n") == 1


async def test_a_stream_that_is_interrupted_can_be_continued_with_its_text() -> None:
    rig = WriterRig("messages", MESSAGES_STREAM)
    reply = await rig.open_translated()
    reply.feed(HALF)
    await reply.commit()
    reply.interrupt(BROKEN)
    assert reply.conclude() == Interrupted(BROKEN, "Half a")
    assert present(rig.writer.encoding.used_before or reply.used_so_far()).output > 0
    assert b"error" not in rig.wire.reply.body


async def test_a_document_is_collected_and_sent_at_its_end() -> None:
    wire, reply = await open_document()
    assert reply.feed(STREAM)
    reply.end()
    await reply.commit()
    assert reply.conclude() == Completed()
    assert wire.writes == []
    await reply.finish()
    assert msgspec.json.decode(wire.reply.body)["content"][0]["text"] == "Half a loaf"
    assert present(reply.usage).output > 0


async def test_a_document_that_is_interrupted_is_no_reply() -> None:
    wire, reply = await open_document()
    reply.feed(HALF)
    await reply.commit()
    reply.interrupt(BROKEN)
    assert expect(NoReply, reply.conclude()).failure.kind is Kind.LOST
    assert wire.writes == []


async def test_steps_write_events_before_the_end() -> None:
    rig = WriterRig("messages", MESSAGES_STREAM, SOON_S)
    stream = await rig.open_translated()
    stream.feed(HALF)
    await stream.commit()
    stream.wait_for(Awaited.TOOLS)
    assert rig.call.record.awaits is Awaited.TOOLS
    written = len(rig.wire.writes)
    await wait_until_async(lambda: len(rig.wire.writes) > written)  # keep-alives
    rig.writer.close()
    wire, document = await open_document()
    document.feed(HALF)
    for reply in (stream, document):
        await reply.send_own(text(1, "of our own"))
        reply.end_with(Ended(Stop.END))
        await reply.finish()
    assert b"of our own" in rig.wire.reply.body
    assert b"of our own" in wire.reply.body
