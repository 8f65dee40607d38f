"""A vendor on the loopback: paths with default answers, scripts that take precedence, and a record of all requests."""

import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from fakes.upstream import Answer, FakeUpstream, ReceivedRequest


def json_answer(
    value: object, status: int = 200, headers: tuple[tuple[str, str], ...] = (), delay_s: float = 0.0
) -> Answer:
    body = msgspec.json.encode(value)
    return Answer(body, status, "application/json", headers, chunked=False, delay_s=delay_s)


def plain(text: str, status: int) -> Answer:
    return Answer(text.encode(), status, "text/plain", chunked=False)


def stream(*events: dict[str, object], headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Server-sent events, each named by its type."""
    body = b"".join(
        b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), msgspec.json.encode(event)) for event in events
    )
    return Answer(body, headers=headers)


class FakeService(FakeUpstream):
    """`script(path, …)` prepares answers that a path gives before its usual ones; `before[path]` is called
    when a request for it has come.
    """

    usual: ClassVar[dict[str, Callable[..., Answer]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.before: dict[str, Callable[[], object]] = {}
        self.ahead_s = 0.0  # how far its clock is ahead of ours
        self._scripts: dict[str, deque[Answer]] = {}

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def section(self, credentials: str | list[str], **settings: object) -> str:
        """Return the lines of a dragoman.toml that point here."""

    def script(self, path: str, *answers: Answer) -> None:
        self._scripts.setdefault(path, deque()).extend(answers)

    def at(self, path: str) -> list[ReceivedRequest]:
        return [request for request in self.requests if urlsplit(request.path).path == path]

    def _answer(self, request: ReceivedRequest) -> Answer:
        answer = self._choose(request)
        date = formatdate(time.time() + self.ahead_s, usegmt=True)
        return replace(answer, headers=(*answer.headers, ("date", date)))

    def _choose(self, request: ReceivedRequest) -> Answer:
        path = urlsplit(request.path).path
        self.counts[path] += 1
        if path in self.before:
            self.before[path]()
        if self._scripts.get(path):
            return self._scripts[path].popleft()
        if path not in self.usual:
            return json_answer({"message": "Not Found"}, 404)
        return self.usual[path](self, request)
