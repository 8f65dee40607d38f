"""Responses over a WebSocket: lanes of requests, with the memory of the connection."""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from dragoman.net.body_threads import run_off_loop
from dragoman.net.errors import BufferBudgetExceeded, ClientDisconnected, describe_fault
from dragoman.net.headers import Header
from dragoman.net.http_request import HttpRequest
from dragoman.net.request_head import RequestHead
from dragoman.net.sink import DetachedSink
from dragoman.net.tasks import spawn
from dragoman.net.websocket import SocketMessage, WebSocket
from dragoman.proxy.call import Call
from dragoman.proxy.failures import respond_with_failure, retry_headers
from dragoman.proxy.reply_bounds import no_room_failure
from dragoman.proxy.response_headers import request_id_headers
from dragoman.proxy.run_headers import KEY, LAST_EVENT, PARK, RESUME
from dragoman.proxy.serve import Services, serve_lane, serve_without_model
from dragoman.server.rejections import key_failure
from dragoman.server.routes import RoutedRequest, make_call
from dragoman.server.unknown_models import HoldBack
from dragoman.state.service import ResponseService
from dragoman.state.socket_memory import HeldRequest, SocketMemory
from dragoman.state.stored_call import StoredCall
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.ports import Client
from dragoman.translate.hub.request import Json
from dragoman.translate.protocols.responses.state_items import read_request

log = logging.getLogger(__name__)

MAX_RUNNING = 16
MAX_LANES = 32
MAX_WAITING = 64  # requests of a connection, those under way included
GOING_AWAY, FAILED, RESTARTING = 1001, 1011, 1012  # codes after which clients connect again
DEFAULT_LANE = ""
_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_OF_SOCKET = frozenset(("type", "stream_id", "generate", "stream", "background"))  # not part of a request


class QueuedRequest(Struct, frozen=True):
    """A request of a lane. Nothing but its body is kept: what was read from it would take as much again."""

    body: bytes  # as it would be posted
    generates: bool  # False: it is answered without a model
    previous: str  # the id of the response that it continues
    size: int  # bytes of the message that it came in


class SocketServices(Struct, frozen=True):
    """What a session uses of the gateway."""

    story: Services
    service: ResponseService
    protocol: str
    hold_back: HoldBack  # awaited before a request is refused
    is_authorised: Callable[[HttpRequest], bool]  # whether the key of the handshake is still valid


class LaneSink(DetachedSink):
    """Sends the events of a stream as messages of a lane, held back while the socket is; keeps the body of an error.

    A stream that fails has an `error` event and then `response.failed`. Over a WebSocket a message of the type `error`
    refuses a request, so that the event is sent only if nothing follows it.
    """

    def __init__(self, socket: WebSocket, send: Callable[[bytes], None], echoed_id: bytes = b"") -> None:
        super().__init__(echoed_id)
        self._socket = socket
        self._send = send
        self._framer = SseFramer()
        self._error: list[bytes] = []
        self._last_error: bytes | None = None  # an `error` event that may be the last one
        self.status = 200
        self.headers: Sequence[Header] = ()

    @property
    def error(self) -> bytes:
        return b"".join(self._error)

    async def wait_writable(self) -> None:
        await super().wait_writable()
        await self._socket.wait_writable()

    def flush(self) -> None:
        """Send what was held back, once nothing follows."""
        last, self._last_error = self._last_error, None
        if last is not None:
            self._send(last)

    def _take_head(self, status: int, headers: Sequence[Header]) -> None:
        self.status, self.headers = status, headers

    def _take_body(self, data: bytes) -> bool:
        if self.status != 200:
            self._error.append(data)
            return True
        for frame in self._framer.feed(data):
            if type(frame) is Frame and frame.data != b"[DONE]":
                held, self._last_error = self._last_error, None
                if frame.event == "error":
                    self._last_error = frame.data
                else:
                    self._send(frame.data if held is None else _take_number(frame.data, held))
        return not self._socket.blocked


class _Numbered(Struct):
    sequence_number: int = 0


