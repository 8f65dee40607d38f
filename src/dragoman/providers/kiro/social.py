"""An identity provider's name comes in; a link for the person goes out, and once they come back, a credential."""

import asyncio
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from urllib.parse import parse_qs, urlencode, urlsplit

from dragoman.providers.kiro.asking import Line
from dragoman.providers.kiro.credential import Method, Unusable
from dragoman.providers.kiro.json_file import Table
from dragoman.providers.kiro.moments import format_moment
from dragoman.providers.kiro.refresh import LIFE_S, Declined, granted
from dragoman.providers.kiro.signing_in import LoginFailed

PROVIDERS = {"google": "Google", "github": "Github"}
CALLBACK = "/oauth/callback"
PATIENCE_S = 600.0
MAX_HEAD = 16 * 1024
HEAD_S = 10.0

PAGE = b"<!doctype html><meta charset=utf-8><title>dragoman</title><p>%b You may close this window."


class SocialLogin:
    """PKCE with a listener on the loopback: the browser brings the code back to us."""

    def __init__(self, line: Line, root: str, provider: str, patience_s: float = PATIENCE_S) -> None:
        self._line = line
        self._root = root
        self._provider = PROVIDERS[provider]
        self._patience_s = patience_s
        self._state = secrets.token_urlsafe(24)
        self._verifier = secrets.token_urlsafe(48)

    async def run(self, show: Callable[[str], None]) -> Table:
        """`show` is given the link to open."""
        arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._welcome(reader, writer, arrived)

        server = await asyncio.start_server(welcome, "127.0.0.1", 0, limit=MAX_HEAD)
        async with server:
            back = f"http://localhost:{server.sockets[0].getsockname()[1]}{CALLBACK}"
            show(self._link(back))
            try:
                async with asyncio.timeout(self._patience_s):
                    code = await arrived
            except TimeoutError:
                raise LoginFailed("nobody came back from the browser in time: start again") from None
        return await self._exchanged(code, back)

    def _link(self, back: str) -> str:
        challenge = urlsafe_b64encode(sha256(self._verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "idp": self._provider,
            "redirect_uri": back,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "state": self._state,
        }
        return f"{self._root}/login?{urlencode(query)}"

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, arrived: "asyncio.Future[str]"
    ) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, words = self._judge(head, arrived)
            page = PAGE % words
            writer.write(b"HTTP/1.1 %b\r\ncontent-type: text/html\r\ncontent-length: %d\r\n" % (status, len(page)))
            writer.write(b"connection: close\r\n\r\n" + page)
            await writer.drain()
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def _judge(self, head: bytes, arrived: "asyncio.Future[str]") -> tuple[bytes, bytes]:
        target = urlsplit((head.split(b" ", 2)[1:2] or [b"/"])[0].decode("latin-1"))
        fields = {name: values[-1] for name, values in parse_qs(target.query).items()}
        if target.path != CALLBACK or not hmac.compare_digest(fields.get("state", "").encode(), self._state.encode()):
            return b"404 Not Found", b"There is nothing here."
        if not arrived.done():
            if "code" in fields:
                arrived.set_result(fields["code"])
            else:
                arrived.set_exception(LoginFailed("the request was denied in the browser"))
        return b"200 OK", b"Signed in." if "code" in fields else b"Not signed in."

    async def _exchanged(self, code: str, back: str) -> Table:
        question = {"code": code, "code_verifier": self._verifier, "redirect_uri": back}
        try:
            tokens = granted(await self._line.post(f"{self._root}/oauth/token", question))
        except Declined as declined:
            raise LoginFailed(f"the sign-in was refused ({declined.code})") from declined
        except Unusable as unheard:
            raise LoginFailed(str(unheard)) from unheard
        table: Table = {
            "accessToken": tokens.accessToken,
            "refreshToken": tokens.refreshToken or "",
            "expiresAt": format_moment(self._line.clock.now() + (tokens.expiresIn or LIFE_S)),
            "authMethod": Method.DESKTOP.value,
            "provider": self._provider,
        }
        return {**table, "profileArn": tokens.profileArn} if tokens.profileArn else table
