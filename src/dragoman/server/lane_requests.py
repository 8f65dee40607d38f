"""Answer the requests of a WebSocket's lanes, with the memory of the connection."""

import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import Struct

from dragoman.net.body_threads import run_off_loop
from dragoman.net.errors import BufferBudgetExceeded, ClientDisconnected, describe_fault
from dragoman.net.headers import Header
from dragoman.net.http_request import HttpRequest
from dragoman.net.request_head import RequestHead
from dragoman.proxy.call import Call
from dragoman.proxy.failures import respond_with_failure
from dragoman.proxy.reply_bounds import no_room_failure
from dragoman.proxy.run_headers import KEY, LAST_EVENT, PARK, RESUME
from dragoman.proxy.serve import Services, serve_lane, serve_without_model
from dragoman.server.lane_sink import LaneSink
from dragoman.server.routes import RoutedRequest, make_call
from dragoman.server.socket_messages import QueuedRequest, SocketReplies
from dragoman.server.unknown_models import HoldBack
from dragoman.state.service import ResponseService
from dragoman.state.socket_memory import HeldRequest, SocketMemory
from dragoman.state.stored_call import StoredCall
from dragoman.translate.framing.fields import read_body
from dragoman.translate.hub.failure import Failure, Kind, RequestError

log = logging.getLogger(__name__)


class SocketServices(Struct, frozen=True):
    """What a session uses of the gateway."""

    story: Services
    service: ResponseService
    protocol: str
    hold_back: HoldBack  # awaited before a request is refused
    is_authorised: Callable[[HttpRequest], bool]  # whether the key of the handshake is still valid


class LaneRequests:
    """Answers the requests of one connection."""

    def __init__(self, services: SocketServices, opening: RoutedRequest, replies: SocketReplies) -> None:
        self.services = services
        self._opening = opening  # the handshake
        self._replies = replies
        self.memory = SocketMemory(replies.socket)
        self._number = 0

    async def answer(self, lane: str, request: QueuedRequest) -> None:
        held = HeldRequest(request.size)
        try:
            answer = self._answer_with_model if request.generates else self._answer_without_model
            if await answer(lane, request, held):
                return
        except RequestError as refused:
            self._replies.refuse(refused, lane)
        except ClientDisconnected:
            raise
        except Exception as bug:
            log.error("a request over a WebSocket failed: %s", describe_fault(bug))
            message = f"The gateway failed on this request. See the gateway's log for {self._opening.request_id}."
            self._replies.refuse(RequestError(Failure(Kind.BUG, message)), lane)
        finally:
            self.memory.end(held)
        self.memory.forget(lane, request.previous)

    async def _answer_with_model(self, lane: str, request: QueuedRequest, held: HeldRequest) -> bool:
        """Send the events of a response, or an error; return whether there was a response."""
        self._number += 1
        request_id = f"{self._opening.request_id}-{self._number}"
        sink = LaneSink(self._replies.socket, partial(self._replies.send, lane), self._opening.sink.echoed_id)
        routed = self._make_posted(request, sink, request_id)
        try:
            await serve_lane(self.services.story, self._make_call(routed), sink, LaneState(self, lane, held))
        except RequestError as refused:
            await self.services.hold_back(refused, routed)
            respond_with_failure(sink, self._replies.client, refused, request_id)
        except ClientDisconnected:
            raise
        except Exception as bug:
            log.error("a request over a WebSocket failed: %s", describe_fault(bug))
            message = f"The gateway failed on this request. See the gateway's log for {request_id}."
            respond_with_failure(sink, self._replies.client, RequestError(Failure(Kind.BUG, message)), request_id)
        finally:
            routed.http.buffered.release_to(0)
            sink.flush()
            if sink.listener is not None:
                sink.listener.on_end()
        if sink.status != 200:
            self._replies.send_error(sink.status, sink.error, sink.headers, lane)
        return sink.status == 200

    async def _answer_without_model(self, lane: str, request: QueuedRequest, held: HeldRequest) -> bool:
        """Answer `generate: false`: the response has no output, and can be continued."""
        sink = LaneSink(self._replies.socket, partial(self._replies.send, lane))
        routed = self._make_posted(request, sink, self._opening.request_id)
        try:
            await serve_without_model(self.services.story, self._make_call(routed), sink, LaneState(self, lane, held))
            await self._replies.wait_until_read()
        finally:
            routed.http.buffered.release_to(0)
        return True

    def _make_posted(self, request: QueuedRequest, sink: LaneSink, request_id: str) -> RoutedRequest:
        """Return a request of a lane as if it had been posted."""
        opening, outer = self._opening, self._opening.http
        head = RequestHead(fields=_plain_headers(outer), method="POST", path=outer.path, raw_path=outer.raw_path)
        http = HttpRequest(head, None, outer.buffered.budget)
        http.set_body(request.body)
        return msgspec.structs.replace(
            opening, http=http, sink=sink, request_id=request_id, via_console=False, received_at=time.time()
        )

    def _make_call(self, routed: RoutedRequest) -> Call:
        return make_call(self.services.story.gateway.runtime, self.services.protocol, routed)


class LaneState:
    """The state of one request of a lane: what the store has, and what the connection remembers."""

    def __init__(self, requests: LaneRequests, lane: str, held: HeldRequest) -> None:
        self._service = requests.services.service
        self._memory = requests.memory
        self._lane = lane
        self._held = held

    def concerns(self, call: Call) -> bool:
        return True

    async def open(self, call: Call) -> StoredCall:
        memory, held, size = self._memory, self._held, len(call.body)
        raw = await run_off_loop(size, partial(read_body, call.body))
        memory.use_parent(held, raw.get("previous_response_id"))
        state = await self._service.open_call(call.tenant, raw, size, memory.responses)
        context = state.context
        try:
            memory.hold_stored(held, context.items if held.parent else (*context.earlier, *context.items))
        except BufferBudgetExceeded:
            await state.release()
            raise RequestError(no_room_failure()) from None
        state.memory = partial(memory.remember, self._lane, held)
        return state

    def remembers(self, state: StoredCall) -> bool:
        return self._memory.has(state.id)

    def close(self, call: Call, state: StoredCall, *, is_answered: bool) -> None:
        state.memory = None  # others may refer to the state for longer than the connection lasts
        if is_answered:
            self._service.record_end(state)


def _plain_headers(request: HttpRequest) -> list[Header]:
    """Return the headers of the handshake that a request may have too: each is cancelled with the connection."""
    dropped = (b"sec-websocket-", b"upgrade", b"connection", b"content-", PARK, RESUME, LAST_EVENT, KEY)
    return [*(field for field in request.headers if not field[0].startswith(dropped)), (PARK, b"0")]
