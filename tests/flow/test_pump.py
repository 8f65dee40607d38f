"""One read of the upstream's socket, at most one write to the client, and how long the next read may take."""

import asyncio

import pytest

from dragoman.config.settings import Server
from dragoman.flow.decoding import make_source, make_stages
from dragoman.flow.pipes import PassthroughPipe, Pipe, TranslationPipe
from dragoman.flow.prepare import Prepared
from dragoman.flow.pump import LINGER_S, Pump, is_answering
from dragoman.flow.reply_bounds import ReplyDeadline, Timeouts
from dragoman.hub.events import Started
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.net.headers import Headers
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.providers.provider import ReplyRules
from flow.in_memory import MESSAGES_STREAM, make_call, make_provider, prepare_for, run
from flow.rigs import WriterRig
from narrowing import present

SERVER = Server(idle_timeout_s=40, keep_alive_s=15)
PATIENCE = Timeouts(first_token_s=20, token_s=60, idle_s=40)
EMPTY = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
STOP = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Pumped:
    """A pump between a Chat upstream and a client of one of two protocols."""

    def __init__(self, rig: WriterRig, prepared: Prepared, pipe: Pipe, no_room: Failure | None = None) -> None:
        self.wire, self.writer, self.pipe, self.prepared = rig.wire, rig.writer, pipe, prepared
        self.now = asyncio.get_running_loop().time
        self.wait = ReplyDeadline("up", PATIENCE, self.now())
        hold = None if no_room is None else lambda size: no_room
        self.pump = Pump(pipe, rig.writer, self.wait, SERVER, asyncio.get_running_loop().time, hold)


async def start_passthrough(no_room: Failure | None = None) -> Pumped:
    rig = WriterRig()
    prepared = await rig.begin_passthrough()
    await rig.writer.commit(prepared, Headers([]), b"")
    pipe = PassthroughPipe(make_source(prepared, Ledger()), rig.call.client, ReplyMonitor(lambda: 0.0))
    return Pumped(rig, prepared, pipe, no_room)


async def start_translation() -> Pumped:
    rig = WriterRig("messages", MESSAGES_STREAM)
    prepared = await rig.begin_translation()
    await rig.writer.commit(prepared, Headers([]), b"")
    pipe = TranslationPipe(
        make_source(prepared, Ledger()), make_stages(prepared), rig.writer.encoding, ReplyMonitor(lambda: 0.0)
    )
    return Pumped(rig, prepared, pipe)


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
    assert pumped.pump.failure is None
    assert b"message_stop" not in pumped.wire.reply.body  # kept for the last write
    await pumped.writer.finish()
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


async def test_a_reply_that_is_collected_is_counted_and_ends_where_there_is_no_room() -> None:
    full = Failure(Kind.BUSY, "no room")
    pumped = await start_passthrough(full)
    assert pumped.pump.pass_on(WORD) is None
    assert (pumped.pump.is_over, pumped.pump.failure) == (True, full)
    assert pumped.wire.reply.body == b""


async def test_whether_the_model_answers() -> None:
    pumped = await start_passthrough()
    assert not is_answering(pumped.prepared, pumped.pipe)
    pumped.pipe.feed(EMPTY)
    assert not is_answering(pumped.prepared, pumped.pipe)
    pumped.pipe.feed(WORD)
    assert is_answering(pumped.prepared, pumped.pipe)


@pytest.mark.parametrize("withholds", [False, True])
def test_an_upstream_that_withholds_calls_answers_once_it_has_begun(withholds: bool) -> None:
    provider = make_provider(replies=ReplyRules(withholds_cut_calls=withholds))
    prepared = run(prepare_for(make_call(), provider))
    watch = ReplyMonitor(lambda: 0.0)
    watch.observe(Started("c1", "m"))
    pipe = PassthroughPipe(make_source(prepared, Ledger()), present(prepared.protocol.client), watch)
    assert is_answering(prepared, pipe) is withholds


def test_a_model_that_works_without_output_answers() -> None:
    response = b'{"id":"resp_1","object":"response","status":"in_progress","model":"m","output":[]}'
    item = b'{"type":"reasoning","id":"rs_1","summary":[]}'
    begun = (
        b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":%b}\n\n'
        b'event: response.output_item.added\ndata: {"type":"response.output_item.added","sequence_number":1,'
        b'"output_index":0,"item":%b}\n\n'
    ) % (response, item)
    provider = make_provider(protocols=("responses",))
    prepared = run(prepare_for(make_call("responses", b'{"model":"m","input":"Hi","stream":true}'), provider))
    client = prepared.protocol.client
    assert client is not None
    pipe = PassthroughPipe(make_source(prepared, Ledger()), client, ReplyMonitor(lambda: 0.0))
    assert not is_answering(prepared, pipe)
    pipe.feed(begun)
    assert not pipe.watch.has_content
    assert is_answering(prepared, pipe)
