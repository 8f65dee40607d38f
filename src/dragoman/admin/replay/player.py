"""The questions of a capture come in; their answers are given again, in the same order and at the same pace."""

import asyncio
from email.utils import formatdate, parsedate_to_datetime

from dragoman.flow.capture.format import CANCELLED, CLOSED, WHOLE, Chunk, UpstreamRequest, UpstreamResponse
from dragoman.flow.capture.recording_provider import ERROR_NAMES
from dragoman.net.client import ConnectionLost, DialOptions, InvalidResponse, OutgoingRequest, UpstreamTimeout
from dragoman.net.errors import TimeoutPhase
from dragoman.net.headers import Header, Headers
from dragoman.net.response_body import BodySink, read_chunks, stream_chunks

PHASES: dict[str, TimeoutPhase] = {"connect": "connect", "first": "first", "idle": "idle"}


class Player:
    """Whatever is sent, the next recorded answer comes back."""

    def __init__(self, questions: tuple[UpstreamRequest, ...], age_s: float) -> None:
        """`age_s`: how long ago it all happened."""
        self._questions = questions
        self._age_s = age_s
        self.asked = 0

    async def send(self, out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> "PlayedAnswer":
        place, self.asked = self.asked, self.asked + 1
        if place >= len(self._questions):
            raise ConnectionLost("the capture holds no answer to one more question", sent=False, received=False)
        question = self._questions[place]
        answer = question.response
        if answer is None and question.error == CANCELLED:
            await asyncio.get_running_loop().create_future()  # nothing comes; whoever waits is interrupted again
        if answer is None:
            raise fault_of(question.error)
        began = asyncio.get_running_loop().time() - question.at
        wait_s = answer.at - question.at
        await asyncio.sleep(min(wait_s, head_timeout_s))
        if wait_s > head_timeout_s:
            raise UpstreamTimeout("first", "the recorded answer took longer")
        return PlayedAnswer(answer, [_aged(field, self._age_s) for field in headers_of(answer.headers)], began)


class PlayedAnswer:
    """`began`: the moment, by the loop's clock, that the recorded times count from."""

    def __init__(self, answer: UpstreamResponse, headers: list[Header], began: float) -> None:
        self.status = answer.status
        self.headers = Headers(headers)
        self._chunks = list(reversed(answer.chunks))
        self._answer = answer
        self._began = began
        self._closed = False

    async def chunk(self, timeout_s: float) -> bytes:
        if self._closed:
            raise ConnectionLost("closed by us", sent=True, received=True)
        due = self._due()
        wait_s = timeout_s + 1 if due is None else due - asyncio.get_running_loop().time()
        if wait_s > timeout_s:
            await asyncio.sleep(timeout_s)
            raise UpstreamTimeout("idle", "the recorded answer was silent for longer")
        await asyncio.sleep(max(0.0, wait_s))
        if self._chunks:
            return self._chunks.pop().data
        if self._answer.end == WHOLE:
            return b""
        raise fault_of(self._answer.end)

    async def stream_to(self, sink: BodySink, timeout_s: float) -> bool:
        return await stream_chunks(self.chunk, sink, timeout_s)

    async def read(self, limit: int, timeout_s: float) -> bytes:
        return await read_chunks(self, limit, timeout_s, "the recorded upstream")

    def close(self) -> None:
        self._closed = True

    def _due(self) -> float | None:
        """When the next piece or the end comes; None: nothing more was seen to come."""
        if self._chunks:
            return self._began + self._chunks[-1].at
        return None if self._answer.end in (CLOSED, "") else self._began + self._answer.ended_at


def fault_of(text: str) -> Exception:
    """What `named_fault` wrote."""
    name, _, message = text.partition(": ")
    kind, _, phase = name.partition(" ")
    if kind == ERROR_NAMES[UpstreamTimeout]:
        return UpstreamTimeout(PHASES.get(phase, "first"), message)
    made = InvalidResponse if kind == ERROR_NAMES[InvalidResponse] else ConnectionLost
    return made(message or "the request was given up", sent=True, received=False)


def _aged(field: Header, age_s: float) -> Header:
    """A moment to come back at is as far in the future as it was then."""
    name, value = field
    if name != b"retry-after" or value.isdigit():
        return field
    try:
        moment = parsedate_to_datetime(value.decode("latin-1"))
    except ValueError:
        return field
    return name, formatdate(round(moment.timestamp() + age_s), usegmt=True).encode()


def headers_of(fields: tuple[tuple[str, str], ...]) -> list[Header]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]


def joined(chunks: tuple[Chunk, ...]) -> bytes:
    return b"".join([chunk.data for chunk in chunks])