class ResponsesSocket:
    """One connection: reads messages, runs the requests of each lane in order, and the lanes side by side."""

    def __init__(self, services: SocketServices, request: RoutedRequest, socket: WebSocket) -> None:
        self._services = services
        self._request = request
        self._settings = services.story.gateway.runtime.config.responses
        self._socket = socket
        self._memory = SocketMemory(self._socket)
        self._lanes: dict[str, deque[QueuedRequest]] = {}  # what waits in each
        self._busy: set[str] = set()  # lanes in which a request is under way
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = asyncio.Semaphore(MAX_RUNNING)
        self._waiting = 0
        self._ends_at = time.monotonic() + self._settings.socket_max_s  # after which it takes no more requests
        self.is_retired = False  # the connection is closed once no request is under way
        self._number = 0

    async def run(self) -> None:
        """Serve the connection to its end."""
        self._socket.accept(*request_id_headers(self._request.request_id))
        self._start(self._watch())
        code = FAILED
        try:
            while await self._serve_next():
                continue
        except ClientDisconnected:
            return
        except asyncio.CancelledError:
            code = RESTARTING
            raise
        finally:
            try:
                tasks = tuple(self._tasks)
                for task in tasks:
                    task.cancel()
                if tasks:
                    await asyncio.wait(tasks)
            finally:
                self._socket.close(code, "the gateway restarts" if code == RESTARTING else "")
                # Release what is held now: this object may be referred to for longer.
                self._lanes.clear()
                self._tasks.clear()
                self._memory.clear()
                self._request.http.buffered.release_to(0)

    def retire(self) -> None:
        """Close the connection once no request is under way, with a code that makes clients connect again."""
        self.is_retired = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        """Close a connection that is retired or too old, unless a request is under way."""
        if self._waiting:
            return
        if self.is_retired:
            self._socket.close(RESTARTING, "the gateway restarts")
        elif self._is_too_old:
            self._refuse(self._limit_reached(), DEFAULT_LANE)
            self._socket.close(GOING_AWAY)

    @property
    def _is_too_old(self) -> bool:
        return time.monotonic() >= self._ends_at

    def _limit_reached(self) -> BadRequest:
        limit = f"Responses websocket connection limit reached ({self._settings.socket_max_s / 60:g} minutes)."
        message = f"{limit} Create a new websocket connection to continue."
        return BadRequest("", message, code="websocket_connection_limit_reached")

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = spawn(work, name="requests of a WebSocket")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_next(self) -> bool:
        """Wait for a message and take it; return False once the connection is closed."""
        try:
            message = await self._socket.receive()
        except BufferBudgetExceeded:
            self._refuse(RequestError(no_room_failure()), DEFAULT_LANE)
        else:
            if message is None:
                return False
            if self._socket.blocked:  # a client that does not read is not read from
                await self._socket.wait_writable()
            await self._take(message)
        await asyncio.sleep(0)  # others get their turn, however many messages wait
        return True

    async def _watch(self) -> None:
        """Send pings, and end a connection that is too old or whose client is silent."""
        settings = self._settings
        while True:
            left = self._ends_at - time.monotonic()
            await asyncio.sleep(min(settings.socket_ping_s, left) if left > 0 else settings.socket_ping_s)
            if time.monotonic() - self._socket.received_at > settings.socket_silence_s:
                self._socket.close(GOING_AWAY, f"nothing received from the client for {settings.socket_silence_s:g} s")
            self._close_if_idle()
            self._socket.ping()

    async def _take(self, message: SocketMessage) -> None:
        """Queue a request, or answer at once what cannot become one."""
        lane, size = DEFAULT_LANE, message.size
        try:
            fields = await run_off_loop(size, partial(_read_fields, message))
            lane = _read_lane(fields)
            self._ensure_lane(lane)
            if fields.get("type") == "response.steer":
                self._send(lane, await run_off_loop(size, partial(_refuse_steering, fields)))
                await self._wait_until_read()
            else:
                self._check_request(fields)
                request = await run_off_loop(size, partial(_make_request, fields, size))
                self._enqueue(lane, request)
                return
        except RequestError as refused:
            self._refuse(refused, lane)
        self._socket.release(size)

    def _check_request(self, fields: dict[str, Json]) -> None:
        """Raise RequestError if a message is no request, or one too many."""
        if fields.get("type") != "response.create":
            shown = msgspec.json.encode(fields.get("type")).decode()[:80]
            raise BadRequest("/type", f"type must be response.create, got {shown}.")
        if self._is_too_old:
            raise self._limit_reached()
        if not self._services.is_authorised(self._request.http):
            raise RequestError(key_failure(self._request.http))
        if fields.get("background"):
            raise BadRequest("/background", "background is not possible over a WebSocket: POST the request.")
        if self._waiting >= MAX_WAITING:
            message = f"This connection has {MAX_WAITING} requests under way or waiting. Wait for one of them to end."
            raise RequestError(Failure(Kind.RATE_LIMITED, message, retry_after=1.0))

    def _ensure_lane(self, lane: str) -> None:
        if lane in self._lanes:
            return
        if lane and len(self._lanes.keys() - {DEFAULT_LANE}) >= MAX_LANES:
            message = f"A connection has at most {MAX_LANES} different stream_ids."
            raise BadRequest("/stream_id", message, code="websocket_stream_limit_reached")
        self._lanes[lane] = deque()

    def _enqueue(self, lane: str, request: QueuedRequest) -> None:
        if not self._socket.is_open:  # it was closed while the request was read
            return
        self._waiting += 1
        self._lanes[lane].append(request)
        if lane not in self._busy:
            self._busy.add(lane)
            self._start(self._run_lane(lane))

    async def _run_lane(self, lane: str) -> None:
        """Run the requests that wait in a lane, until none does."""
        try:
            while self._lanes[lane]:
                async with self._running:
                    await self._run(lane, self._lanes[lane].popleft())
                self._waiting -= 1
                self._close_if_idle()
        except ClientDisconnected:
            self._socket.close(GOING_AWAY)
        finally:
            self._busy.discard(lane)

    async def _run(self, lane: str, request: QueuedRequest) -> None:
        held = HeldRequest(request.size)
        try:
            answer = self._answer_with_model if request.generates else self._answer_without_model
            if await answer(lane, request, held):
                return
        except RequestError as refused:
            self._refuse(refused, lane)
        except ClientDisconnected:
            raise
        except Exception as bug:
            log.error("a request over a WebSocket failed: %s", describe_fault(bug))
            message = f"The gateway failed on this request. See the gateway's log for {self._request.request_id}."
            self._refuse(RequestError(Failure(Kind.BUG, message)), lane)
        finally:
            self._memory.end(held)
        self._memory.forget(lane, request.previous)

    async def _answer_with_model(self, lane: str, request: QueuedRequest, held: HeldRequest) -> bool:
        """Send the events of a response, or an error; return whether there was a response."""
        self._number += 1
        request_id = f"{self._request.request_id}-{self._number}"
        sink = LaneSink(self._socket, partial(self._send, lane), self._request.sink.echoed_id)
        routed = self._make_posted(request, sink, request_id)
        try:
            await serve_lane(self._services.story, self._make_call(routed), sink, LaneState(self, lane, held))
        except RequestError as refused:
            await self._services.hold_back(refused, routed)
            respond_with_failure(sink, self._client, refused, request_id)
        except ClientDisconnected:
            raise
        except Exception as bug:
            log.error("a request over a WebSocket failed: %s", describe_fault(bug))
            message = f"The gateway failed on this request. See the gateway's log for {request_id}."
            respond_with_failure(sink, self._client, RequestError(Failure(Kind.BUG, message)), request_id)
        finally:
            routed.http.buffered.release_to(0)
            sink.flush()
            if sink.listener is not None:
                sink.listener.on_end()
        if sink.status != 200:
            self._send_error(sink.status, sink.error, sink.headers, lane)
        return sink.status == 200

    async def _answer_without_model(self, lane: str, request: QueuedRequest, held: HeldRequest) -> bool:
        """Answer `generate: false`: the response has no output, and can be continued."""
        sink = LaneSink(self._socket, partial(self._send, lane))
        routed = self._make_posted(request, sink, self._request.request_id)
        try:
            await serve_without_model(self._services.story, self._make_call(routed), sink, LaneState(self, lane, held))
            await self._wait_until_read()
        finally:
            routed.http.buffered.release_to(0)
        return True

    def _make_posted(self, request: QueuedRequest, sink: LaneSink, request_id: str) -> RoutedRequest:
        """Return a request of a lane as if it had been posted."""
        opening, outer = self._request, self._request.http
        head = RequestHead(fields=_plain_headers(outer), method="POST", path=outer.path, raw_path=outer.raw_path)
        http = HttpRequest(head, None, outer.buffered.budget)
        http.set_body(request.body)
        return RoutedRequest(
            http,
            sink,
            opening.path,
            request_id,
            opening.key,
            access=opening.access,
            tenant=opening.tenant,
            received_at=time.time(),
        )

    def _make_call(self, routed: RoutedRequest) -> Call:
        return make_call(self._services.story.gateway.runtime, self._services.protocol, routed)

    async def _wait_until_read(self) -> None:
        """Wait until the client has read what was sent: its bytes count until then. Raises ClientDisconnected."""
        await asyncio.sleep(0)
        await self._socket.wait_writable()

    async def open_state(self, lane: str, raw: dict[str, Json], size: int, held: HeldRequest) -> StoredCall:
        """Return the state of a request, which may be what the connection remembers. Raises RequestError."""
        self._memory.use_parent(held, raw.get("previous_response_id"))
        state = await self._services.service.open_call(self._request.tenant, raw, size, self._memory.responses)
        context = state.context
        try:
            self._memory.hold_stored(held, context.items if held.parent else (*context.earlier, *context.items))
        except BufferBudgetExceeded:
            await state.release()
            raise RequestError(no_room_failure()) from None
        state.memory = partial(self._memory.remember, lane, held)
        return state

    def remembers(self, state: StoredCall) -> bool:
        return self._memory.has(state.id)

    def record_end(self, state: StoredCall) -> None:
        self._services.service.record_end(state)

    # What is sent

    def _send(self, lane: str, event: bytes) -> None:
        if lane:
            event = event.rstrip()[:-1] + b',"stream_id":' + msgspec.json.encode(lane) + b"}"
        self._socket.send(event)

    def _refuse(self, refused: RequestError, lane: str) -> None:
        rendered = self._client.render_error(refused.failure, self._request.request_id)
        self._send_error(rendered.status, rendered.body, retry_headers(refused.failure), lane)

    def _send_error(self, status: int, body: bytes, headers: Sequence[Header], lane: str) -> None:
        try:
            error = msgspec.json.decode(body, type=dict[str, dict[str, Json]])["error"]
        except (KeyError, *JSON_ERRORS):
            error = {"type": "server_error", "code": None, "message": body.decode(errors="replace"), "param": None}
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        frame: dict[str, Json] = {"type": "error", "status": status, "error": {**error, "headers": fields}}
        self._send(lane, msgspec.json.encode(frame | {"headers": fields}))

    @property
    def _client(self) -> Client:
        client = self._services.story.gateway.runtime.protocols[self._services.protocol].client
        assert client is not None
        return client


