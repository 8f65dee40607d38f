"""Answers the other processes of this machine that ask the meter in this one's memory."""

import asyncio
import logging
import os
from contextlib import suppress
from typing import cast

import msgspec

from dragoman.net.socket_directory import make_socket_directory
from dragoman.net.tasks import spawn
from dragoman.store.meter import Announce, Beat, Missing, Operation
from dragoman.tenancy.memory_meter import MemoryMeter
from dragoman.tenancy.meter_frames import (
    AnswerFrame,
    FrameError,
    Levels,
    MeterFrameReader,
    Read,
    read_questions,
    write_frame,
)

log = logging.getLogger(__name__)


class MeterServer:
    """Listens on a Unix socket in a directory that only this user can enter: a given one, or one of its own."""

    def __init__(self, meter: MemoryMeter, others: int, directory: str = "") -> None:
        self.meter = meter
        self.address = ""
        self._expected = others  # processes that will announce their leases
        self._announced: set[str] = set()
        self._given = directory
        self._own = ""
        self._server: asyncio.Server | None = None
        self._connections: set[_Asker] = set()

    async def start(self) -> None:
        """Listen; `address` is the path of the socket then. Raises OSError."""
        if self._expected:
            self.meter.wait_for_others()
        self._own = "" if self._given else make_socket_directory("meter")
        self.address = f"{self._given or self._own}/meter"
        with suppress(FileNotFoundError):
            os.unlink(self.address)  # of a process before, which was killed
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Asker(self), self.address)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for connection in [*self._connections]:
                connection.close()
        with suppress(OSError):
            os.unlink(self.address)
        if self._own:
            with suppress(OSError):
                os.rmdir(self._own)

    def add(self, connection: "_Asker") -> None:
        self._connections.add(connection)

    def remove(self, connection: "_Asker") -> None:
        self._connections.discard(connection)

    def note_announced(self, process: str) -> None:
        """Note that a process has announced its leases."""
        self._announced.add(process)
        if len(self._announced) >= self._expected:
            self.meter.end_waiting()


class _Asker(asyncio.Protocol):
    """The connection of one process."""

    def __init__(self, server: MeterServer) -> None:
        self._server = server
        self._meter = server.meter
        self._frames = MeterFrameReader()
        self._transport: asyncio.Transport | None = None
        self._process = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        self._server.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.remove(self)
        if self._process:
            spawn(self._meter.end_process(self._process), name="meter process")

    def close(self) -> None:
        self._process = ""  # it goes on elsewhere
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        answers: list[AnswerFrame] = []
        try:
            for frame in self._frames.feed(data):
                for number, question in read_questions(frame):
                    self._answer(number, question, answers)
        except (FrameError, msgspec.DecodeError) as error:
            log.warning("a process sent the meter an invalid frame: %s", error)
            if self._transport is not None:
                self._transport.abort()
            return
        self._send(answers)

    def _answer(self, number: int, question: Operation | Read, answers: list[AnswerFrame]) -> None:
        # Types are compared: `isinstance` of a struct that does not fit is slow.
        if type(question) is Read:
            spawn(self._read(number, question), name="meter read")
            return
        if type(question) is Beat or type(question) is Announce:
            self._process = question.process
            self._meter.hear(self._process)
        result = self._meter.counters.apply(question)
        if type(result) is Missing:
            spawn(self._answer_later(number, question, result), name="meter answer")
            return
        if type(question) is Beat and question.leases is not None:
            self._server.note_announced(self._process)
        answers.append((number, result))

    async def _answer_later(self, number: int, question: Operation, missing: Missing) -> None:
        self._send([(number, await self._meter.seed_and_apply(question, missing))])

    async def _read(self, number: int, question: Read) -> None:
        self._send([(number, Levels(tuple(await self._meter.read(question.counters))))])

    def _send(self, answers: list[AnswerFrame]) -> None:
        if answers and self._transport is not None and not self._transport.is_closing():
            self._transport.write(write_frame(answers))
