"""Responses over a WebSocket: lanes of requests, with the memory of the connection."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from msgspec import Raw, Struct

from dragoman.flow.call import Call
from dragoman.flow.failures import respond_with_failure, retry_headers
from dragoman.flow.gateway import Gateway
from dragoman.flow.response_headers import request_id_headers
from dragoman.framing.jsonread import JSON_ERRORS
from dragoman.framing.sse import Frame, SseFramer
from dragoman.http.compaction import Compactor
from dragoman.http.parked_runs import KEY, LAST_EVENT, PARK, RESUME
from dragoman.http.rejections import key_failure
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.hub.ports import Client
from dragoman.hub.request import Json
from dragoman.net.detached import NoConnection
from dragoman.net.errors import ClientDisconnected
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.net.request_head import RequestHead
from dragoman.net.tasks import describe_fault, spawn
from dragoman.net.websocket import WebSocket
from dragoman.protocols.responses.encode_response import Snapshot, encode_stream, keep_made
from dragoman.protocols.responses.state_items import read_request
from dragoman.responses.context import ContextItem
from dragoman.responses.kept_call import KeptCall
from dragoman.responses.service import ResponseService, check_trigger, now

log = logging.getLogger(__name__)

MAX_RUNNING = 16
MAX_LANES = 32
MAX_WAITING = 64  # requests of a connection, those under way included
GOING_AWAY, RESTARTING = 1001, 1012  # codes after which clients connect again
DEFAULT_LANE = ""
_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_OF_SOCKET = frozenset(("type", "stream_id", "generate", "stream", "background"))  # not part of a request
_NO_USAGE = Raw(
    b'{"input_tokens":0,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":0,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0}'
)

Infer = Callable[[str, Callable[[Exchange, Call], Awaitable[None]], RoutedRequest], Awaitable[None]]


class QueuedRequest(Struct, frozen=True):
    """A request of a lane."""

    fields: dict[str, Json]
    message: str  # that it came in


class Remembered(Struct, frozen=True):
    """The newest response of a lane: its context and its output."""

    id: str
    items: tuple[ContextItem, ...]


class SocketServices(Struct, frozen=True):
    """What a session uses of the gateway."""

    gateway: Gateway
    service: ResponseService
    protocol: str
    infer: Infer
    is_authorised: Callable[[Exchange], bool]  # whether the key of the handshake is still valid


class LaneConnection(NoConnection):
    """The connection of one request of a lane: it is blocked while the socket is."""

    def __init__(self, socket: WebSocket) -> None:
        super().__init__()
        self._socket = socket

    @property
    def blocked(self) -> bool:
        return self._socket.blocked

    async def wait_writable(self) -> None:
        await self._socket.wait_writable()


class EventSender:
    """Sends the events of a stream as messages; keeps the body of an error.

    A stream that fails has an `error` event and then `response.failed`. Over a WebSocket a message of the type `error`
    refuses a request, so that the event is sent only if nothing follows it.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._framer = SseFramer()
        self._error: list[bytes] = []
        self._held: bytes | None = None  # an `error` event that may be the last one
        self.status = 200
        self.headers: Sequence[Header] = ()

    @property
    def error(self) -> bytes:
        return b"".join(self._error)

    def on_head(self, status: int, headers: Sequence[Header]) -> None:
        self.status, self.headers = status, headers

    def on_body(self, data: bytes) -> None:
        if self.status != 200:
            self._error.append(data)
            return
        for frame in self._framer.feed(data):
            if type(frame) is Frame and frame.data != b"[DONE]":
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        held, self._held = self._held, None
        if frame.event == "error":
            self._held = frame.data
        else:
            self._send(frame.data if held is None else _take_number(frame.data, held))

    def on_end(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._send(held)


class _Numbered(Struct):
    sequence_number: int = 0


class ResponsesSocket:
    """One connection: reads messages, runs the requests of each lane in order, and the lanes side by side."""

    def __init__(self, services: SocketServices, request: RoutedRequest, owner: str) -> None:
        self._services = services
        self._request = request
        self._owner = owner
        config = services.gateway.runtime.config
        self._settings = config.responses
        self._socket = WebSocket(request.exchange, config.server.max_body_bytes)
        self._lanes: dict[str, asyncio.Queue[QueuedRequest]] = {}
        self._newest: dict[str, Remembered] = {}  # by lane
        self._running = asyncio.Semaphore(MAX_RUNNING)
        self._waiting = 0
        self.is_retired = False  # the connection is closed once no request is under way
        self._number = 0

    async def run(self) -> None:
        """Serve the connection to its end."""
        self._socket.accept(*request_id_headers(self._request.request_id))
        try:
            await self._serve()
        except asyncio.CancelledError:
            self._socket.close(RESTARTING, "the gateway restarts")
            self._request.exchange.finish()
            raise

    def retire(self) -> None:
        """Close the connection once no request is under way, with a code that makes clients connect again."""
        self.is_retired = True
        if not self._waiting:
            self._socket.close(RESTARTING, "the gateway restarts")

    async def _serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch())
                while (message := await self._socket.receive()) is not None:
                    if self._socket.blocked:  # a client that does not read is not read from
                        await self._socket.wait_writable()
                    self._take(message, tasks)
                raise _Closed
        except* (_Closed, ClientDisconnected):
            self._request.exchange.finish()

    async def _watch(self) -> None:
        """Send pings, and end a connection that is too old or whose client is silent."""
        started, settings = time.monotonic(), self._settings
        while True:
            left = started + settings.socket_max_s - time.monotonic()
            await asyncio.sleep(max(0.0, min(settings.socket_ping_s, left)))
            if time.monotonic() - self._socket.received_at > settings.socket_silence_s:
                self._socket.close(GOING_AWAY, f"nothing received from the client for {settings.socket_silence_s:g} s")
            elif time.monotonic() - started >= settings.socket_max_s:
                limit = f"Responses websocket connection limit reached ({settings.socket_max_s / 60:g} minutes)."
                message = f"{limit} Create a new websocket connection to continue."
                refused = BadRequest("", message, code="websocket_connection_limit_reached")
                self._refuse(refused, DEFAULT_LANE)
                self._socket.close(GOING_AWAY)
                return
            self._socket.ping()

    def _take(self, message: str, tasks: asyncio.TaskGroup) -> None:
        """Queue a request, or answer at once what cannot become one."""
        lane = DEFAULT_LANE
        try:
            fields = read_request(message.encode(errors="surrogatepass"))
            lane = _read_lane(fields)
            self._ensure_lane(lane, tasks)
            if fields.get("type") == "response.steer":
                self._refuse_steering(fields, lane)
            elif self._is_request(fields):
                self._waiting += 1
                self._lanes[lane].put_nowait(QueuedRequest(fields, message))
                return
        except RequestError as refused:
            self._refuse(refused, lane)
        self._socket.release(message)

    def _is_request(self, fields: dict[str, Json]) -> bool:
        """Return True; raises RequestError if a message is no request, or one too many."""
        if fields.get("type") != "response.create":
            shown = msgspec.json.encode(fields.get("type")).decode()[:80]
            raise BadRequest("/type", f"type must be response.create, got {shown}.")
        if not self._services.is_authorised(self._request.exchange):
            raise RequestError(key_failure(self._request.exchange))
        if fields.get("background"):
            raise BadRequest("/background", "background is not possible over a WebSocket: POST the request.")
        if self._waiting >= MAX_WAITING:
            message = f"This connection has {MAX_WAITING} requests under way or waiting. Wait for one of them to end."
            raise RequestError(Failure(Kind.RATE_LIMITED, message, retry_after=1.0))
        return True

    def _ensure_lane(self, lane: str, tasks: asyncio.TaskGroup) -> None:
        if lane in self._lanes:
            return
        if lane and len(self._lanes.keys() - {DEFAULT_LANE}) >= MAX_LANES:
            message = f"A connection has at most {MAX_LANES} different stream_ids."
            raise BadRequest("/stream_id", message, code="websocket_stream_limit_reached")
        self._lanes[lane] = asyncio.Queue()
        tasks.create_task(self._run_lane(lane))

    async def _run_lane(self, lane: str) -> None:
        while True:
            queued = await self._lanes[lane].get()
            async with self._running:
                await self._run(lane, queued.fields)
            self._waiting -= 1
            self._socket.release(queued.message)
            if self.is_retired:
                self.retire()

    async def _run(self, lane: str, fields: dict[str, Json]) -> None:
        body: dict[str, Json] = {key: value for key, value in fields.items() if key not in _OF_SOCKET}
        try:
            if fields.get("generate") is False:
                await self._answer_without_model(lane, body)
                return
            if await self._answer_with_model(lane, body | {"stream": True}):
                return
        except RequestError as refused:
            self._refuse(refused, lane)
        newest = self._newest.get(lane)
        if newest is not None and newest.id == body.get("previous_response_id"):
            del self._newest[lane]

    async def _answer_with_model(self, lane: str, body: dict[str, Json]) -> bool:
        """Send the events of a response, or an error; return whether there was a response."""
        self._number += 1
        outer = self._request.exchange
        head = RequestHead(fields=_plain_headers(outer), method="POST", path=outer.path, raw_path=outer.raw_path)
        exchange = Exchange(head, LaneConnection(self._socket), outer.buffered.budget)
        exchange.echoed_id = outer.echoed_id
        exchange.set_body(msgspec.json.encode(body))
        sender = EventSender(partial(self._send, lane))
        exchange.listen(sender)
        request_id = f"{self._request.request_id}-{self._number}"
        opening = self._request
        routed = RoutedRequest(
            exchange,
            opening.path,
            request_id,
            opening.key,
            access=opening.access,
            tenant=opening.tenant,
            received_at=time.time(),
        )
        try:
            await self._services.infer(self._services.protocol, partial(self._answer, lane), routed)
        except RequestError as refused:
            respond_with_failure(exchange, self._client, refused, request_id)
        except Exception as bug:
            log.error("a request over a WebSocket failed: %s", describe_fault(bug))
            message = f"The gateway failed on this request; its log names the place under {request_id}."
            respond_with_failure(exchange, self._client, RequestError(Failure(Kind.BUG, message)), request_id)
        finally:
            exchange.buffered.release_to(0)
            if exchange.listener is not None:
                exchange.listener.on_end()
        if sender.status != 200:
            self._send_error(sender.status, sender.error, sender.headers, lane)
        return sender.status == 200

    async def _answer(self, lane: str, exchange: Exchange, call: Call) -> None:
        raw = read_request(call.body)
        state = await self._open(lane, raw, len(call.body))
        try:
            if check_trigger(raw):
                await Compactor(self._services.gateway, exchange, call, state, raw).answer_trigger()
            else:
                call.state = state
                await self._services.gateway.answer(exchange, call)
        except (asyncio.CancelledError, ClientDisconnected):
            spawn(state.cancel(has_begun=exchange.started), name="cancelled response")
            raise
        except BaseException:
            await state.release()
            raise
        self._services.service.note_end(state)

    async def _answer_without_model(self, lane: str, body: dict[str, Json]) -> None:
        """Answer `generate: false`: the response has no output, and can be continued."""
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise BadRequest("/model", "model is missing: name the model to use.", code="missing_required_parameter")
        state = await self._open(lane, body, 0)
        snapshot = Snapshot(state.id, model, state.created, body, state.fields)
        state.reply.take(keep_made(snapshot, (), _NO_USAGE, now()))
        data = encode_stream(snapshot, (), _NO_USAGE, now(), done=False)
        if not await state.commit():
            data = state.mark_unstored(data)
        await state.release()
        EventSender(partial(self._send, lane)).on_body(data)

    async def _open(self, lane: str, raw: dict[str, Json], size: int) -> KeptCall:
        memory = {one.id: one.items for one in self._newest.values()}
        state = await self._services.service.open_call(self._owner, raw, size, memory)
        state.memory = partial(self._remember, lane)
        return state

    def _remember(self, lane: str, id: str, items: tuple[ContextItem, ...]) -> None:
        self._newest[lane] = Remembered(id, items)

    # What is sent

    def _send(self, lane: str, event: bytes) -> None:
        if lane:
            event = event.rstrip()[:-1] + b',"stream_id":' + msgspec.json.encode(lane) + b"}"
        self._socket.send(event.decode(errors="replace"))

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

    def _refuse_steering(self, fields: dict[str, Json], lane: str) -> None:
        message = "This gateway cannot steer a response while it is generated."
        error = {"code": "steering_not_supported", "message": message, "type": "invalid_request_error"}
        steer = {"input": fields.get("input"), "previous_response_id": fields.get("previous_response_id")}
        frame = {"type": "response.steer.failed", "error": error, "steer": steer, "sequence_number": 0}
        self._send(lane, msgspec.json.encode(frame))

    @property
    def _client(self) -> Client:
        client = self._services.gateway.runtime.protocols[self._services.protocol].client
        assert client is not None
        return client


class _Closed(Exception):
    """The client has closed the connection; everything that runs for it ends."""


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


def _plain_headers(exchange: Exchange) -> list[Header]:
    """Return the headers of the handshake that a request may have too: each is cancelled with the connection."""
    dropped = (b"sec-websocket-", b"upgrade", b"connection", b"content-", PARK, RESUME, LAST_EVENT, KEY)
    return [*(field for field in exchange.headers if not field[0].startswith(dropped)), (PARK, b"0")]
