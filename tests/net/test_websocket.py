"""WebSockets on a real server: what breaks the protocol is answered with a close frame, and no flood delays others."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from dragoman.net.bodies import ByteBudget
from dragoman.net.errors import BufferBudgetExceeded
from dragoman.net.http_request import HttpRequest
from dragoman.net.server import Server
from dragoman.net.socket_sink import SocketSink
from dragoman.net.turns import ReadTurns
from dragoman.net.websocket import MAX_CONTROL_FRAMES, MAX_FRAGMENTS, MAX_WAITING, WebSocket
from fakes.loops import on_both_loops
from net.raw_client import PATIENT, RawClient, connect_raw, render
from net.socket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    HANDSHAKE,
    LAST,
    MASKED,
    PING,
    PONG,
    TEXT,
    close,
    close_code,
    frame,
    read_frames,
)
from waiting import wait_until_async

MAX_BYTES = 1_000_000


class Clock:
    """A clock that a test sets; it advances by `step` whenever it is read."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Listener:
    """A handler that takes messages, once it may, and notes what was dropped."""

    def __init__(self, clock: Clock | None = None, budget: ByteBudget | None = None) -> None:
        self.clock = clock or Clock()
        self.budget = budget
        self.messages: list[str] = []
        self.dropped = 0
        self.may_take = asyncio.Event()
        self.may_take.set()

    def has_taken(self, count: int) -> bool:
        return len(self.messages) == count

    async def __call__(self, request: HttpRequest, sink: SocketSink) -> None:
        socket = WebSocket(request, sink, MAX_BYTES, ReadTurns(self.clock))
        socket.accept()
        while True:
            await self.may_take.wait()
            try:
                message = await socket.receive()
            except BufferBudgetExceeded:
                self.dropped += 1
                continue
            if message is None:
                return
            self.messages.append(message.read().decode())
            socket.release(message.size)


@asynccontextmanager
async def open_socket(listener: Listener) -> AsyncIterator[RawClient]:
    server = Server(listener, PATIENT, render, listener.budget)
    await server.start("127.0.0.1", 0)
    try:
        async with connect_raw(server) as client:
            client.send(HANDSHAKE)
            assert (await client.head())[0] == 101
            yield client
    finally:
        await server.close()


