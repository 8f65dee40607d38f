"""Serve the console: its page and files, signing in, sessions, and the check that requests come from its own page."""

import hashlib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman import __version__
from dragoman.config.settings import Config, is_loopback
from dragoman.net.headers import JSON, Header
from dragoman.net.http_request import HttpRequest
from dragoman.proxy.response_headers import request_id_headers
from dragoman.server.api.table import make_own_route
from dragoman.server.api.wire import convert_errors, respond
from dragoman.server.console.feed import FeedApi, ShownGateway
from dragoman.server.console.files import IMMUTABLE, REVALIDATED, SECURITY_HEADERS, ConsoleFile, read_console_files
from dragoman.server.console.live_requests import CostOf, LiveRequests
from dragoman.server.rejections import LOCAL_NAMES, host_name, port_of
from dragoman.server.routes import AccessRole, HttpRoute, RoutedRequest, read_short_body
from dragoman.store import StoreError
from dragoman.store.console_sessions import SessionRow
from dragoman.tenancy.console_sessions import Browser, ConsoleSessions, MemorySessions, NewSession
from dragoman.tenancy.keys import KeyId, KeyRole, Scope
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError

if TYPE_CHECKING:
    from dragoman.server.api.config import ClientsApi

SITE = b"sec-fetch-site"
FORWARDED_PROTO = b"x-forwarded-proto"
READING = ("GET", "HEAD")
WITHOUT_BODY = (*READING, "DELETE")

NO_TLS = (
    "The console needs TLS where other machines can reach it. Put a reverse proxy with TLS in front that sets "
    "x-forwarded-proto, and name its address in console.trusted_proxies; or open the console on this machine."
)
OTHER_SITE = (
    "Another site sent this request, so it is refused. Type or paste the address of the console into the browser."
)
PREFIX = "/console"
COOKIE = "__Host-dragoman-"  # and a digest: cookies are shared by all ports of a host, and so by all gateways on it
TOKEN = b"x-dragoman-console"
COOKIE_RULES = "Secure; HttpOnly; SameSite=Strict; Path=/"
MAX_BODY_BYTES = 4096
BODY_TIMEOUT_S = 10.0
OLDER_VERSION = re.compile("[0-9a-f]{16}")


class BrowserCheck(Struct, frozen=True):
    """The checks of one configuration."""

    is_local: bool  # the gateway listens where only this machine reaches it
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

    def find_error(self, http: HttpRequest) -> Failure | None:
        """Return why a request may not use a session; None if it may."""
        if http.headers.get(SITE) != b"same-origin":
            return Failure(Kind.FORBIDDEN, OTHER_SITE, code="other_site")
        origin = http.headers.get(b"origin")
        if origin is None and http.method not in READING:
            return Failure(Kind.FORBIDDEN, "The request has no Origin header.", code="other_site")
        if origin is not None and origin != self._origin(http):
            return Failure(Kind.FORBIDDEN, OTHER_SITE, code="other_site")
        content_type = http.headers.get(b"content-type") or b""
        if http.method not in WITHOUT_BODY and content_type.partition(b";")[0].strip() != b"application/json":
            message = "Send the body as JSON, with content-type: application/json."
            return Failure(Kind.BAD_REQUEST, message, code="unsupported_media_type")
        return self.find_exposure(http)

    def find_page_error(self, http: HttpRequest) -> Failure | None:
        """Return why a request may not get the page or its files; None if it may.

        A link on another site may lead to the page, which holds no data: its own requests for them need the session.
        """
        if http.headers.get(SITE) not in (None, b"none", b"same-origin") and not _is_navigation(http):
            return Failure(Kind.FORBIDDEN, OTHER_SITE, code="other_site")
        return self.find_exposure(http)

    def find_exposure(self, http: HttpRequest) -> Failure | None:
        """Return that others could listen, or None."""
        host = host_name(http.headers.get(b"host") or b"")
        if self._has_tls(http) or (self.is_local and host in LOCAL_NAMES):
            return None
        return Failure(Kind.FORBIDDEN, NO_TLS, code="tls_required")

    def _has_tls(self, http: HttpRequest) -> bool:
        if http.headers.get(FORWARDED_PROTO) != b"https":
            return False
        try:
            peer = ipaddress.ip_address(http.address.partition("%")[0])
        except ValueError:
            return False
        mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
        return any((mapped or peer) in network for network in self.proxies)

    def _origin(self, http: HttpRequest) -> bytes:
        scheme = b"https" if self._has_tls(http) else b"http"
        return scheme + b"://" + (http.headers.get(b"host") or b"")


