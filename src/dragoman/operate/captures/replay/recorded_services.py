"""Replay the upstream of a captured request at its pace.

`RecordedUpstream` takes the place of the HTTP client when a request is run again; `UpstreamServer` answers requests.
"""

import asyncio
import itertools
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import urlsplit

from dragoman.config.providers import local_settings
from dragoman.net.bodies import ResponseInChunks
from dragoman.net.client import ConnectionLost, DialOptions, InvalidResponse, OutgoingRequest, UpstreamTimeout
from dragoman.net.errors import TimeoutPhase
from dragoman.net.headers import JSON, Header, Headers
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.proxy.capture.format import CANCELLED, CLOSED, WHOLE, Capture, UpstreamRequest, UpstreamResponse
from dragoman.proxy.capture.masking import encode_headers
from dragoman.proxy.capture.recording_provider import ERROR_NAMES

HOST = "127.0.0.1"
PHASES: dict[str, TimeoutPhase] = {"connect": "connect", "first": "first", "idle": "idle"}
FRAMING_HEADERS = frozenset(
    {b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"content-encoding"}
)


class RecordedUpstream:
    """Answers whatever is sent with the next recorded response. `age_s` is the age of the capture."""

    def __init__(self, requests: tuple[UpstreamRequest, ...], age_s: float) -> None:
        self._requests = requests
        self._age_s = age_s
        self._sent = itertools.count()

    async def send(self, out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> "RecordedResponse":
        index = next(self._sent)
        if index >= len(self._requests):
            raise ConnectionLost("the capture has no response to a further request", sent=False, received=False)
        request = self._requests[index]
        response = request.response
        if response is None and request.error == CANCELLED:
            await asyncio.get_running_loop().create_future()  # never done: the replay cancels the request again
        if response is None:
            raise make_error(request.error)
        began = asyncio.get_running_loop().time() - request.at
        wait_s = response.at - request.at
        await asyncio.sleep(min(wait_s, head_timeout_s))
        if wait_s > head_timeout_s:
            raise UpstreamTimeout("first", "the recorded response took longer")
        headers = [_shift_retry_after(header, self._age_s) for header in encode_headers(response.headers)]
        return RecordedResponse(response, headers, began)


class RecordedResponse(ResponseInChunks):
    """A recorded response; its times count from `began`, by the loop's clock."""

    where = "the recorded upstream"

    def __init__(self, response: UpstreamResponse, headers: list[Header], began: float) -> None:
        self.status = response.status
        self.headers = Headers(headers)
        self._chunks = list(reversed(response.chunks))
        self._response = response
        self._began = began
        self._is_closed = False

    async def chunk(self, timeout_s: float) -> bytes:
        if self._is_closed:
            raise ConnectionLost("closed by the gateway", sent=True, received=True)
        due = self._find_due_time()
        wait_s = timeout_s + 1 if due is None else due - asyncio.get_running_loop().time()
        if wait_s > timeout_s:
            await asyncio.sleep(timeout_s)
            raise UpstreamTimeout("idle", "the recorded response sent no data for longer")
        await asyncio.sleep(max(0.0, wait_s))
        if self._chunks:
            return self._chunks.pop().data
        if self._response.end == WHOLE:
            return b""
        raise make_error(self._response.end)

    def close(self) -> None:
        self._is_closed = True

    def _find_due_time(self) -> float | None:
        """Return when the next chunk or the end arrives; None where the capture has nothing more."""
        if self._chunks:
            return self._began + self._chunks[-1].at
        return None if self._response.end in (CLOSED, "") else self._began + self._response.ended_at


class UpstreamServer:
    """Answers each POST to a recorded path, or to none, with the next response; after the last comes the first."""

    def __init__(self, capture: Capture) -> None:
        self._names = {"", *(_last_part(urlsplit(request.url).path) for request in capture.upstream_requests)}
        self._responses = itertools.cycle([(request.at, request.response) for request in capture.upstream_requests])

    async def __call__(self, request: HttpRequest, sink: ReplySink) -> None:
        await request.body()
        sink.allow_leaving()
        if request.method != "POST" or _last_part(request.path) not in self._names:
            sink.respond(404, [JSON], b'{"error":{"message":"The capture has no request to this path."}}')
            return
        at, response = next(self._responses)
        if response is None:
            sink.abort()
            return
        await _send_response(sink, response, asyncio.get_running_loop().time() - at)


def config_for_upstream(capture: Capture, port: int) -> str:
    """Return a dragoman.toml that uses the replayed upstream and needs no account with its vendor."""
    request = capture.upstream_requests[0]
    root = f"http://{HOST}:{port}"
    settings = local_settings(request.kind, request.protocol, root)
    return "".join(["[providers.replayed]\n", *(f'{name} = "{value}"\n' for name, value in settings.items())])


def make_error(text: str) -> Exception:
    """Return the exception that a capture describes."""
    name, _, message = text.partition(": ")
    kind, _, phase = name.partition(" ")
    if kind == ERROR_NAMES[UpstreamTimeout]:
        return UpstreamTimeout(PHASES.get(phase, "first"), message)
    error = InvalidResponse if kind == ERROR_NAMES[InvalidResponse] else ConnectionLost
    return error(message or "the request was cancelled", sent=True, received=False)


def _shift_retry_after(header: Header, age_s: float) -> Header:
    """Move a date to retry at, so that it is as far in the future as it was."""
    name, value = header
    if name != b"retry-after" or value.isdigit():
        return header
    try:
        date = parsedate_to_datetime(value.decode("latin-1"))
    except ValueError:
        return header
    return name, formatdate(round(date.timestamp() + age_s), usegmt=True).encode()


def _last_part(path: str) -> str:
    """Return the last part of a path: a gateway that is configured for this server may add a version before it."""
    return path.rpartition("/")[2]


async def _send_response(sink: ReplySink, response: UpstreamResponse, began: float) -> None:
    await _sleep_until(began + response.at)
    headers = [header for header in encode_headers(response.headers) if header[0] not in FRAMING_HEADERS]
    sink.begin(response.status, headers)
    await sink.send(b"")
    for chunk in response.chunks:
        await _sleep_until(began + chunk.at)
        await sink.send(chunk.data)
    await _sleep_until(began + response.ended_at)
    if response.end == WHOLE:
        sink.end()
    else:
        sink.abort()


async def _sleep_until(time: float) -> None:
    await asyncio.sleep(max(0.0, time - asyncio.get_running_loop().time()))
