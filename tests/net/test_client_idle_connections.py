"""An idle connection on which the server has sent bytes or a FIN that the event loop has not seen yet."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from dragoman.net.client import HttpClient, OutgoingRequest
from fakes.loops import on_both_loops

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
EVIL = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
PATIENCE_S = 30.0


class Hasty(threading.Thread):
    """Answers once per connection; on request it sends more bytes and closes, without an event loop of its own."""

    def __init__(self, listening: socket.socket, last_word: bytes) -> None:
        super().__init__(daemon=True)
        self._listening = listening
        self._last_word = last_word
        self._leave = threading.Event()
        self._left = threading.Event()
        self.visits = 0

    def run(self) -> None:
        while True:
            try:
                visitor, _ = self._listening.accept()
            except OSError:
                return
            self.visits += 1
            with visitor:
                visitor.recv(65536)
                visitor.sendall(OK)
                self._leave.wait(PATIENCE_S)
                visitor.sendall(self._last_word)
            self._left.set()

    def leave(self) -> None:
        """Returns when it has."""
        self._leave.set()
        assert self._left.wait(PATIENCE_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"


@contextmanager
def hasty(last_word: bytes) -> Iterator[Hasty]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        server = Hasty(listening, last_word)
        server.start()
        yield server
        listening.shutdown(socket.SHUT_RDWR)
        server.join(PATIENCE_S)


@pytest.mark.parametrize("last_word", [b"", EVIL], ids=["nothing", "a stray answer"])
@on_both_loops
async def test_a_connection_with_unread_bytes_is_not_reused(client: HttpClient, last_word: bytes) -> None:
    with hasty(last_word) as server:
        question = OutgoingRequest("POST", server.url, (), b"{}")
        assert await (await client.send(question, head_timeout_s=PATIENCE_S)).read(9, PATIENCE_S) == b"ok"
        server.leave()
        assert await (await client.send(question, head_timeout_s=PATIENCE_S)).read(9, PATIENCE_S) == b"ok"
        assert server.visits == 2
