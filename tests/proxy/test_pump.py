"""One read of the upstream's socket, at most one write to the client, and how long the next read may take."""

import asyncio

import pytest

from dragoman.config.settings import ServerSettings
from dragoman.net.bodies import UNCOUNTED_BYTES, ByteBudget
from dragoman.proxy.pump import LINGER_S, Pump, is_answering
from dragoman.proxy.replies.opening import DocumentReplies
from dragoman.proxy.replies.reply import StreamedReply
from dragoman.proxy.reply_bounds import ReplyDeadline, Timeouts
from dragoman.proxy.step import Ask
from dragoman.translate.hub.events import Started
from dragoman.translate.hub.failure import Kind
from dragoman.upstreams.provider import ReplyRules
from narrowing import present
from proxy.in_memory import (
    MESSAGES,
    MESSAGES_STREAM,
    MemoryWire,
    make_call,
    make_document_writer,
    make_provider,
    make_request,
    make_sink,
    prepare_for,
)
from proxy.rigs import WriterRig, make_watch

SERVER = ServerSettings(idle_timeout_s=40, keep_alive_s=15)
PATIENCE = Timeouts(first_token_s=20, token_s=60, idle_s=40)
EMPTY = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
STOP = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Pumped:
    """A pump between a Chat upstream and a client of one of two protocols."""

    def __init__(self, rig: WriterRig, reply: StreamedReply) -> None:
        self.wire, self.writer, self.reply = rig.wire, rig.writer, reply
        self.now = asyncio.get_running_loop().time
        self.wait = ReplyDeadline("up", PATIENCE, self.now())
        self.pump = Pump(reply, self.wait, SERVER, asyncio.get_running_loop().time)


async def start_passthrough() -> Pumped:
    rig = WriterRig()
    reply = await rig.open_passed()
    await reply.commit()
    return Pumped(rig, reply)


async def start_translation() -> Pumped:
    rig = WriterRig("messages", MESSAGES_STREAM)
    reply = await rig.open_translated()
    await reply.commit()
    return Pumped(rig, reply)


async def test_each_read_is_one_write_and_the_next_may_take_as_long_as_silence_may_last() -> None:
    pumped = await start_passthrough()
    for _ in range(3):
        writes = len(pumped.wire.writes)
        assert pumped.pump.pass_on(WORD) == 40
        assert len(pumped.wire.writes) == writes + 1
    assert pumped.wire.reply.body == 3 * WORD
    assert pumped.wait.deadline == pytest.approx(pumped.now() + 40, abs=10)
    assert not pumped.pump.is_over


async def test_a_client_of_a_translation_is_kept_alive_so_the_next_read_is_shorter() -> None:
    pumped = await start_translation()
    assert pumped.pump.pass_on(EMPTY + WORD) == 15
    assert b'"text":"Hi"' in pumped.wire.reply.body
    assert pumped.pump.choose_timeout() == 15


async def test_a_read_that_gives_nothing_is_no_write() -> None:
    pumped = await start_translation()
    pumped.pump.pass_on(EMPTY + WORD)
    writes = len(pumped.wire.writes)
    assert pumped.pump.pass_on(WORD[:10]) == 15
    assert len(pumped.wire.writes) == writes


async def test_a_client_that_reads_slowly_stops_the_reading_for_a_while() -> None:
    pumped = await start_passthrough()
    pumped.wire.blocked = True
    assert pumped.pump.pass_on(WORD) is None
    assert not pumped.pump.is_over
    assert pumped.wire.reply.body == WORD


async def test_the_end_of_a_translated_reply_ends_the_reading() -> None:
    pumped = await start_translation()
    pumped.pump.pass_on(EMPTY + WORD)
    assert pumped.pump.pass_on(STOP + DONE) is None
    assert pumped.pump.is_over
    assert b"message_stop" not in pumped.wire.reply.body  # kept for the last write
    await pumped.reply.finish()
    assert b"message_stop" in pumped.wire.reply.body


async def test_what_follows_the_terminal_event_passes_for_a_little_while() -> None:
    pumped = await start_passthrough()
    pumped.pump.pass_on(WORD)
    assert present(pumped.pump.pass_on(STOP + DONE)) <= LINGER_S
    assert not pumped.pump.is_over
    assert pumped.pump.pass_on(b": bye\n\n") is not None
    assert pumped.wire.reply.body == WORD + STOP + DONE + b": bye\n\n"
    pumped.wait.deadline = pumped.now() - 1
    assert pumped.pump.pass_on(b": still here\n\n") is None
    assert pumped.pump.is_over


async def test_a_reply_that_is_collected_is_counted_and_the_reading_stops_where_there_is_no_room() -> None:
    call = make_call("messages", MESSAGES, request=make_request(budget=ByteBudget(0)))
    replies = DocumentReplies(call, make_document_writer(make_sink(MemoryWire()), call), make_watch)
    prepared = await prepare_for(call, make_provider())
    replies.begin_turn(Ask(prepared.route, prepared.provider, 1), prepared)
    reply = replies.open_stream(b"")
    clock = asyncio.get_running_loop().time
    pump = Pump(reply, ReplyDeadline("up", PATIENCE, clock()), SERVER, clock)
    assert pump.pass_on(WORD) == 40
    call.buffered.held = UNCOUNTED_BYTES
    assert pump.pass_on(WORD) is None
    assert not pump.is_over
    assert present(await reply.wait_for_room()).kind is Kind.BUSY


async def test_whether_the_model_answers() -> None:
    rig = WriterRig()
    reply = await rig.open_passed()
    prepared = await rig.begin_passthrough()
    assert not is_answering(prepared, reply)
    reply.feed(EMPTY)
    assert not is_answering(prepared, reply)
    reply.feed(WORD)
    assert is_answering(prepared, reply)


@pytest.mark.parametrize("withholds", [False, True])
async def test_an_upstream_that_withholds_calls_answers_once_it_has_begun(withholds: bool) -> None:
    reply = await WriterRig().open_passed()
    provider = make_provider(replies=ReplyRules(withholds_cut_calls=withholds))
    reply.watch.observe(Started("c1", "m"))
    assert is_answering(await prepare_for(make_call(), provider), reply) is withholds


async def test_a_model_that_works_without_output_answers() -> None:
    response = b'{"id":"resp_1","object":"response","status":"in_progress","model":"m","output":[]}'
    item = b'{"type":"reasoning","id":"rs_1","summary":[]}'
    begun = (
        b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":%b}\n\n'
        b'event: response.output_item.added\ndata: {"type":"response.output_item.added","sequence_number":1,'
        b'"output_index":0,"item":%b}\n\n'
    ) % (response, item)
    rig = WriterRig("responses", b'{"model":"m","input":"Hi","stream":true}')
    reply = await rig.open_passed()
    prepared = await rig.begin_passthrough()
    assert not is_answering(prepared, reply)
    reply.feed(begun)
    assert not reply.watch.has_content
    assert is_answering(prepared, reply)