PROTOCOL_ERRORS = {
    "an unknown opcode": (frame(0x3, b"x"), 1002),
    "an unknown control opcode": (frame(0xB, b"x"), 1002),
    "an unmasked frame": (b"\x81\x01x", 1002),
    "a reserved bit": (frame(TEXT, b"x", bits=LAST | 0x40), 1002),
    "a fragmented ping": (frame(PING, b"x", bits=0), 1002),
    "a ping of 126 bytes": (frame(PING, b"x" * 126), 1002),
    "a continuation of nothing": (frame(CONTINUATION, b"x"), 1002),
    "a message inside another": (frame(TEXT, b"x", bits=0) + frame(TEXT, b"x"), 1002),
    "a length with more bytes than it needs": (struct.pack("!BBH", LAST | TEXT, MASKED | 126, 5), 1002),
    "a length of 64 bits": (struct.pack("!BBQ", LAST | TEXT, MASKED | 127, 1 << 63), 1002),
    "half a close code": (frame(CLOSE, b"\x03"), 1002),
    "a close code below all": (close(999), 1002),
    "a close code that is never sent": (close(1005), 1002),
    "a close code that means a lost connection": (close(1006), 1002),
    "an unassigned close code": (close(2999), 1002),
    "a close code above all": (close(5000), 1002),
    "a close reason that is no UTF-8": (close(1000, b"\xff"), 1007),
    "text that is no UTF-8": (frame(TEXT, b"\xff"), 1007),
    "text that ends in half a letter": (frame(TEXT, b"\xc3"), 1007),
    "fragments that are no UTF-8": (frame(TEXT, b"\xc3", bits=0) + frame(CONTINUATION, b"\xc3"), 1007),
    "a message that is no text": (frame(BINARY, b"{}"), 1003),
    "a message that is too large": (frame(TEXT, b"x" * (MAX_BYTES + 1)), 1009),
    "fragments that are too large together": (
        frame(TEXT, b"x" * MAX_BYTES, bits=0) + frame(CONTINUATION, b"x"),
        1009,
    ),
    "letters of more than a byte that are too large": (frame(TEXT, "é".encode() * (MAX_BYTES // 2 + 1)), 1009),
}


@on_both_loops
async def test_what_breaks_the_protocol_is_answered_with_a_close_frame() -> None:
    for name, (data, code) in PROTOCOL_ERRORS.items():
        async with open_socket(Listener()) as client:
            client.send(data)
            assert close_code(await client.rest()) == code, name


@on_both_loops
async def test_a_client_that_goes_on_sending_reads_why_it_was_closed() -> None:
    async with open_socket(Listener()) as client:
        client.send(frame(0x3) + frame(TEXT, b"x" * 100_000) * 100)
        assert close_code(await client.rest()) == 1002


@on_both_loops
async def test_a_client_that_ends_its_own_half_reads_why_it_was_closed() -> None:
    async with open_socket(Listener()) as client:
        client.send(frame(0x3))
        client.writer.write_eof()
        assert close_code(await client.rest()) == 1002


@on_both_loops
async def test_a_close_is_answered_with_its_code() -> None:
    for data, payload in ((close(1000, b"done"), b"\x03\xe8"), (close(4999), b"\x13\x87"), (frame(CLOSE), b"")):
        async with open_socket(Listener()) as client:
            client.send(data)
            assert read_frames(await client.rest()) == [(CLOSE, payload)]


@on_both_loops
async def test_fragments_and_pings_between_them_are_read() -> None:
    listener = Listener()
    async with open_socket(listener) as client:
        text = "Grüße".encode()
        pieces = frame(TEXT, text[:3], bits=0) + frame(PING, b"still there?") + frame(CONTINUATION, text[3:])
        await client.send_cut(pieces + frame(TEXT) + frame(TEXT, b"y" * 70_000), 7)
        await wait_until_async(lambda: len(listener.messages) == 3)
        client.send(close(1000))
        assert read_frames(await client.rest()) == [(PONG, b"still there?"), (CLOSE, b"\x03\xe8")]
    assert listener.messages == ["Grüße", "", "y" * 70_000]


@on_both_loops
async def test_a_flood_of_control_frames_is_closed() -> None:
    for opcode in (PING, PONG):
        async with open_socket(Listener()) as client:
            client.send(frame(opcode) * 80_000)
            *pongs, (last, payload) = read_frames(await client.rest())
            assert (last, payload[2:]) == (CLOSE, b"more than 1000 control frames in a second")
            assert int.from_bytes(payload[:2], "big") == 1008
            assert len(pongs) <= MAX_CONTROL_FRAMES


@on_both_loops
async def test_as_many_control_frames_as_a_second_may_have_are_answered() -> None:
    listener = Listener()
    async with open_socket(listener) as client:
        for count in (1, 2, 3):
            client.send(frame(PING) * MAX_CONTROL_FRAMES + frame(TEXT, b"now"))
            await wait_until_async(partial(listener.has_taken, count))
            listener.clock.now += 1.0
        client.send(close(1000))
        assert read_frames(await client.rest())[-1] == (CLOSE, b"\x03\xe8")


@on_both_loops
async def test_a_message_has_a_bounded_number_of_fragments() -> None:
    listener = Listener()
    async with open_socket(listener) as client:
        begin, middle, end = frame(TEXT, b"x", bits=0), frame(CONTINUATION, b"x", bits=0), frame(CONTINUATION, b"x")
        client.send(begin + middle * (MAX_FRAGMENTS - 2) + end)
        await wait_until_async(lambda: listener.messages)
        client.send(begin + middle * 100_000)
        *_, (_, payload) = read_frames(await client.rest())
        assert payload == struct.pack("!H", 1008) + b"a message has more than 10000 fragments"
    assert listener.messages == ["x" * MAX_FRAGMENTS]


@on_both_loops
async def test_others_get_their_turn_after_5_ms_of_frames() -> None:
    """The clock says that each frame takes 1 ms."""
    listener, count, turns = Listener(Clock(step=0.001)), 1_000, 0
    async with open_socket(listener) as client:
        client.send(frame(TEXT, b"x", bits=0) + frame(CONTINUATION, b"x", bits=0) * (count - 2) + frame(CONTINUATION))
        while not listener.messages:
            await asyncio.sleep(0)
            turns += 1
    assert turns >= count / 10


class Pile:
    """Frames of one client that wait, each of which takes 1 ms."""

    def __init__(self, clock: Clock, count: int) -> None:
        self.clock = clock
        self.count = count
        self.is_paused = False

    def read_until(self, ends: float) -> bool:
        while self.count:
            self.count -= 1
            self.clock.now += 0.001
            if self.clock() >= ends:
                return True
        self.is_paused = False
        return False

    def pause_reading(self) -> None:
        self.is_paused = True


@on_both_loops
async def test_all_clients_together_read_frames_for_5_ms_of_a_turn() -> None:
    clock = Clock()
    turns, piles = ReadTurns(clock), [Pile(clock, 100) for _ in range(20)]
    for pile in piles:
        turns.read(pile)
    assert clock.now < 0.007
    assert all(pile.is_paused for pile in piles)
    while any(pile.count for pile in piles):
        before, counts = clock.now, [pile.count for pile in piles]
        await asyncio.sleep(0)
        assert clock.now - before < 0.007
        assert max(counts) - min(counts) <= 20  # none waits for the whole flood of another
    await asyncio.sleep(0)
    assert not any(pile.is_paused for pile in piles)


@on_both_loops
async def test_a_client_that_sends_many_messages_is_held_back_and_loses_none() -> None:
    listener, count = Listener(), 4 * MAX_WAITING
    listener.may_take.clear()
    async with open_socket(listener) as client:
        for number in range(count):
            client.send(frame(TEXT, b"%d" % number))
        await client.writer.drain()
        listener.may_take.set()
        await wait_until_async(lambda: len(listener.messages) == count)
    assert listener.messages == [str(number) for number in range(count)]


@on_both_loops
async def test_a_message_without_room_is_dropped_and_the_next_one_is_read() -> None:
    budget = ByteBudget(200_000)
    listener = Listener(budget=budget)
    async with open_socket(listener) as client:
        large = frame(TEXT, b"x" * 400_000) + frame(TEXT, b"y" * 300_000, bits=0) + frame(CONTINUATION, b"y")
        client.send(large + frame(TEXT, b"z" * 100_000))
        await wait_until_async(lambda: listener.messages)
        assert (listener.dropped, listener.messages) == (2, ["z" * 100_000])
        assert budget.held == 0


@on_both_loops
async def test_what_waits_is_counted_in_bytes_until_the_connection_ends() -> None:
    budget = ByteBudget(10_000_000)
    listener = Listener(budget=budget)
    listener.may_take.clear()
    async with open_socket(listener) as client:
        client.send(frame(TEXT, "é".encode() * 200_000) + frame(TEXT, b"x" * 200_000, bits=0))
        await wait_until_async(lambda: budget.held > 500_000)
        client.send(close(1000))
        await wait_until_async(lambda: budget.held == 0)
