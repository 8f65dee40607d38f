"""Exchanges without a client's connection: for requests that the gateway makes of itself, and for replays."""

from collections.abc import Callable, Sequence

from dragoman.net.bodies import ByteBudget
from dragoman.net.errors import ResponseOrderError
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header, Headers
from dragoman.net.request_head import RequestHead


class NoConnection:
    """The connection of a client that reads everything at once and never leaves."""

    def __init__(self, address: str = "") -> None:
        self.address = address

    @property
    def blocked(self) -> bool:
        return False

    def write(self, data: bytes) -> bool:
        return True

    def must_close(self, exchange: Exchange) -> bool:
        return False

    def end_reply(self, exchange: Exchange) -> None:
        return

    def take_over(self, head: bytes, receive: Callable[[bytes], None]) -> None:
        raise ResponseOrderError("there is no connection whose protocol could change")

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def drop(self, exchange: Exchange) -> None:
        return

    async def wait_writable(self) -> None:
        return

    async def wait_for_body(self, exchange: Exchange, *, whole: bool) -> None:
        return

    def mark_authenticated(self) -> None:
        return


class CollectedResponse:
    """A listener that keeps a whole response."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Sequence[Header] = ()
        self._pieces: list[bytes] = []

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    def on_head(self, status: int, headers: Sequence[Header]) -> None:
        self.status, self.headers = status, headers

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_end(self) -> None:
        return


def detached_exchange(path: str, headers: Headers, budget: ByteBudget) -> Exchange:
    """Return the exchange of a POST with these headers that no client waits for; listen to it for the response."""
    head = RequestHead(fields=list(headers), method="POST", path=path, raw_path=path.encode())
    return Exchange(head, NoConnection(), budget)
