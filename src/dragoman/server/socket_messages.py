"""The messages of a WebSocket: requests of its lanes, and the events and errors that answer them."""

import asyncio
import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from dragoman.net.headers import Header
from dragoman.net.websocket import SocketMessage, WebSocket
from dragoman.proxy.failures import retry_headers
from dragoman.translate.framing.fields import read_body
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.hub.failure import BadRequest, RequestError
from dragoman.translate.hub.ports import Client
from dragoman.translate.hub.request import Json

DEFAULT_LANE = ""
_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_OF_SOCKET = frozenset(("type", "stream_id", "generate", "stream", "background"))  # not part of a request


class QueuedRequest(Struct, frozen=True):
    """A request of a lane. Nothing but its body is kept: what was read from it would take as much again."""

    body: bytes  # as it would be posted
    generates: bool  # False: it is answered without a model
    previous: str  # the id of the response that it continues
    size: int  # bytes of the message that it came in


def read_fields(message: SocketMessage) -> dict[str, Json]:
    return read_body(message.read())


def make_request(fields: dict[str, Json], size: int) -> QueuedRequest:
    generates, previous = fields.get("generate") is not False, fields.get("previous_response_id")
    body: dict[str, Json] = {key: value for key, value in fields.items() if key not in _OF_SOCKET}
    if generates:
        body["stream"] = True
    return QueuedRequest(msgspec.json.encode(body), generates, previous if isinstance(previous, str) else "", size)


def refuse_steering(fields: dict[str, Json]) -> bytes:
    message = "This gateway cannot steer a response while it is generated."
    error = {"code": "steering_not_supported", "message": message, "type": "invalid_request_error"}
    steer = {"input": fields.get("input"), "previous_response_id": fields.get("previous_response_id")}
    frame = {"type": "response.steer.failed", "error": error, "steer": steer, "sequence_number": 0}
    return msgspec.json.encode(frame)


def read_lane(fields: dict[str, Json]) -> str:
    lane = fields.get("stream_id")
    if lane is None:
        return DEFAULT_LANE
    if not isinstance(lane, str) or not _LANE.fullmatch(lane):
        message = "stream_id must be 1 to 256 letters, digits, dots, dashes and underscores."
        raise BadRequest("/stream_id", message, code="invalid_stream_id")
    return lane


class SocketReplies:
    """Sends messages to the client of a WebSocket, each in its lane; `request_id` is that of the handshake."""

    def __init__(self, socket: WebSocket, client: Client, request_id: str) -> None:
        self.socket = socket
        self.client = client
        self._request_id = request_id

    def send(self, lane: str, event: bytes) -> None:
        if lane:
            event = event.rstrip()[:-1] + b',"stream_id":' + msgspec.json.encode(lane) + b"}"
        self.socket.send(event)

    def refuse(self, refused: RequestError, lane: str) -> None:
        rendered = self.client.render_error(refused.failure, self._request_id)
        self.send_error(rendered.status, rendered.body, retry_headers(refused.failure), lane)

    def send_error(self, status: int, body: bytes, headers: Sequence[Header], lane: str) -> None:
        try:
            error = msgspec.json.decode(body, type=dict[str, dict[str, Json]])["error"]
        except (KeyError, *JSON_ERRORS):
            error = {"type": "server_error", "code": None, "message": body.decode(errors="replace"), "param": None}
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        frame: dict[str, Json] = {"type": "error", "status": status, "error": {**error, "headers": fields}}
        self.send(lane, msgspec.json.encode(frame | {"headers": fields}))

    async def wait_until_read(self) -> None:
        """Wait until the client has read what was sent: its bytes count until then. Raises ClientDisconnected."""
        await asyncio.sleep(0)
        await self.socket.wait_writable()
