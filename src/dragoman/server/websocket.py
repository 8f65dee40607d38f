"""Responses over a WebSocket: one session reads messages, queues requests in lanes, and ends the connection."""

import asyncio
import time
from collections.abc import Coroutine
from functools import partial

import msgspec

from dragoman.net.body_threads import run_off_loop
from dragoman.net.errors import BufferBudgetExceeded, ClientDisconnected
from dragoman.net.tasks import spawn
from dragoman.net.websocket import SocketMessage, WebSocket
from dragoman.proxy.reply_bounds import no_room_failure
from dragoman.proxy.response_headers import request_id_headers
from dragoman.server.lane_queues import LaneQueues
from dragoman.server.lane_requests import LaneRequests, SocketServices
from dragoman.server.rejections import key_failure
from dragoman.server.routes import RoutedRequest
from dragoman.server.socket_messages import (
    DEFAULT_LANE,
    QueuedRequest,
    SocketReplies,
    make_request,
    read_fields,
    read_lane,
    refuse_steering,
)
from dragoman.translate.hub.failure import BadRequest, RequestError
from dragoman.translate.hub.request import Json

MAX_RUNNING = 16
GOING_AWAY, FAILED, RESTARTING = 1001, 1011, 1012  # codes after which clients connect again


class ResponsesSocket:
    """One connection: reads messages, runs the requests of each lane in order, and the lanes side by side."""

    def __init__(self, services: SocketServices, request: RoutedRequest, socket: WebSocket) -> None:
        self._services = services
        self._request = request
        self._settings = services.story.gateway.runtime.config.responses
        self._socket = socket
        client = services.story.gateway.runtime.protocols[services.protocol].client
        assert client is not None
        self._replies = SocketReplies(socket, client, request.request_id)
        self._requests = LaneRequests(services, request, self._replies)
        self._lanes = LaneQueues()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = asyncio.Semaphore(MAX_RUNNING)
        self._ends_at = time.monotonic() + self._settings.socket_max_s  # after which it takes no more requests
        self.is_retired = False  # the connection is closed once no request is under way

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
                self._requests.memory.clear()
                self._request.http.buffered.release_to(0)

    def retire(self) -> None:
        """Close the connection once no request is under way, with a code that makes clients connect again."""
        self.is_retired = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        """Close a connection that is retired or too old, unless a request is under way."""
        if self._lanes.waiting:
            return
        if self.is_retired:
            self._socket.close(RESTARTING, "the gateway restarts")
        elif self._is_too_old:
            self._replies.refuse(self._limit_reached(), DEFAULT_LANE)
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
            self._replies.refuse(RequestError(no_room_failure()), DEFAULT_LANE)
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
            fields = await run_off_loop(size, partial(read_fields, message))
            lane = read_lane(fields)
            self._lanes.ensure_lane(lane)
            if fields.get("type") == "response.steer":
                self._replies.send(lane, await run_off_loop(size, partial(refuse_steering, fields)))
                await self._replies.wait_until_read()
            else:
                self._check_request(fields)
                request = await run_off_loop(size, partial(make_request, fields, size))
                self._enqueue(lane, request)
                return
        except RequestError as refused:
            self._replies.refuse(refused, lane)
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
        self._lanes.check_room()

    def _enqueue(self, lane: str, request: QueuedRequest) -> None:
        if self._socket.is_open and self._lanes.add(lane, request):  # it may be closed while the request is read
            self._start(self._run_lane(lane))

    async def _run_lane(self, lane: str) -> None:
        """Run the requests that wait in a lane, until none does."""
        try:
            while (request := self._lanes.take(lane)) is not None:
                async with self._running:
                    await self._requests.answer(lane, request)
                self._lanes.waiting -= 1
                self._close_if_idle()
        except ClientDisconnected:
            self._socket.close(GOING_AWAY)
