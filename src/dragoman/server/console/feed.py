"""The live feed: one stream for each tab, with the rows that changed and the frames of the request it inspects."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress

import msgspec
from msgspec import Struct

from dragoman import __version__
from dragoman.net.headers import Header
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.ports import OtherProcesses
from dragoman.server.api.operations import AdminAudit
from dragoman.server.api.table import make_own_route, make_route
from dragoman.server.api.wire import Operation, choice_parameter, respond_bytes, response_headers, text_parameter
from dragoman.server.console.found_requests import DESCRIBE_LIVE, FoundRequests, LiveDescription
from dragoman.server.console.gateway_rows import GatewayRows, Watcher, read_position
from dragoman.server.console.inspected_frames import NOT_RECORDED, FrameSource, InspectedRequest
from dragoman.server.console.live_requests import TICK_S, LiveRequests
from dragoman.server.console.stored_hour import HourReader
from dragoman.server.rejections import AuthBackoff
from dragoman.server.routes import HttpRoute, RoutedRequest
from dragoman.store import Store, StoreError
from dragoman.store.console_sessions import SessionRow
from dragoman.tenancy.console_sessions import ConsoleSessions
from dragoman.tenancy.keys import KeyId, Keyring, KeyRow, Scope
from dragoman.translate.hub.failure import Failure, Kind, RequestError

KEEP_ALIVE_S = 15.0
CHECK_S = 0.5  # how often it is checked that the session and its key are still valid
MAX_FEEDS = 100  # at once, of one key, or of all that see every row: each costs time four times a second
BYTES_PER_S = 64 * 1024
BURST_BYTES = 4 * BYTES_PER_S  # what a page that was just opened gets at once
ROW_BYTES = 200  # of a changed row, roughly
ELSEWHERE = " It may be under way on another replica with the same database: replicas see each other with store.shared."
EVENT_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")


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
END_LIVE = Operation("End a request that is under way.", (EndedRequest,))

FindSession = Callable[[HttpRequest], Awaitable[SessionRow | None]]


class ReplicaView(Struct, frozen=True):
    """Of which replicas the console of this one can know. `find_name` returns the name of this one."""

    find_name: Callable[[], str | None]  # None: there is one replica
    has_unknown: bool  # others with the same database are not known


class ShownGateway(Struct, frozen=True, kw_only=True):
    """The parts of a gateway that its console shows and acts on."""

    gateway: Gateway
    keyring: Keyring
    backoff: AuthBackoff
    store: Store | None
    audit: AdminAudit | None  # None without a store
    group: OtherProcesses | None  # None: there is no other process, or none is known
    replica: ReplicaView


class FeedApi:
    """The paths of the live feed. What concerns one request is asked of the process that has it."""

    def __init__(
        self, shown: ShownGateway, live: LiveRequests, sessions: ConsoleSessions, find_session: FindSession
    ) -> None:
        self._store = shown.store
        self._rows = GatewayRows(live, shown.group)
        self._replica = shown.replica
        self._not_recorded = NOT_RECORDED + (ELSEWHERE if shown.replica.has_unknown else "")
        self._requests = FoundRequests(live, shown.group, self._not_recorded)
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

    @STREAM_FEED.handled_by
    async def stream_feed(self, request: RoutedRequest) -> None:
        query = STREAM_FEED.read_query(request)
        inspected = query.text("frames")
        if query.text("watch") not in (None, "live"):
            raise RequestError(Failure(Kind.BAD_REQUEST, "watch must be `live`.", at="/watch"))
        key = None if request.sees_all else request.key
        reads_content = inspected is not None and request.access.may(Scope.CAPTURES_READ)
        if inspected is not None and reads_content:
            await self._record_look(request, inspected)
        session = await self._find_session(request.http)
        if self._rows.count_watchers(key) >= MAX_FEEDS:
            message = (
                f"{MAX_FEEDS} feeds of these rows are already open: close tabs of the console that are not in use."
            )
            raise RequestError(Failure(Kind.RATE_LIMITED, message, retry_after=KEEP_ALIVE_S))
        request.sink.begin(200, [EVENT_STREAM, *response_headers(request)])
        last_id = (request.http.headers.get(b"last-event-id") or b"").decode("latin-1")
        async with self._rows.watch(key, read_position(last_id)) as watcher:
            frames = None
            if inspected is not None:
                frames = await self._requests.open_frames(InspectedRequest(inspected, key, reads_content))
            rows: tuple[KeyRow, ...] = ()
            with suppress(StoreError):  # then keys are shown by their ids
                rows = await self._keyring.list()
            about = {
                "names": {row.id: row.name for row in rows if request.sees_all or row.id == request.key},
                "version": __version__,
                "time": round(time.time() * 1000),
                "sees_all": request.sees_all,
                "one_replica": self._replica.has_unknown,
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
        body = await self._requests.describe(request.rest)
        if not body:
            DESCRIBE_LIVE.respond(request, LiveDescription(None, self._not_recorded))
            return
        await self._record_look(request, request.rest)
        respond_bytes(request, body)

    @END_LIVE.handled_by
    async def end_live(self, request: RoutedRequest) -> None:
        END_LIVE.read_query(request)
        id = request.rest
        holder = await self._requests.find_holder(id)
        if holder is None:
            message = f"No request {id[:80]!r} is under way."
            if self._replica.has_unknown:
                message = f"No request {id[:80]!r} is under way on this replica.{ELSEWHERE}"
            elif self._requests.is_partial:
                message += " It may be on another replica: store.shared does not answer now."
            raise RequestError(Failure(Kind.NOT_FOUND, message, at="/id"))
        async with nullcontext() if self._audit is None else self._audit.recording(request, "live.end", id):
            if not await self._requests.end(holder, id):
                raise RequestError(Failure(Kind.CONFLICT, "This request has already ended.", at="/id"))
        END_LIVE.respond(request, EndedRequest(id))


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


class FeedSources(Struct, frozen=True):
    """What a feed is read from."""

    watcher: Watcher  # of rows that change
    frames: FrameSource | None  # of one request
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
        await self._sink.send(self._changes() + await self._render_frames())

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
                async with asyncio.timeout(longest):
                    await self._watcher.woken.wait()
            if self._watcher.must_end:
                return
            if not await check.is_open():
                await self._sink.send(self._event("ended", {"why": "The session has ended. Sign in again."}))
                return
            await self._count_stored()
            data = self._changes() + await self._render_frames()
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

    async def _render_frames(self) -> bytes:
        taken = None if self._frames is None else await self._frames.take(int(self._count_allowance()))
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
