"""Another client's stream of one event every 10 ms, each with the time at which its upstream sent it.

It is read in a process of its own, and each delay is that of one event on its way: neither what sends the load nor the
upstream, which serves the load as well, adds to it.
"""

import multiprocessing
import re
import socket
import threading
import time
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from bench.survival.clients import connect, request

START_S = 60.0
FIRST = 50  # events, after which the stream counts as begun
BODY = b'{"model": "chat/pace", "stream": true, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}'
SENT_AT = re.compile(rb'"text":"(\d+\.\d{6}) "')


class Pulse:
    """`delays` says how late each event came between the two marks."""

    def __init__(self, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._watcher, there = context.Pipe()
        self._process = context.Process(target=watch, args=(port, there), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        if not self._watcher.poll(START_S):
            raise TimeoutError("the stream beside the case has not begun")
        self._watcher.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()

    def mark(self) -> None:
        """Begin or end the stretch that is measured."""
        self._watcher.send(None)

    def delays(self) -> list[float]:
        """Return the seconds that each event of the stretch took."""
        found: list[float] = self._watcher.recv()
        return found


def watch(port: int, starter: Connection) -> None:
    """Read the stream; say when it has begun, and after two marks what came between them."""
    delays: list[float] = []
    with connect(port) as sock:
        sock.sendall(request("messages", BODY))
        threading.Thread(target=read, args=(sock, delays), daemon=True).start()
        while len(delays) < FIRST:
            time.sleep(0.05)
        starter.send(None)
        marks: list[int] = []
        while len(marks) < 2:
            starter.recv()
            marks.append(len(delays))
        starter.send(delays[slice(*marks)])
        starter.poll(None)


def read(sock: socket.socket, delays: list[float]) -> None:
    held = b""
    while piece := sock.recv(1 << 16):
        now = time.monotonic()
        *events, held = (held + piece).split(b"\n\n")
        delays += [now - float(sent_at) for event in events for sent_at in SENT_AT.findall(event)]
