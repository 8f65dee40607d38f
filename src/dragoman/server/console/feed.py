"""The live feed: one stream for each tab, with the rows that changed and the frames of the request it inspects."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from dragoman import __version__
from dragoman.net.headers import Header
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.operate.captures.files import CaptureDescription
from dragoman.operate.captures.timeline import TimelineEntry
from dragoman.proxy.gateway import Gateway
from dragoman.server.api.operations import AdminAudit
from dragoman.server.api.table import make_own_route, make_route
from dragoman.server.api.wire import Operation, choice_parameter, respond_bytes, response_headers, text_parameter
from dragoman.server.console.gateway_rows import GatewayRows, Watcher, read_position
from dragoman.server.console.live_frames import (
    MAX_ENTRIES,
    LiveTimeline,
    RingTimeline,
    describe_recording,
    hide_content,
)
from dragoman.server.console.live_requests import TICK_S, LiveRequest, LiveRequests
from dragoman.server.console.stored_hour import HourReader
from dragoman.server.rejections import AuthBackoff
from dragoman.server.routes import HttpRoute, RoutedRequest
from dragoman.store import Store, StoreError
from dragoman.store.console_sessions import SessionRow
from dragoman.tenancy.console_sessions import ConsoleSessions
from dragoman.tenancy.keys import KeyId, Keyring, KeyRow, Scope
from dragoman.translate.hub.failure import Failure, Kind, RequestError

if TYPE_CHECKING:
    from dragoman.server.worker_group import WorkerGroup

KEEP_ALIVE_S = 15.0
CHECK_S = 0.5  # how often it is checked that the session and its key are still valid
BYTES_PER_S = 64 * 1024
BURST_BYTES = 4 * BYTES_PER_S  # what a page that was just opened gets at once
ROW_BYTES = 200  # of a changed row, roughly
ENTRY_BYTES = 60  # of a frame, without its text
EVENT_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")
NOT_RECORDED = (
    "This request has ended, and was not recorded. A request is recorded if it began while the console was open, or if "
    "debug.capture is on."
)
HAS_REQUEST = "has-request"


class LiveDescription(Struct, frozen=True):
    """What is recorded of a request, in the shape of its capture; null if nothing is, and `problem` says why."""

    description: CaptureDescription | None
    problem: str


class EndedRequest(Struct, frozen=True):
    ended: str


STREAM_FEED = Operation(
    "Stream rows that change, and the frames of one request, as server-sent events.",
    (str,),
    (
        choice_parameter("watch", "Go on with what changes; without it, send what there is now, and end.", ["live"]),
        text_parameter("frames", "The id of the request whose frames are sent."),
    ),
    media_types=("text/event-stream",),
)
DESCRIBE_LIVE = Operation("Describe what is recorded of a request in memory.", (LiveDescription,))
END_LIVE = Operation("End a request that is under way.", (EndedRequest,))

FindSession = Callable[[HttpRequest], Awaitable[SessionRow | None]]


class ShownGateway(Struct, frozen=True, kw_only=True):
    """The parts of a gateway that its console shows and acts on."""

    gateway: Gateway
    keyring: Keyring
    backoff: AuthBackoff
    store: Store | None
    audit: AdminAudit | None  # None without a store
    group: "WorkerGroup | None"  # None: there is one worker


class FeedApi:
    """The paths of the live feed. What concerns one request is answered by the worker that has it."""

    def __init__(
        self, shown: ShownGateway, live: LiveRequests, sessions: ConsoleSessions, find_session: FindSession
    ) -> None:
        group = shown.group
        self._store = shown.store
        self._live = live
        self._group = group
        self._rows = GatewayRows(live, group)
        if group is not None:
            group.answer(HAS_REQUEST, self._answer_has_request)
        self._find_session = find_session
        self._sessions = sessions
        self._keyring = shown.keyring
        self._audit = shown.audit

    def routes(self) -> Iterator[HttpRoute]:
        yield make_own_route("GET", "feed", lambda: self.stream_feed, Scope.REQUESTS_READ)
        yield make_route("GET", "live/{id}", lambda: self.describe_live, Scope.CAPTURES_READ)
        yield make_route("DELETE", "live/{id}", lambda: self.end_live, Scope.REQUESTS_END)

    def begin_stop(self) -> None:
        """End all feeds."""
        self._rows.begin_stop()

    async def _forwards(self, request: RoutedRequest, id: str) -> bool:
        """Pass a request on if it is about one that another worker has; return whether that is so."""
        if self._group is None or request.is_forwarded or self._has_request(id):
            return False
        answers = await self._group.ask_all(HAS_REQUEST, {"id": id})
        for worker, answer in answers.items():
            if answer:
                await self._group.forward(request, worker)
                return True
        return False

    def _has_request(self, id: str) -> bool:
        return self._live.find(id, None) is not None or self._live.find_recording(id, None) is not None

    async def _answer_has_request(self, question: dict[str, str]) -> bytes:
        return b"yes" if self._has_request(question["id"]) else b""

    @STREAM_FEED.handled_by
    async def stream_feed(self, request: RoutedRequest) -> None:
        query = STREAM_FEED.read_query(request)
        inspected = query.text("frames")
        if query.text("watch") not in (None, "live"):
            raise RequestError(Failure(Kind.BAD_REQUEST, "watch must be `live`.", at="/watch"))
        if inspected is not None and await self._forwards(request, inspected):
            return
        key = None if request.sees_all else request.key
        reads_content = inspected is not None and request.access.may(Scope.CAPTURES_READ)
        if inspected is not None and reads_content:
            await self._record_look(request, inspected)
        session = await self._find_session(request.http)
        request.sink.begin(200, [EVENT_STREAM, *response_headers(request)])
        last_id = (request.http.headers.get(b"last-event-id") or b"").decode("latin-1")
        async with self._rows.watch(key, read_position(last_id)) as watcher:
            frames = None if inspected is None else InspectedFrames(self._live, inspected, key, reads_content)
            rows: tuple[KeyRow, ...] = ()
            with suppress(StoreError):  # then keys are shown by their ids
                rows = await self._keyring.list()
            about = {
                "names": {row.id: row.name for row in rows if request.sees_all or row.id == request.key},
                "version": __version__,
                "time": round(time.time() * 1000),
                "sees_all": request.sees_all,
            }
            sources = FeedSources(watcher, frames, HourReader(self._store, key))
            stream = FeedStream(request.sink, sources, about)
            try:
                await stream.send_all()
                if query.text("watch") is not None:
                    check = SessionCheck(self._sessions, session, self._keyring, request.key)
                    await stream.run(check)
            finally:
                stream.close()
        request.sink.end()

    async def _record_look(self, request: RoutedRequest, subject: str) -> None:
        if self._audit is not None:
            await self._audit.record(request, "live.read", subject)

    @DESCRIBE_LIVE.handled_by
    async def describe_live(self, request: RoutedRequest) -> None:
        if await self._forwards(request, request.rest):
            return
        recording = self._live.find_recording(request.rest, None)
        if recording is None:
            DESCRIBE_LIVE.respond(request, LiveDescription(None, NOT_RECORDED))
            return
        await self._record_look(request, request.rest)
        live = self._live.find(request.rest, None)
        capture = recording.make_capture(None if live is None else live.find_outcome())
        secrets = frozenset(recording.secrets)
        body = await asyncio.to_thread(
            lambda: DESCRIBE_LIVE.encode(LiveDescription(describe_recording(capture, secrets), ""))
        )
        respond_bytes(request, body)

    @END_LIVE.handled_by
    async def end_live(self, request: RoutedRequest) -> None:
        END_LIVE.read_query(request)
        if await self._forwards(request, request.rest):
            return
        live = self._find(request)
        async with nullcontext() if self._audit is None else self._audit.recording(request, "live.end", request.rest):
            if not self._live.end_stream(live):
                raise RequestError(Failure(Kind.CONFLICT, "This request has ended already.", at="/id"))
        END_LIVE.respond(request, EndedRequest(request.rest))

    def _find(self, request: RoutedRequest) -> LiveRequest:
        live = self._live.find(request.rest, None)
        if live is None:
            raise RequestError(Failure(Kind.NOT_FOUND, f"No request {request.rest[:80]!r} is under way.", at="/id"))
        return live


class SessionCheck:
    """Checks whether the key of a feed, and its session if any, is still valid. Reads the store twice a second."""

    def __init__(self, sessions: ConsoleSessions, session: SessionRow | None, keyring: Keyring, key: KeyId) -> None:
        self._sessions = sessions
        self._session = session
        self._keyring = keyring
        self._key = key
        self._checked_at = time.monotonic()

    async def is_open(self) -> bool:
        if time.monotonic() - self._checked_at < CHECK_S:
            return True
        self._checked_at = time.monotonic()
        if self._session is None:
            return self._keyring.is_valid(self._key)
        try:
            return await self._sessions.is_open(self._session)
        except StoreError:
            return self._keyring.is_valid(self._key)  # as for any other request while the store is down


class InspectedFrames:
    """The frames of one request, as far as they were not sent yet: what is recorded, or what comes from now on."""

    def __init__(self, live: LiveRequests, request_id: str, key: str | None, with_content: bool) -> None:
        self._live = live
        self._request_id = request_id
        self._key = key
        self._with_content = with_content
        self._timeline: LiveTimeline | RingTimeline | None = None
        self._waiting: deque[TimelineEntry] = deque(maxlen=MAX_ENTRIES)
        self._is_explained = False

    def take(self, most: int) -> dict[str, object] | None:
        """Return what is new, up to this number of bytes; None if nothing is."""
        if self._timeline is None and not self._open():
            if self._is_explained:
                return None
            self._is_explained = True
            return {"request_id": self._request_id, "entries": [], "dropped": 0, "problem": NOT_RECORDED}
        assert self._timeline is not None
        for entry in self._timeline.read():
            self._waiting.append(entry if self._with_content else hide_content(entry))
        taken: list[TimelineEntry] = []
        while self._waiting and most > 0:
            taken.append(self._waiting.popleft())
            most -= len(taken[-1].text) + ENTRY_BYTES
        return self._describe(taken) if taken or not self._is_explained else None

    def close(self) -> None:
        if self._timeline is not None:
            self._timeline.close()

    def _open(self) -> bool:
        recording = self._live.find_recording(self._request_id, self._key)
        if recording is not None:
            self._timeline = LiveTimeline(recording)
        elif (ring := self._live.open_ring(self._request_id, self._key)) is not None:
            self._timeline = RingTimeline(ring)
        return self._timeline is not None

    def _describe(self, taken: list[TimelineEntry]) -> dict[str, object]:
        """Describe frames; with the first ones, the reader forgets those that an earlier connection brought."""
        assert self._timeline is not None
        is_first, self._is_explained = not self._is_explained, True
        return {
            "request_id": self._request_id,
            "entries": taken,
            "dropped": self._timeline.dropped,
            "with_content": self._with_content,
            "first": is_first,
            "late": isinstance(self._timeline, RingTimeline),
        }


class FeedSources(Struct, frozen=True):
    """What a feed is read from."""

    watcher: Watcher  # of rows that change
    frames: InspectedFrames | None  # of one request
    hour: HourReader


class FeedStream:
    """Writes a feed: at most four times a second, and no more bytes than BYTES_PER_S."""

    def __init__(self, sink: ReplySink, sources: FeedSources, about: dict[str, object]) -> None:
        self._hour = sources.hour
        self._sink = sink
        self._watcher = sources.watcher
        self._frames = sources.frames
        self._about = about
        self._allowance = float(BURST_BYTES)
        self._counted_at = time.monotonic()

    async def send_all(self) -> None:
        """Send what there is now, or what changed since the last event that the reader has."""
        await self._count_stored()
        await self._sink.send(self._changes() + self._render_frames())

    def close(self) -> None:
        if self._frames is not None:
            self._frames.close()

    async def run(self, check: SessionCheck) -> None:
        """Send what changes until the client leaves, its session ends or the gateway stops."""
        sent_at = time.monotonic()
        while True:
            started = time.monotonic()
            # Wait until something changed, but not longer than until the next check.
            longest = TICK_S if self._frames is not None else CHECK_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._watcher.woken.wait(), longest)
            if self._watcher.must_end:
                return
            if not await check.is_open():
                await self._sink.send(self._event("ended", {"why": "The session has ended. Sign in again."}))
                return
            await self._count_stored()
            data = self._changes() + self._render_frames()
            if not data and time.monotonic() - sent_at >= KEEP_ALIVE_S:
                data = b": still here\n\n"
            if data:
                await self._sink.send(data)
                sent_at = time.monotonic()
            await asyncio.sleep(max(0.0, started + TICK_S - time.monotonic()))

    async def _count_stored(self) -> None:
        self._watcher.stored = await self._hour.read()
        self._watcher.wake_if_changed()

    def _changes(self) -> bytes:
        """Return what changed; `hello` before it tells the reader to forget the rows that it has."""
        watcher = self._watcher
        if not watcher.woken.is_set():
            return b""
        if watcher.count_pending() * ROW_BYTES > self._count_allowance():
            return self._event("rows", {"rows": [], "gone": [], "totals": watcher.totals, "behind": True})
        taken = watcher.take()
        about = {**self._about, "is_partial": taken.is_partial}
        hello = self._event("hello", about) if taken.is_whole else b""
        rows = {"rows": taken.rows, "gone": taken.gone, "totals": watcher.totals, "behind": False}
        return hello + self._event("rows", rows, watcher.position)

    def _render_frames(self) -> bytes:
        taken = None if self._frames is None else self._frames.take(int(self._count_allowance()))
        return b"" if taken is None else self._event("frames", taken)

    def _count_allowance(self) -> float:
        """Return how many bytes may be sent now."""
        now = time.monotonic()
        self._allowance = min(BURST_BYTES, self._allowance + (now - self._counted_at) * BYTES_PER_S)
        self._counted_at = now
        return self._allowance

    def _event(self, name: str, value: dict[str, object], id: str = "") -> bytes:
        """Return an event; one with an id can be resumed after."""
        mark = f"id: {id}\n".encode() if id else b""
        data = b"%bevent: %b\ndata: %b\n\n" % (mark, name.encode(), msgspec.json.encode(value))
        self._allowance -= len(data)
        return data
