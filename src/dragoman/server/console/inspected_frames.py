"""The frames of the request that a tab inspects, as far as they were not sent yet, wherever the request is answered."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec import Struct

from dragoman.operate.captures.timeline import TimelineEntry
from dragoman.proxy.ports import OtherProcesses
from dragoman.server.console.live_frames import MAX_ENTRIES, LiveTimeline, RingTimeline, hide_content
from dragoman.server.console.live_requests import LiveRequests

FRAMES = "frames"
ENTRY_BYTES = 60  # of a frame, without its text
READER_S = 10.0  # after its last question, another process counts as no longer reading
MAX_READERS = 100  # of other processes
NOT_RECORDED = (
    "This request has ended, and was not recorded. A request is recorded if it began while the console was open, or if "
    "debug.capture is on."
)


class FrameSource(Protocol):
    """The frames of one request, read in turn."""

    async def take(self, most: int) -> dict[str, object] | None:
        """Return what is new, up to this number of bytes; None if nothing is."""

    def close(self) -> None: ...


class InspectedRequest(Struct, frozen=True):
    """Whose frames are read; `key` None: whoever sent it."""

    id: str
    key: str | None
    with_content: bool


class InspectedFrames:
    """The frames of a request of this process: what is recorded, or what comes from now on."""

    def __init__(self, live: LiveRequests, inspected: InspectedRequest, not_recorded: str) -> None:
        self._live = live
        self._inspected = inspected
        self._not_recorded = not_recorded
        self._timeline: LiveTimeline | RingTimeline | None = None
        self._waiting: deque[TimelineEntry] = deque(maxlen=MAX_ENTRIES)
        self._is_explained = False

    async def take(self, most: int) -> dict[str, object] | None:
        return self.take_now(most)

    def take_now(self, most: int) -> dict[str, object] | None:
        """Return what is new, up to this number of bytes; None if nothing is."""
        if self._timeline is None and not self._open():
            if self._is_explained:
                return None
            self._is_explained = True
            return {"request_id": self._inspected.id, "entries": [], "dropped": 0, "problem": self._not_recorded}
        assert self._timeline is not None
        for entry in self._timeline.read():
            self._waiting.append(entry if self._inspected.with_content else hide_content(entry))
        taken: list[TimelineEntry] = []
        while self._waiting and most > 0:
            taken.append(self._waiting.popleft())
            most -= len(taken[-1].text) + ENTRY_BYTES
        return self._describe(taken) if taken or not self._is_explained else None

    def close(self) -> None:
        if self._timeline is not None:
            self._timeline.close()

    def _open(self) -> bool:
        id, key = self._inspected.id, self._inspected.key
        recording = self._live.find_recording(id, key)
        if recording is not None:
            self._timeline = LiveTimeline(recording)
        elif (ring := self._live.open_ring(id, key)) is not None:
            self._timeline = RingTimeline(ring)
        return self._timeline is not None

    def _describe(self, taken: list[TimelineEntry]) -> dict[str, object]:
        """Describe frames; with the first ones, the reader forgets those that an earlier connection brought."""
        assert self._timeline is not None
        is_first, self._is_explained = not self._is_explained, True
        return {
            "request_id": self._inspected.id,
            "entries": taken,
            "dropped": self._timeline.dropped,
            "with_content": self._inspected.with_content,
            "first": is_first,
            "late": isinstance(self._timeline, RingTimeline),
        }


class _Question(Struct):
    reader: str
    inspected: InspectedRequest
    taken: int  # answers that the reader has got
    most: int


_FIELD = "about"


class RemoteFrames:
    """The frames of a request of another process, which gets a question each time."""

    def __init__(self, others: OtherProcesses, holder: str, inspected: InspectedRequest) -> None:
        self._others = others
        self._holder = holder
        self._inspected = inspected
        self._reader = secrets.token_hex(8)
        self._taken = 0

    async def take(self, most: int) -> dict[str, object] | None:
        question = _Question(self._reader, self._inspected, self._taken, most)
        about = {_FIELD: msgspec.json.encode(question).decode()}
        answer = await self._others.ask(self._holder, FRAMES, about)
        if not answer:
            return None
        self._taken += 1
        return msgspec.json.decode(answer, type=dict[str, object])

    def close(self) -> None:
        """The other process notices that the questions have stopped."""


class _Reader(Struct):
    frames: InspectedFrames
    last_question_at: float
    count: int = 0  # of answers with frames
    last: bytes = b""


class FramesForOthers:
    """Answers processes whose tabs inspect a request of this one."""

    def __init__(self, live: LiveRequests, others: OtherProcesses) -> None:
        self._live = live
        self._readers: dict[str, _Reader] = {}
        self._expiry: asyncio.TimerHandle | None = None
        others.answer(FRAMES, self._answer)

    async def _answer(self, question: Mapping[str, str]) -> bytes:
        given = msgspec.json.decode(question[_FIELD], type=_Question)
        reader = self._readers.get(given.reader)
        if reader is None:
            if len(self._readers) >= MAX_READERS:
                return b""
            reader = _Reader(InspectedFrames(self._live, given.inspected, NOT_RECORDED), 0.0)
            self._readers[given.reader] = reader
        reader.last_question_at = time.monotonic()
        if self._expiry is None:
            self._expire()
        if given.taken < reader.count:  # the last answer was lost
            return reader.last
        taken = reader.frames.take_now(given.most)
        if taken is None:
            return b""
        reader.count, reader.last = given.taken + 1, msgspec.json.encode(taken)
        return reader.last

    def _expire(self) -> None:
        """Forget those that ask no more, until there are none."""
        silent_since = time.monotonic() - READER_S
        for name, reader in list(self._readers.items()):
            if reader.last_question_at < silent_since:
                self._readers.pop(name).frames.close()
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(READER_S / 2, self._expire) if self._readers else None
