"""A capture comes in; the same request meets today's code and the recorded answers, and a capture of that goes out.

The site, the gateway and every machine are those that serve; only the upstream, the credentials, the clock and the
connection are played.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from urllib.parse import unquote

from msgspec.structs import replace

from dragoman.accounts.keys import KeyId, Keyring
from dragoman.admin.replay import leaping
from dragoman.admin.replay.player import Player, headers_of
from dragoman.admin.replay.runtime import Lookups, ReplayedMemory, make_runtime
from dragoman.config.secret import Secret
from dragoman.config.settings import Debug
from dragoman.flow.call import Call
from dragoman.flow.capture.capturing import Capturing
from dragoman.flow.capture.format import CLIENT_LEFT, Capture
from dragoman.flow.capture.masking import masked_capture
from dragoman.flow.capture.recording import Recording
from dragoman.flow.gateway import Gateway
from dragoman.hub.ports import ReplyContext
from dragoman.net.bodies import ByteBudget
from dragoman.net.errors import ClientDisconnected
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.net.request_head import RequestHead
from dragoman.net.tasks import spawn

HOST = "127.0.0.1"
UNLIMITED_BYTES = 1 << 62
KEY = "dgm_replayed-requests-come-with-this"
STORED_KEY = KeyId("key_replayed")
OWN = frozenset({"host", "origin", "authorization", "x-api-key", "x-goog-api-key", "x-request-id", "content-length"})


Handler = Callable[[Exchange], Coroutine[object, object, None]]
MakeHandler = Callable[[Gateway, Keyring], Handler]


def rerun(capture: Capture, make_handler: MakeHandler) -> Capture:
    """Send the captured request through today's code and return a capture of that.

    `make_handler` puts the HTTP layer in front of the gateway: `dragoman.http.handler.replay_site`.
    Raises Gone where this version lacks what the capture was made with.
    """
    return leaping.run(_rerun(capture, make_handler))


async def _rerun(capture: Capture, make_handler: MakeHandler) -> Capture:
    player, lookups = Player(capture.upstream_requests, time.time() - capture.started_at), Lookups(capture)
    gateway = _Gateway(make_runtime(capture, player, lookups), ReplayedMemory(lookups))
    gateway.created = int(capture.started_at)
    gateway.capturing = collecting = _Collecting()
    keyring = _Keyring(capture.settings.owner)
    handler = make_handler(gateway, keyring)
    exchange = Exchange(_head(capture), _Wire(), ByteBudget(UNLIMITED_BYTES))
    exchange.body_arrived(capture.request.body)
    await _served(handler, exchange, capture)
    assert collecting.over is not None, "the request did not come as far as the gateway"
    return masked_capture(collecting.over.capture(), collecting.over.secrets)


async def _served(handler: Handler, exchange: Exchange, capture: Capture) -> None:
    """A client that left then leaves again, at the same time; a gateway that stopped stops."""
    serving = spawn(handler(exchange), name="replay")

    def interrupt() -> None:
        exchange.gone = capture.interrupted_by == CLIENT_LEFT
        serving.cancel()

    if capture.interrupted_by:
        asyncio.get_running_loop().call_later(capture.duration_ms / 1000, interrupt)
    with suppress(asyncio.CancelledError, ClientDisconnected):
        await serving


class _Gateway(Gateway):
    """Its clock shows the time of then, and its ids are counted."""

    created = 0
    minted = 0

    def _asked(self, call: Call) -> ReplyContext:
        return replace(super()._asked(call), created=self.created, now=self._now, new_id=self._mint)

    def _mint(self, prefix: str) -> str:
        self.minted += 1
        return f"{prefix}{self.minted:024x}"

    def _now(self) -> float:
        return self.created + asyncio.get_running_loop().time()


class _Keyring(Keyring):
    """Knows the one key of replayed requests, as the owner's or as a stored one."""

    def __init__(self, owner: bool) -> None:
        super().__init__(None, Secret(KEY))
        self._owner = owner

    def check(self, presented: bytes | None) -> KeyId | None:
        key = super().check(presented)
        return key if key is None or self._owner else STORED_KEY


class _Collecting(Capturing):
    """Keeps the one recording instead of writing it."""

    over: Recording | None = None

    def begin(self, exchange: Exchange, began: float, debug: Debug) -> Recording | None:
        return super().begin(exchange, began, replace(debug, capture="all"))

    def _finished(self, recording: Recording, debug: Debug) -> None:
        self.over = recording


class _Wire:
    """A client that takes everything at once."""

    blocked = False
    address = HOST

    def write(self, data: bytes) -> bool:
        return True

    def must_close(self, exchange: Exchange) -> bool:
        return False

    def reply_ended(self, exchange: Exchange) -> None:
        return

    def drop(self, exchange: Exchange) -> None:
        return

    async def writable(self) -> None:
        return

    async def body_arrival(self, exchange: Exchange) -> None:
        return

    def mark_authenticated(self) -> None:
        return


def _head(capture: Capture) -> RequestHead:
    asked = capture.request
    head = RequestHead()
    head.method = asked.method
    head.raw_path = asked.path.encode("latin-1")
    head.path = unquote(asked.path)
    head.query = "&".join(pair for pair in asked.query.split("&") if not pair.startswith("key="))
    head.fields = [*headers_of(tuple(field for field in asked.headers if field[0] not in OWN)), *_own_fields(capture)]
    return head


def _own_fields(capture: Capture) -> list[Header]:
    """What a replayed request says in place of what was masked, and the id by which it was known."""
    return [
        (b"host", HOST.encode()),
        (b"authorization", b"Bearer " + KEY.encode()),
        (b"x-request-id", capture.request_id.encode("latin-1")),
    ]