class LaneState:
    """The state of one request of a lane: what the store has, and what the connection remembers."""

    def __init__(self, socket: ResponsesSocket, lane: str, held: HeldRequest) -> None:
        self._socket = socket
        self._lane = lane
        self._held = held

    def concerns(self, call: Call) -> bool:
        return True

    async def open(self, call: Call) -> StoredCall:
        raw = await run_off_loop(len(call.body), partial(read_request, call.body))
        return await self._socket.open_state(self._lane, raw, len(call.body), self._held)

    def remembers(self, state: StoredCall) -> bool:
        return self._socket.remembers(state)

    def close(self, call: Call, state: StoredCall, *, is_answered: bool) -> None:
        state.memory = None  # others may refer to the state for longer than the connection lasts
        if is_answered:
            self._socket.record_end(state)


def _read_fields(message: SocketMessage) -> dict[str, Json]:
    return read_request(message.read())


def _make_request(fields: dict[str, Json], size: int) -> QueuedRequest:
    generates, previous = fields.get("generate") is not False, fields.get("previous_response_id")
    body: dict[str, Json] = {key: value for key, value in fields.items() if key not in _OF_SOCKET}
    if generates:
        body["stream"] = True
    return QueuedRequest(msgspec.json.encode(body), generates, previous if isinstance(previous, str) else "", size)


