"""The meter of a process that asks another one on this machine.

Everything that comes up in one turn of the event loop is sent in one frame. Admissions are answered within two seconds,
or not at all; what must not get lost is repeated until it is acknowledged, and after each new connection this process
announces its leases, since the other one may be new.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.tasks import spawn_apart
from dragoman.store.meter import (
    Admit,
    Admitted,
    Announce,
    Beat,
    Change,
    Correct,
    Gone,
    Level,
    Operation,
    Result,
    RowsWritten,
    Settle,
    Unavailable,
    has_row,
)
from dragoman.tenancy.counters import merge_holds, raise_holds
from dragoman.tenancy.meter_frames import (
    MAX_IN_FRAME,
    FrameError,
    Levels,
    MeterFrameReader,
    Question,
    Read,
    read_answers,
    write_frame,
)

DEADLINE_S = 1.9
RETRY_S = 0.05
SWEEP_S = 0.1
BEAT_S = 5.0
NAME_EVERY = 6  # heartbeats: all leases are named
MAX_UNANSWERED = 20_000
NO_ANSWER = Unavailable("the process that counts limits does not answer")

log = logging.getLogger(__name__)


class OwnLease(Struct):
    """A lease of this process that is not written; its admission has what it holds now."""

    admit: Admit
    settled: Settle | None = None


class _PendingAnswer(Struct, gc=False):
    future: "asyncio.Future[Result | Levels]"
    until: float  # by the clock of the event loop


class RemoteMeter:
    """Asks the meter at an address, which may change with each connection; None: there is none now."""

    keeps_charges = True

    def __init__(self, find_address: Callable[[], str | None], process: str = "") -> None:
        self.process = process or secrets.token_hex(8)
        self.leases: dict[str, OwnLease] = {}
        self.disconnected = asyncio.Event()  # set while there is no connection
        self.disconnected.set()
        self._find_address = find_address
        self._number = 0
        self._questions: list[Question] = []  # to be sent
        self._pending: dict[int, _PendingAnswer] = {}
        self._posted: dict[int, Operation] = {}  # not acknowledged
        self._transport: asyncio.Transport | None = None
        self._is_flushing = False
        self._beats = 0
        self._has_given_up = False
        self._task: asyncio.Task[None] | None = None

    # What the path of a call uses.

    async def apply(self, operations: Sequence[Operation]) -> Sequence[Result]:
        if len(self._pending) > MAX_UNANSWERED:
            return [NO_ANSWER] * len(operations)
        results: list[Result] = []
        for operation in operations:  # one by one: the next one may end the lease that this one begins
            result = NO_ANSWER if self._has_given_up else await self._ask(operation)
            assert type(result) is not Levels
            self._record(operation, result)
            results.append(result)
        return results

    def post(self, operation: Operation) -> None:
        self._record_posted(operation)
        self._number += 1
        self._posted[self._number] = operation
        self._send((self._number, operation))

    async def read(self, counters: Sequence[str]) -> Sequence[Level]:
        result = await self._ask(Read(tuple(counters)))
        return result.levels if isinstance(result, Levels) else ()

    # What happens by itself.

    def start(self) -> None:
        self._task = spawn_apart(self._run(), name="meter connection")

    async def stop(self) -> None:
        """Wait until what was posted is acknowledged, if that is soon, and disconnect."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                while self._posted and self._transport is not None:  # noqa: ASYNC110 - nothing else waits for it
                    await asyncio.sleep(RETRY_S)
        await self.disconnect()

    async def disconnect(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._transport is not None:
            self._transport.abort()

    def give_up(self) -> None:
        """Answer at once what has no answer yet, and what is still asked: there will be none."""
        self._has_given_up = True
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_result(NO_ANSWER)

    @property
    def unacknowledged(self) -> tuple[Operation, ...]:
        return tuple(self._posted.values())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.disconnected.is_set():
                address = self._find_address()
                if address is None or not await self._connect(loop, address):
                    await asyncio.sleep(RETRY_S)
                    continue
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self.disconnected.wait()
                continue
            self._beats += 1
            self._beat(with_names=self._beats % NAME_EVERY == 0)

    async def _connect(self, loop: asyncio.AbstractEventLoop, address: str) -> bool:
        try:
            transport, _ = await loop.create_unix_connection(lambda: _Answers(self), address)
        except OSError as error:
            log.debug("the meter cannot be reached: %s", error)
            return False
        self._transport = transport
        self.disconnected.clear()
        self._announce()
        return True

    def _announce(self) -> None:
        """Tell the other side which leases there are, then repeat what was not acknowledged."""
        waiting = [question for question in self._questions if question[0] in self._pending]
        self._questions.clear()
        for announce in self.list_announcements():
            self._send((0, announce))
        self._beat(with_names=True)
        for number, operation in self._posted.items():
            self._send((number, operation))
        for question in waiting:
            self._send(question)

    def list_announcements(self) -> list[Announce]:
        """Return all leases, in pieces that fit into frames."""
        running = [lease.admit for lease in self.leases.values() if lease.settled is None]
        settled = [(lease.admit, lease.settled) for lease in self.leases.values() if lease.settled is not None]
        pieces = [Announce(self.process, tuple(running[at : at + 100]), ()) for at in range(0, len(running), 100)]
        pieces += [Announce(self.process, (), tuple(settled[at : at + 100])) for at in range(0, len(settled), 100)]
        return pieces

    def _beat(self, *, with_names: bool) -> None:
        self._send((0, Beat(self.process, tuple(self.leases) if with_names else None)))

    # The connection.

    def receive(self, frame: bytes) -> None:
        """Take the answers of a frame. Raises msgspec.DecodeError."""
        for number, result in read_answers(frame):
            self._posted.pop(number, None)
            pending = self._pending.pop(number, None)
            if pending is not None and not pending.future.done():
                pending.future.set_result(result)
            if number == 0 and isinstance(result, Gone):
                self._begin_anew()

    def lose(self) -> None:
        """Note that the connection is closed."""
        self._transport = None
        self.disconnected.set()

    def _begin_anew(self) -> None:
        """Take a new id: the other side has ended this process, and charged its leases."""
        log.warning("this process sent no heartbeat for too long: its running requests were charged")
        self.process = secrets.token_hex(8)
        self.leases.clear()
        self._posted.clear()
        self._beat(with_names=True)

    def _ask(self, operation: Operation | Read) -> "asyncio.Future[Result | Levels]":
        """Return the answer to come, which is NO_ANSWER after DEADLINE_S."""
        loop = asyncio.get_running_loop()
        self._number += 1
        if not self._pending:
            loop.call_later(SWEEP_S, self._sweep)
        pending = _PendingAnswer(loop.create_future(), loop.time() + DEADLINE_S)
        self._pending[self._number] = pending
        self._send((self._number, operation))
        return pending.future

    def _sweep(self) -> None:
        """Answer what has waited for too long: one timer for all of them."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for number, pending in [*self._pending.items()]:
            if pending.until > now and not pending.future.done():
                break
            del self._pending[number]
            if not pending.future.done():
                pending.future.set_result(NO_ANSWER)
        if self._pending:
            loop.call_later(SWEEP_S, self._sweep)

    def _send(self, question: Question) -> None:
        self._questions.append(question)
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send what has come up in this turn of the event loop."""
        self._is_flushing = False
        questions = self._questions
        if self._transport is None:  # what is not repeated is dropped, unless it is waited for
            self._questions = [question for question in questions if question[0] in self._pending]
            return
        self._questions = []
        for at in range(0, len(questions), MAX_IN_FRAME):
            self._transport.write(write_frame(questions[at : at + MAX_IN_FRAME]))

    # The leases of this process.

    def _record(self, operation: Operation, result: Result) -> None:
        if type(operation) is Admit:  # types are compared: a struct's class pattern that does not fit is slow
            if type(result) is Admitted:
                self.leases[operation.lease] = OwnLease(operation)
            return
        match operation, result:
            case Change(lease, drops, holds), Admitted() if lease in self.leases:
                own = self.leases[lease]
                kept = tuple(hold for hold in own.admit.holds if hold.counter not in drops)
                own.admit = replace(own.admit, holds=merge_holds(kept, holds, lambda hold, amount: None))
            case ((Correct() | Settle() | RowsWritten()), _) if not isinstance(result, Unavailable):
                self._record_posted(operation)

    def _record_posted(self, operation: Operation) -> None:
        if type(operation) is RowsWritten:
            for lease in operation.leases:
                self.leases.pop(lease, None)
        elif type(operation) is Settle or type(operation) is Correct:
            own = self.leases.get(operation.lease)
            if own is None:
                return
            if type(operation) is Correct:
                holds = raise_holds(own.admit.holds, operation.amounts, lambda hold, amount: None)
                own.admit = replace(own.admit, holds=holds)
            elif has_row(operation):
                own.settled = own.settled or operation
            else:
                del self.leases[operation.lease]


class _Answers(asyncio.Protocol):
    """The connection to the process that has the meter."""

    def __init__(self, meter: RemoteMeter) -> None:
        self._meter = meter
        self._frames = MeterFrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._meter.receive(frame)
        except (FrameError, msgspec.DecodeError) as error:
            log.warning("the meter sent an invalid frame: %s", error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._meter.lose()
