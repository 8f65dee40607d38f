"""A link is made for a person's browser; the code with which the browser comes back to the loopback goes out."""

import asyncio
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from dragoman.accounts.signing_in import LoginFailed

PATIENCE_S = 600.0
MAX_HEAD = 16 * 1024
HEAD_S = 10.0
DENIED = "the request was denied in the browser"

PAGE = b"<!doctype html><meta charset=utf-8><title>dragoman</title><p>%b You may close this window."


class Proof(Struct, frozen=True):
    """PKCE: who asks for the code is who exchanges it."""

    verifier: str
    state: str

    @property
    def challenge(self) -> str:
        return urlsafe_b64encode(sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()

    def __repr__(self) -> str:
        return "Proof(***)"


def new_proof() -> Proof:
    return Proof(secrets.token_urlsafe(64), secrets.token_urlsafe(32))


class Callback(Struct, frozen=True):
    """Where the browser comes back to; ports are tried in order, 0 is any."""

    path: str
    ports: Sequence[int] = (0,)
    patience_s: float = PATIENCE_S
    reason: Callable[[dict[str, str]], str] = lambda fields: DENIED  # what a return without a code means


async def code_from_browser(
    callback: Callback, proof: Proof, show: Callable[[str], None], link: Callable[[str], str]
) -> tuple[str, str]:
    """The code, and the address it came to; `link` makes of that address what `show` is given."""
    arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    listener = _Listener(callback, proof, arrived)
    server = await _listen(listener, callback.ports)
    async with server:
        back = f"http://localhost:{server.sockets[0].getsockname()[1]}{callback.path}"
        show(link(back))
        try:
            async with asyncio.timeout(callback.patience_s):
                return await arrived, back
        except TimeoutError:
            raise LoginFailed("nobody came back from the browser in time: start again") from None


async def _listen(listener: "_Listener", ports: Sequence[int]) -> asyncio.Server:
    for port in ports:
        try:
            return await asyncio.start_server(listener.welcome, "127.0.0.1", port, limit=MAX_HEAD)
        except OSError:
            continue
    taken = " and ".join(str(port) for port in ports)
    raise LoginFailed(f"another program listens on port {taken}, where the browser must come back to: end it")


class _Listener:
    def __init__(self, callback: Callback, proof: Proof, arrived: "asyncio.Future[str]") -> None:
        self._callback = callback
        self._proof = proof
        self._arrived = arrived

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
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
        target = urlsplit((head.split(b" ", 2)[1:2] or [b"/"])[0].decode("latin-1"))
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