def _refuse_steering(fields: dict[str, Json]) -> bytes:
    message = "This gateway cannot steer a response while it is generated."
    error = {"code": "steering_not_supported", "message": message, "type": "invalid_request_error"}
    steer = {"input": fields.get("input"), "previous_response_id": fields.get("previous_response_id")}
    frame = {"type": "response.steer.failed", "error": error, "steer": steer, "sequence_number": 0}
    return msgspec.json.encode(frame)


def _read_lane(fields: dict[str, Json]) -> str:
    lane = fields.get("stream_id")
    if lane is None:
        return DEFAULT_LANE
    if not isinstance(lane, str) or not _LANE.fullmatch(lane):
        message = "stream_id must be 1 to 256 letters, digits, dots, dashes and underscores."
        raise BadRequest("/stream_id", message, code="invalid_stream_id")
    return lane


def _take_number(event: bytes, dropped: bytes) -> bytes:
    """Return an event with the sequence number of one that is not sent before it, so that none is missing."""
    number = msgspec.json.decode(dropped, type=_Numbered).sequence_number
    return msgspec.json.encode(msgspec.json.decode(event, type=dict[str, Json]) | {"sequence_number": number})


def _plain_headers(request: HttpRequest) -> list[Header]:
    """Return the headers of the handshake that a request may have too: each is cancelled with the connection."""
    dropped = (b"sec-websocket-", b"upgrade", b"connection", b"content-", PARK, RESUME, LAST_EVENT, KEY)
    return [*(field for field in request.headers if not field[0].startswith(dropped)), (PARK, b"0")]
