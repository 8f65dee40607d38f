"""Which files of dragoman run, and how many frames they enter, from one read of a socket to the next."""

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType

import dragoman
from gateway import Running

SOURCE = f"{Path(dragoman.__file__).parent}/"
READS, WRITES = ("recv", "recv_into"), ("send", "sendmsg")
# Later versions of Python run comprehensions in the frame around them.
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")


@dataclass
class Step:
    """What runs between a read of one of the two sockets and the next read."""

    reads: str  # the side whose bytes were read: "client" or "upstream"
    files: list[str] = field(default_factory=list)  # of each frame, in order; a coroutine that goes on is one, too
    writes: list[int] = field(default_factory=list)  # for each write to the client, the number of frames before it

    @property
    def frames(self) -> int:
        return len(self.files)


class PathTrace:
    """Follows the thread of a gateway while it answers one request."""

    def __init__(self, ports: dict[int, str]) -> None:
        self._ports = ports  # the ports of the two peers, and the side that each is
        self._names: dict[CodeType, str | None] = {}
        self.steps: list[Step] = []

    def follow(self, frame: FrameType, event: str, value: object) -> None:
        if event == "call" and self.steps:
            name = self._name(frame.f_code)
            if name is not None:
                self.steps[-1].files.append(name)
        elif event == "c_call" and isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, socket.socket):
            self._record(value.__name__, value.__self__)

    def _name(self, code: CodeType) -> str | None:
        """Return the file of a frame's code; None if the frame is none of ours."""
        if code not in self._names:
            is_ours = code.co_filename.startswith(SOURCE) and code.co_name not in COMPREHENSIONS
            self._names[code] = code.co_filename.removeprefix(SOURCE) if is_ours else None
        return self._names[code]

    def _record(self, operation: str, sock: socket.socket) -> None:
        if sock.family != socket.AF_INET:  # by which the event loop wakes itself
            return
        side = self._ports.get(sock.getpeername()[1])
        if side is None:
            return
        if operation in READS:
            self.steps.append(Step(side))
        elif operation in WRITES and side == "client" and self.steps:
            self.steps[-1].writes.append(self.steps[-1].frames)


@contextmanager
def trace_path(gateway: Running, ports: dict[int, str]) -> Iterator[PathTrace]:
    """Follow a gateway's thread until the block ends; its requests are slower meanwhile."""
    trace = PathTrace(ports)

    async def begin() -> None:
        sys.setprofile(trace.follow)

    async def end() -> None:
        sys.setprofile(None)

    asyncio.run_coroutine_threadsafe(begin(), gateway.loop).result(60)
    try:
        yield trace
    finally:
        asyncio.run_coroutine_threadsafe(end(), gateway.loop).result(60)
