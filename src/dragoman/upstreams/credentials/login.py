"""Signing in: device codes that a person confirms, and a browser that is sent back to this machine."""

import asyncio
import hmac
import secrets
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs

from msgspec import Struct

from dragoman.config.urls import split_url
from dragoman.translate.hub.failure import Kind
from dragoman.upstreams.credentials.credential import (
    CredentialError,
    Table,
    TokenRejected,
    encode_table,
    read_bytes,
    replace_file,
)


class LoginFailed(Exception):
    """The sign-in failed; the message says why and what to do."""


@contextmanager
def login_failures() -> Iterator[None]:
    """Raise LoginFailed for what a vendor's service raises."""
    try:
        yield
    except TokenRejected as rejected:
        raise LoginFailed(f"the sign-in was rejected ({rejected.code})") from rejected
    except CredentialError as error:
        raise LoginFailed(str(error)) from error


def save_login(path: Path, table: Table) -> None:
    """Replace the credential file: the user has just requested it."""
    while not replace_file(path, encode_table(table), read_bytes(path)):
        pass


T = TypeVar("T")

DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
SLOW_DOWN_S = 5.0
MIN_INTERVAL_S = 0.1
MAX_LIFE_S = 3600.0

FINAL_ERRORS = {
    "expired_token": "the code expired before it was confirmed: start again",
    "access_denied": "the request was denied in the browser",
    "invalid_grant": "the code is no longer valid: start again",
}

Sleep = Callable[[float], Awaitable[None]]
Tick = Callable[[float], None]


class AuthorizationPending(TokenRejected):
    """The person has not confirmed the code yet; `slower` and `interval_s` are the pace that the issuer demands."""

    def __init__(self, *, slower: bool = False, interval_s: float | None = None) -> None:
        super().__init__("slow_down" if slower else "authorization_pending")
        self.slower = slower
        self.interval_s = interval_s


class PollPace(Struct, frozen=True):
    """How often to poll, and for how long."""

    interval_s: float
    life_s: float
    sleep: Sleep = asyncio.sleep


async def poll(ask: Callable[[], Awaitable[T]], pace: PollPace, tick: Tick) -> T:
    """Call `ask` until the person has decided; call `tick` with the seconds that are left.

    `ask` raises TokenRejected with the issuer's error code, or AuthorizationPending if the issuer sets another pace.
    """
    interval = max(pace.interval_s, MIN_INTERVAL_S)
    left = min(pace.life_s, MAX_LIFE_S)
    while left > 0:
        tick(left)
        await pace.sleep(interval)
        left -= interval
        try:
            return await ask()
        except TokenRejected as declined:
            interval = _next_interval(interval, declined)
        except CredentialError as unheard:
            if unheard.kind is Kind.UPSTREAM:
                raise LoginFailed(str(unheard)) from unheard
    raise LoginFailed(FINAL_ERRORS["expired_token"])


def _next_interval(interval: float, declined: TokenRejected) -> float:
    """Return the new interval in seconds. Raises LoginFailed if polling can no longer succeed."""
    match declined:
        case AuthorizationPending(interval_s=float() as demanded_s):
            return max(demanded_s, interval)
        case AuthorizationPending(slower=slower):
            return interval + SLOW_DOWN_S if slower else interval
    match declined.code:
        case "authorization_pending" | "AuthorizationPendingException":
            return interval
        case "slow_down" | "SlowDownException":
            return interval + SLOW_DOWN_S
        case code:
            raise LoginFailed(FINAL_ERRORS.get(code, f"the sign-in was refused ({code})"))


BROWSER_TIMEOUT_S = 600.0
MAX_HEAD = 16 * 1024
HEAD_TIMEOUT_S = 10.0
DENIED = "the request was denied in the browser"

PAGE = b"<!doctype html><meta charset=utf-8><title>dragoman</title><p>%b You may close this window."


class PkceProof(Struct, frozen=True):
    """PKCE: proof that the program which requested the code is the one that exchanges it."""

    verifier: str
    state: str

    @property
    def challenge(self) -> str:
        return urlsafe_b64encode(sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()

    def __repr__(self) -> str:
        return "Proof(***)"


class BrowserCallback(Struct, frozen=True):
    """Where the browser is redirected to. Ports are tried in order; 0 is any."""

    path: str
    ports: Sequence[int] = (0,)
    timeout_s: float = BROWSER_TIMEOUT_S
    reason: Callable[[dict[str, str]], str] = lambda fields: DENIED  # a redirect without a code -> the message to show


class CodeLogin(ABC):
    """A sign-in in the browser of this machine, which is redirected to a listener on the loopback interface."""

    def __init__(self, callback: BrowserCallback) -> None:
        self._callback = callback
        self.proof = PkceProof(secrets.token_urlsafe(64), secrets.token_urlsafe(32))

    async def run(self, show: Callable[[str], None]) -> Table:
        """Sign in; `show` is called with the link to open."""
        code, back = await wait_for_browser_code(self._callback, self.proof, show, self.link)
        with login_failures():
            return await self.exchange(code, back)

    @abstractmethod
    def link(self, back: str) -> str: ...
    @abstractmethod
    async def exchange(self, code: str, back: str) -> Table:
        """Exchange the code for tokens; return them as our file stores them."""


async def wait_for_browser_code(
    callback: BrowserCallback, proof: PkceProof, show: Callable[[str], None], link: Callable[[str], str]
) -> tuple[str, str]:
    """Return the code and the redirect address; `link` makes of that address the link that `show` is given."""
    arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    listener = _Listener(callback, proof, arrived)
    server = await _listen(listener, callback.ports)
    async with server:
        back = f"http://localhost:{server.sockets[0].getsockname()[1]}{callback.path}"
        show(link(back))
        try:
            async with asyncio.timeout(callback.timeout_s):
                return await arrived, back
        except TimeoutError:
            raise LoginFailed("the browser was not redirected here in time: start again") from None


async def _listen(listener: "_Listener", ports: Sequence[int]) -> asyncio.Server:
    for port in ports:
        try:
            return await asyncio.start_server(listener.answer_redirect, "127.0.0.1", port, limit=MAX_HEAD)
        except OSError:
            continue
    taken = " and ".join(str(port) for port in ports)
    raise LoginFailed(
        f"another program listens on port {taken}, which the browser must be redirected to: stop that program"
    )


class _Listener:
    def __init__(self, callback: BrowserCallback, proof: PkceProof, arrived: "asyncio.Future[str]") -> None:
        self._callback = callback
        self._proof = proof
        self._arrived = arrived

    async def answer_redirect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, words = self._judge(head)
            page = PAGE % words
            writer.write(b"HTTP/1.1 %b\r\ncontent-type: text/html\r\ncontent-length: %d\r\n" % (status, len(page)))
            writer.write(b"connection: close\r\n\r\n" + page)
            await writer.drain()
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _judge(self, head: bytes) -> tuple[bytes, bytes]:
        target = split_url((head.split(b" ", 2)[1:2] or [b"/"])[0].decode("latin-1"))
        fields = {name: values[-1] for name, values in parse_qs(target.query).items()}
        ours = hmac.compare_digest(fields.get("state", "").encode(), self._proof.state.encode())
        if target.path != self._callback.path or not ours:
            return b"404 Not Found", b"There is nothing here."
        if not self._arrived.done():
            if "code" in fields:
                self._arrived.set_result(fields["code"])
            else:
                self._arrived.set_exception(LoginFailed(self._callback.reason(fields)))
        return b"200 OK", b"Signed in." if "code" in fields else b"Not signed in."