def _is_navigation(http: HttpRequest) -> bool:
    """Return whether the address itself changes to this page: not that of a frame, and nothing is read by a script."""
    headers = http.headers
    return headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"


def make_browser_check(config: Config) -> BrowserCheck:
    networks = tuple(ipaddress.ip_network(text, strict=False) for text in config.console.trusted_proxies)
    return BrowserCheck(is_loopback(config.server.host), networks)


class SignIn(Struct, forbid_unknown_fields=True):
    """How a browser signs in: with a key, or with the token of a one-time link."""

    key: str = ""
    link: str = ""


class Console:
    """The console of one gateway."""

    def __init__(self, shown: ShownGateway, live: LiveRequests) -> None:
        self._gateway = shown.gateway
        self.sessions = ConsoleSessions(MemorySessions() if shown.store is None else shown.store, shown.keyring)
        self.live = live
        self._check = BrowserCheck(True, ())
        self._store = ""
        self._keyring = shown.keyring
        self._backoff = shown.backoff
        self._audit = shown.audit
        self._feed = FeedApi(shown, live, self.sessions, self.find_session)

    def adopt(self, config: Config) -> None:
        """Use a changed configuration from the next request on."""
        self._check = make_browser_check(config)
        self._store = config.store.url

    def begin_stop(self) -> None:
        """End what a tab would keep open for as long as it likes."""
        self._feed.begin_stop()

    def routes(self) -> Iterator[HttpRoute]:
        yield HttpRoute("GET", PREFIX, AccessRole.PUBLIC, self._serve_page)
        yield HttpRoute("GET", f"{PREFIX}/*", AccessRole.PUBLIC, self._serve_file)
        yield HttpRoute("POST", f"{PREFIX}/session", AccessRole.SESSION, self._sign_in)
        yield HttpRoute("GET", f"{PREFIX}/session", AccessRole.SESSION, self._describe)
        yield HttpRoute("DELETE", f"{PREFIX}/session", AccessRole.SESSION, self._sign_out)
        yield HttpRoute("GET", f"{PREFIX}/sessions", AccessRole.SESSION, self._list_sessions)
        yield HttpRoute("DELETE", f"{PREFIX}/sessions/*", AccessRole.SESSION, self._end_session)
        yield from self._feed.routes()
        yield make_own_route("GET", "connect", lambda: self._clients.list_clients, Scope.MODELS_READ)

    @cached_property
    def _clients(self) -> "ClientsApi":
        from dragoman.server.api.config import ClientsApi  # seldom used, and imports much

        return ClientsApi(self._gateway)

    async def find_key(self, http: HttpRequest) -> KeyId | None:
        """Return the key of a request's session; None if it names none. Raises RequestError for an invalid one."""
        session = await self.find_session(http)
        return None if session is None else KeyId(session.key)

    async def find_session(self, http: HttpRequest) -> SessionRow | None:
        """Return the session of a request; None if it names none. Raises RequestError for one that is not valid."""
        token = http.headers.get(TOKEN)
        if token is None:
            return None
        error = self._check.find_error(http)
        if error is not None:
            raise RequestError(error)
        with convert_errors():
            session = await self.sessions.find(self._read_cookie(http), token.decode("latin-1"))
        if session is None:
            message = "The session has ended, or its key was revoked. Sign in again."
            raise RequestError(Failure(Kind.AUTH, message, code="session_ended"))
        return session

    def _cookie_name(self, http: HttpRequest) -> str:
        """Return the name of this gateway's cookie: another one by its port or its store has another."""
        own = f"{port_of(http.headers.get(b'host') or b'')} {self._store}"
        return COOKIE + hashlib.sha256(own.encode()).hexdigest()[:12]

    def _read_cookie(self, http: HttpRequest) -> str:
        """Return the value of the session's cookie; empty if there is none."""
        expected = self._cookie_name(http)
        for pair in (http.headers.get(b"cookie") or b"").decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == expected:
                return value
        return ""

    async def _serve_page(self, request: RoutedRequest) -> None:
        self._send_file(request, read_console_files().page, REVALIDATED)

    async def _serve_file(self, request: RoutedRequest) -> None:
        """Send a file of the current version; any other address below /console is a state of the page."""
        found = read_console_files()
        version, slash, name = request.rest.partition("/")
        if version == found.version and slash:
            if name not in found.files:
                raise RequestError(Failure(Kind.NOT_FOUND, f"The console has no file {name[:80]!r}."))
            self._send_file(request, found.files[name], IMMUTABLE)
        elif OLDER_VERSION.fullmatch(version) and slash:
            raise RequestError(Failure(Kind.NOT_FOUND, "The console was updated. Reload the page."))
        else:
            self._send_file(request, found.page, REVALIDATED)

    def _send_file(self, request: RoutedRequest, file: ConsoleFile, caching: Header) -> None:
        error = self._check.find_page_error(request.http)
        if error is not None:
            head = [(b"content-type", b"text/plain"), *request_id_headers(request.request_id), *SECURITY_HEADERS]
            request.sink.respond(403, head, error.message.encode())
            return
        headers = request.http.headers
        head = [
            (b"content-type", file.content_type),
            (b"etag", file.etag),
            caching,
            *request_id_headers(request.request_id),
        ]
        head += SECURITY_HEADERS
        if headers.get(b"if-none-match") == file.etag:
            request.sink.respond(304, head, b"")
            return
        body, encoding = file.encode(headers.get(b"accept-encoding") or b"")
        request.sink.respond(200, head + encoding, body)

    async def _sign_in(self, request: RoutedRequest) -> None:
        http = request.http
        error = self._check.find_error(http)
        if error is not None:
            raise RequestError(error)
        proof = _parse_sign_in(await read_short_body(http, MAX_BODY_BYTES, BODY_TIMEOUT_S))
        browser = Browser(http.address, (http.headers.get(b"user-agent") or b"").decode("latin-1"))
        with convert_errors():
            made = await self._begin_session(proof, browser)
            if made is not None:
                await self.sessions.end_by_cookie(self._read_cookie(http))
        if made is None:
            await self._backoff.reject(http.address, request.path, had_key=True)
            raise RequestError(_sign_in_failure(proof), observed=True)  # by the backoff
        http.mark_authenticated(made.row.key)
        await self._record(request, "sessions.begin", made.row, made.row)
        body = await self._describe_session(made.row) | {"token": made.token}
        name = self._cookie_name(request.http)
        cookie = f"{name}={made.cookie}; Max-Age={made.row.expires_at - made.row.created_at}; {COOKIE_RULES}"
        head = [JSON, *request_id_headers(request.request_id), (b"cache-control", b"no-store")]
        head += [(b"set-cookie", cookie.encode()), *SECURITY_HEADERS]
        request.sink.respond(200, head, msgspec.json.encode(body))

    async def _begin_session(self, proof: SignIn, browser: Browser) -> NewSession | None:
        if proof.link:
            return await self.sessions.open_link(proof.link, browser)
        return await self.sessions.sign_in(proof.key.strip().encode(errors="replace"), browser)

    async def _describe(self, request: RoutedRequest) -> None:
        respond(request, await self._describe_session(await self._own_session(request)))

    async def _sign_out(self, request: RoutedRequest) -> None:
        own = await self._own_session(request)
        await self._record(request, "sessions.end", own, own)
        await self.sessions.end(own.id)
        ended = f"{self._cookie_name(request.http)}=; Max-Age=0; {COOKIE_RULES}"
        head = [(b"set-cookie", ended.encode()), (b"cache-control", b"no-store")]
        request.sink.respond(204, [*head, *request_id_headers(request.request_id)], b"")

    async def _list_sessions(self, request: RoutedRequest) -> None:
        own, names = await self._own_session(request), await self._key_names()
        shown = [_show(row, names) | {"is_this": row.id == own.id} for row in await self._visible(own)]
        respond(request, {"sessions": shown})

    async def _end_session(self, request: RoutedRequest) -> None:
        own = await self._own_session(request)
        found = next((row for row in await self._visible(own) if row.id == request.rest), None)
        if found is None:
            raise RequestError(Failure(Kind.NOT_FOUND, f"There is no session {request.rest[:80]!r}.", at="/id"))
        await self._record(request, "sessions.end", own, found)
        await self.sessions.end(found.id)
        respond(request, {"ended": request.rest})

    async def _record(self, request: RoutedRequest, action: str, own: SessionRow, changed: SessionRow) -> None:
        if self._audit is not None:
            by_own_key = replace(request, key=KeyId(own.key))
            await self._audit.record(by_own_key, action, changed.id, {"key": changed.key})

    async def _visible(self, own: SessionRow) -> list[SessionRow]:
        """Return all sessions for the owner, and for any other key its own sessions."""
        sees_all = self._keyring.access(KeyId(own.key)).role is KeyRole.OWNER
        return [row for row in await self.sessions.list_valid() if sees_all or row.key == own.key]

    async def _own_session(self, request: RoutedRequest) -> SessionRow:
        session = await self.find_session(request.http)
        if session is None:
            message = "This path is for browsers that are signed in: send the cookie and x-dragoman-console."
            raise RequestError(Failure(Kind.FORBIDDEN, message, code="no_session"))
        return session

    async def _key_names(self) -> dict[str, str]:
        """Return the names of the stored keys by their ids; none without a store, or while it fails."""
        with suppress(StoreError):
            return {row.id: row.name for row in await self._keyring.list()}
        return {}

    async def _describe_session(self, row: SessionRow) -> dict[str, object]:
        access = self._keyring.access(KeyId(row.key))
        shown = _show(row, await self._key_names())
        return {"session": shown, "role": access.role, "scopes": sorted(access.scopes), "version": __version__}


