"""Requests under way, wherever they are answered: which process has one, what is recorded of it, and its end."""

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from dragoman.operate.captures.files import CaptureDescription
from dragoman.proxy.ports import OtherProcesses
from dragoman.server.api.wire import Operation
from dragoman.server.console.inspected_frames import (
    FramesForOthers,
    FrameSource,
    InspectedFrames,
    InspectedRequest,
    RemoteFrames,
)
from dragoman.server.console.live_frames import describe_recording
from dragoman.server.console.live_requests import LiveRequests
from dragoman.server.worker_group import MAX_ANSWER_BYTES
from dragoman.translate.hub.failure import Failure, Kind, RequestError

HAS_REQUEST, DESCRIBE_REQUEST, END_REQUEST = "has-request", "describe-request", "end-request"
ENDED, HAD_ENDED = b"ended", b"had ended"


class LiveDescription(Struct, frozen=True):
    """What is recorded of a request, in the shape of its capture; null if nothing is, and `problem` says why."""

    description: CaptureDescription | None
    problem: str


DESCRIBE_LIVE = Operation("Describe what is recorded of a request in memory.", (LiveDescription,))


HERE = ""  # instead of the name of a process: this one


class FoundRequests:
    """Does what concerns one request in the process that has it."""

    def __init__(self, live: LiveRequests, others: OtherProcesses | None, not_recorded: str) -> None:
        self._live = live
        self._others = others
        self._not_recorded = not_recorded  # what a reader of frames gets if no process has the request
        if others is not None:
            self._frames = FramesForOthers(live, others)
            others.answer(HAS_REQUEST, self._answer_has)
            others.answer(DESCRIBE_REQUEST, self._answer_describe)
            others.answer(END_REQUEST, self._answer_end)

    @property
    def is_partial(self) -> bool:
        """Whether there may be processes which cannot be asked now."""
        return self._others is not None and self._others.is_partial

    async def find_holder(self, id: str) -> str | None:
        """Return the process that has a request, under way or recorded: HERE, or its name; None if none has."""
        if self._has(id):
            return HERE
        answers = {} if self._others is None else await self._others.ask_all(HAS_REQUEST, {"id": id})
        return next((process for process, answer in answers.items() if answer), None)

    async def open_frames(self, inspected: InspectedRequest) -> FrameSource:
        """Return what reads the frames of a request."""
        holder = await self.find_holder(inspected.id)
        if not holder or self._others is None:
            return InspectedFrames(self._live, inspected, self._not_recorded)
        return RemoteFrames(self._others, holder, inspected)

    async def describe(self, id: str) -> bytes:
        """Return what is recorded of a request, as the body of a response; empty if nothing is."""
        holder = await self.find_holder(id)
        return await self._ask(holder, DESCRIBE_REQUEST, id) if holder else await self._describe(id)

    async def end(self, holder: str, id: str) -> bool:
        """End a request of the process that has it; return whether it was still under way."""
        return await self._ask(holder, END_REQUEST, id) == ENDED if holder else self._end(id)

    async def _ask(self, holder: str, name: str, id: str) -> bytes:
        assert self._others is not None
        answer = await self._others.ask(holder, name, {"id": id})
        if answer is None:
            message = "The process that has this request does not answer. Try again in a second."
            raise RequestError(Failure(Kind.OVERLOADED, message, retry_after=1.0))
        return answer

    # In this process

    def _has(self, id: str) -> bool:
        return self._live.find(id, None) is not None or self._live.find_recording(id, None) is not None

    async def _describe(self, id: str) -> bytes:
        recording = self._live.find_recording(id, None)
        if recording is None:
            return b""
        live = self._live.find(id, None)
        capture = recording.make_capture(None if live is None else live.find_outcome())
        secrets = frozenset(recording.secrets)
        return await asyncio.to_thread(
            lambda: DESCRIBE_LIVE.encode(LiveDescription(describe_recording(capture, secrets), ""))
        )

    def _end(self, id: str) -> bool:
        live = self._live.find(id, None)
        return live is not None and self._live.end_stream(live)

    async def _answer_has(self, question: Mapping[str, str]) -> bytes:
        return b"yes" if self._has(question["id"]) else b""

    async def _answer_describe(self, question: Mapping[str, str]) -> bytes:
        body = await self._describe(question["id"])
        if len(body) <= MAX_ANSWER_BYTES:
            return body
        problem = (
            f"What is recorded of this request has {len(body)} bytes, more than the {MAX_ANSWER_BYTES} that a process "
            "sends another. Open the console of the replica that answers it."
        )
        return DESCRIBE_LIVE.encode(LiveDescription(None, problem))

    async def _answer_end(self, question: Mapping[str, str]) -> bytes:
        return ENDED if self._end(question["id"]) else HAD_ENDED
