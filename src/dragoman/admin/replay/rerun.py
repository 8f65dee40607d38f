"""Run a captured request through the current code, with the recorded responses, and return a capture of that.

The HTTP layer and the gateway are those that serve; only the upstream, the credentials, the clock and the client's
connection are replayed.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from urllib.parse import unquote

from msgspec.structs import replace

from dragoman.accounts.keys import KeyId, Keyring
from dragoman.admin.errors import AdminError
from dragoman.admin.replay.runtime import Lookups, ReplayedMemory, make_runtime, restore_state
from dragoman.admin.replay.upstream import RecordedUpstream, encode_headers
from dragoman.config.secret import Secret
from dragoman.flow.call import Call
from dragoman.flow.capture.format import CLIENT_LEFT, NO_PROVIDER, Capture, LookupName
from dragoman.flow.capture.masking import mask_capture
from dragoman.flow.capture.writer import Counts, Job, RequestCapture
from dragoman.flow.gateway import Gateway
from dragoman.hub.ports import ReplyContext
from dragoman.net.bodies import ByteBudget
from dragoman.net.detached import NoConnection
from dragoman.net.errors import ClientDisconnected
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.net.request_head import RequestHead
from dragoman.net.tasks import spawn

HOST = "127.0.0.1"
UNLIMITED_BYTES = 1 << 62
KEY = "dgm_replayed-requests-come-with-this"
STORED_KEY = KeyId("key_replayed")
REPLACED_HEADERS = frozenset(
    {"host", "origin", "authorization", "x-api-key", "x-goog-api-key", "x-request-id", "content-length"}
)


Handler = Callable[[Exchange], Coroutine[object, object, None]]
MakeHandler = Callable[[Gateway, Keyring], Handler]


def rerun(capture: Capture, make_handler: MakeHandler) -> Capture:
    """Run the captured request again and return a capture of that.

    `make_handler` puts the HTTP layer in front of the gateway: `dragoman.http.handler.replay_site`. Raises AdminError
    where the capture is incomplete, or made with something that this version lacks. It runs an event loop of its own:
    where one runs already, call it in a thread.
    """
    if capture.truncated:
        raise AdminError(f"The capture is incomplete ({', '.join(capture.truncated)}), so it cannot be replayed.")
    with asyncio.Runner(loop_factory=_SimulatedLoop) as runner:
        return runner.run(_rerun(capture, make_handler))


async def _rerun(capture: Capture, make_handler: MakeHandler) -> Capture:
    upstream = RecordedUpstream(capture.upstream_requests, time.time() - capture.started_at)
    lookups = Lookups(capture)
    gateway = _Gateway(make_runtime(capture, upstream, lookups), ReplayedMemory(lookups))
    gateway.created, gateway.lookups = int(capture.started_at), lookups
    collector = _Collector()
    gateway.captures = RequestCapture(sink=collector)
    keyring = _Keyring(capture.settings.owner)
    handler = make_handler(gateway, keyring)
    exchange = Exchange(_make_head(capture), NoConnection(HOST), ByteBudget(UNLIMITED_BYTES))
    exchange.body_arrived(capture.request.body)
    await _serve(handler, exchange, capture)
    assert collector.job is not None, "the request did not reach the gateway"
    return mask_capture(collector.job.make_capture(), collector.job.secrets)


async def _serve(handler: Handler, exchange: Exchange, capture: Capture) -> None:
    """Handle the request, and interrupt it at the recorded time if the client left or the gateway stopped."""
    serving = spawn(handler(exchange), name="replay")

    def interrupt() -> None:
        exchange.gone = capture.interrupted_by == CLIENT_LEFT
        serving.cancel()

    if capture.interrupted_by:
        asyncio.get_running_loop().call_later(capture.duration_ms / 1000, interrupt)
    with suppress(asyncio.CancelledError, ClientDisconnected):
        await serving


class _Gateway(Gateway):
    """A gateway whose clock shows the time of the capture, whose ids are counted, and whose store is the capture."""

    created = 0
    ids_made = 0
    lookups: Lookups

    async def answer(self, exchange: Exchange, call: Call) -> None:
        if self.lookups.has(NO_PROVIDER, LookupName.STATE):
            call.state = restore_state(self.lookups, call.body)
        await super().answer(exchange, call)

    def _reply_context(self, call: Call) -> ReplyContext:
        return replace(super()._reply_context(call), created=self.created, now=self._now, new_id=self._make_id)

    def _make_id(self, prefix: str) -> str:
        self.ids_made += 1
        return f"{prefix}{self.ids_made:024x}"

    def _now(self) -> float:
        return self.created + asyncio.get_running_loop().time()


class _Keyring(Keyring):
    """Accepts the one key of replayed requests, as the owner's key or as a stored one."""

    def __init__(self, owner: bool) -> None:
        super().__init__(None, Secret(KEY))
        self._owner = owner

    def check(self, presented: bytes | None) -> KeyId | None:
        key = super().check(presented)
        return key if key is None or self._owner else STORED_KEY


class _Collector:
    """Keeps the recording instead of writing it to a file."""

    counts = Counts(0, 0)

    def __init__(self) -> None:
        self.job: Job | None = None

    def put(self, job: Job) -> None:
        self.job = job

    def close(self) -> None:
        return


def _make_head(capture: Capture) -> RequestHead:
    request = capture.request
    head = RequestHead()
    head.method = request.method
    head.raw_path = request.path.encode("latin-1")
    head.path = unquote(request.path)
    head.query = "&".join(pair for pair in request.query.split("&") if not pair.startswith("key="))
    head.fields = [
        *encode_headers(tuple(field for field in request.headers if field[0] not in REPLACED_HEADERS)),
        *_replacing_headers(capture),
    ]
    return head


def _replacing_headers(capture: Capture) -> list[Header]:
    """Return the headers that replace the masked ones, and the id of the captured request."""
    return [
        (b"host", HOST.encode()),
        (b"authorization", b"Bearer " + KEY.encode()),
        (b"x-request-id", capture.request_id.encode("latin-1")),
    ]


class _SimulatedClock(selectors.DefaultSelector):
    """A selector that moves the time forward to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            ready = super().select(0)
            if not ready:
                self.now += timeout
            return ready
        return super().select(timeout)


class _SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop in which waiting takes no time."""

    def __init__(self) -> None:
        self._clock = _SimulatedClock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now