def _parse_sign_in(body: bytes) -> SignIn:
    try:
        proof = msgspec.json.decode(body, type=SignIn)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest("", f"The body is not a sign-in: {error}") from None
    if bool(proof.key.strip()) == bool(proof.link):
        raise BadRequest("/key", "Send either a key or a link.")
    return proof


def _sign_in_failure(proof: SignIn) -> Failure:
    if proof.link:
        message = "This link was already used, or is older than 60 seconds. Run: dragoman console"
        return Failure(Kind.AUTH, message, code="link_not_valid", at="/link")
    message = "This key is not valid here. To make one, run: dragoman keys create"
    return Failure(Kind.AUTH, message, code="key_not_valid", at="/key")


def _show(row: SessionRow, names: Mapping[str, str]) -> dict[str, object]:
    """Return a session without its digests, and with the name of its key."""
    fields = msgspec.structs.asdict(row)
    shown = {name: value for name, value in fields.items() if not isinstance(value, bytes)}
    return shown | {"key_name": names.get(row.key, row.key)}


def make_console(shown: ShownGateway, cost_of: CostOf) -> Console:
    """Make the console of a gateway, which sees every request from now on."""
    live = LiveRequests(shown.gateway.captures, cost_of, shown.replica.find_name)
    shown.gateway.observers.on_end = live.record_outcome
    return Console(shown, live)
