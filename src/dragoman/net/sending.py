"""What a way to send is: a request and its route come in, an answer from its head on goes out."""

from typing import Protocol

from dragoman.net.client import Dial, Outgoing
from dragoman.net.headers import Headers
from dragoman.net.pouring import Sink


class Answer(Protocol):
    """An upstream's answer from its head on; what it was carried over does not matter."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    async def chunk(self, timeout_s: float) -> bytes: ...
    async def pour(self, sink: Sink, timeout_s: float) -> bool: ...
    async def read(self, limit: int, timeout_s: float) -> bytes: ...
    def close(self) -> None: ...


class Send(Protocol):
    async def __call__(self, out: Outgoing, dial: Dial, *, head_timeout_s: float) -> Answer: ...
