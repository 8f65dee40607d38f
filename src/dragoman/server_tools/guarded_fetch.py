"""Get what a client or a model links to, from public addresses only.

The address is chosen by someone else, so a request must never reach what only the gateway can reach. A name is resolved
once, every address that it has is checked, and exactly a checked address is connected to; each redirect is checked
again. A proxy is given that address too, never the name.
"""

import asyncio
import base64
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urljoin

from msgspec import Struct

from dragoman.config.proxies import EnvironmentProxies
from dragoman.config.settings import Fetch
from dragoman.net.body_threads import run_off_loop
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    IncomingResponse,
    OutgoingRequest,
    SendRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)
from dragoman.net.dial import ParsedUrl, parse_url
from dragoman.net.guest_threads import resolve_guest_name
from dragoman.net.headers import Header
from dragoman.server_tools.addresses import to_ascii
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.request import Inline
from dragoman.translate.hub.server_tools import ToolErrorCode, ToolFailure

MAX_REDIRECTS = 5
MAX_URL = 2048
CONNECT_TIMEOUT_S = 3.0
PORTS = frozenset((80, 443))

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_PRIVATE_NAMES = (".internal", ".local", ".localhost", ".home.arpa", ".lan", ".intranet")
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo among them: it carries an IPv4 address
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: carries an IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)
_SPECIAL_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "100.64.0.0/10",  # carrier-grade NAT
            "168.63.129.16/32",  # the host of a virtual machine at Azure
            "192.0.0.0/24",  # protocol assignments
            "192.88.99.0/24",  # 6to4 relays
        ),
    )
)

MAX_LINKS = 20  # to images and documents, of one request
AT_ONCE = 4

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet, and to nothing that stands for another address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        is_ordinary = parsed in _GLOBAL_V6 and parsed.scope_id is None
        return is_ordinary and not any(parsed in network for network in _SPECIAL_V6)
    ordinary = parsed.is_global and not (parsed.is_multicast or parsed.is_reserved)
    return ordinary and not any(parsed in network for network in _SPECIAL_V4)


class FetchRules(Struct, frozen=True):
    """What may be fetched, and within which bounds."""

    headers: tuple[Header, ...]
    max_bytes: int  # of the body, once it is decompressed
    timeout_s: float  # from the first connection to the last byte, redirects included
    accepts: Callable[[str], bool]  # a media type
    permits: Callable[[str], bool] = lambda url: True  # an address, the client's own and each redirect
    ports: frozenset[int] | None = PORTS  # None: any


class Fetched(Struct, frozen=True):
    url: str  # after redirects
    content_type: str  # the header as it was sent
    media_type: str
    body: bytes


class GuardedFetcher:
    """Sends GET requests to public addresses. Failures of the other server are returned, never raised."""

    def __init__(
        self, send: SendRequest, resolve: Resolve = resolve_guest_name, proxies: EnvironmentProxies | None = None
    ) -> None:
        self._send = send
        self._resolve = resolve
        self._proxies = proxies

    async def get(self, url: str, rules: FetchRules) -> Fetched | ToolFailure:
        try:
            async with asyncio.timeout(rules.timeout_s):
                return await self._follow(url, rules)
        except TimeoutError:
            return _inaccessible(_name_of(url), f"it took longer than {rules.timeout_s:g} s")

    async def _follow(self, url: str, rules: FetchRules) -> Fetched | ToolFailure:
        url = _in_ascii(url)
        target = _check_address(url, rules)
        for _ in range(MAX_REDIRECTS + 1):
            if isinstance(target, ToolFailure):
                return target
            answer = await self._request(url, target, rules)
            if isinstance(answer, ToolFailure):
                return answer
            try:
                if answer.status not in _REDIRECTS:
                    return await _read(url, target, answer, rules)
                location = _decode_location(answer.headers.get(b"location") or b"")
            finally:
                answer.close()
            redirector = target.where
            url = _in_ascii(_join(url, location))
            target = _check_redirect(redirector, url, rules)
        return _inaccessible(_name_of(url), f"it redirects more than {MAX_REDIRECTS} times")

    async def _request(self, url: str, target: ParsedUrl, rules: FetchRules) -> IncomingResponse | ToolFailure:
        """Return the answer of the first of the host's addresses that can be reached."""
        addresses = await self._checked_addresses(target)
        if isinstance(addresses, ToolFailure):
            return addresses
        for address in addresses:
            dial = DialOptions(
                address=address,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                environment_proxies=self._proxies,
                keeps_connections=False,
            )
            try:
                return await self._send(
                    OutgoingRequest("GET", url, rules.headers), dial, head_timeout_s=rules.timeout_s
                )
            except (ConnectionLost, UpstreamTimeout):
                continue
            except ValueError:
                return _inaccessible(target.where, "the URL cannot be requested")
        return _inaccessible(target.where, "it cannot be reached")

    async def _checked_addresses(self, target: ParsedUrl) -> Sequence[str] | ToolFailure:
        try:
            addresses = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError):
            return _inaccessible(target.where, "its name cannot be resolved")
        if not addresses or not all(map(is_public, addresses)):
            return _not_public(target)
        return addresses


def _check_address(url: str, rules: FetchRules) -> ParsedUrl | ToolFailure:
    if len(url) > MAX_URL:
        return ToolFailure(ToolErrorCode.URL_TOO_LONG, f"The URL is longer than {MAX_URL} characters.")
    try:
        target = parse_url(url)
    except ValueError as fault:
        return ToolFailure(ToolErrorCode.INVALID_INPUT, f"The URL cannot be fetched: {fault}.")
    if _is_private_place(target.host):  # before the port: this is the more important reason
        return _not_public(target)
    if rules.ports is not None and target.port not in rules.ports:
        allowed = ", ".join(map(str, sorted(rules.ports)))
        return ToolFailure(ToolErrorCode.URL_NOT_ALLOWED, f"Port {target.port} is not allowed (only {allowed}).")
    if not rules.permits(url):
        message = f"{target.host} is not among the domains that the request allows."
        return ToolFailure(ToolErrorCode.URL_NOT_ALLOWED, message)
    return target


def _is_private_place(host: str) -> bool:
    """Whether a host is private by its name, or is itself an address that is not public, in any way of writing it."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(_PRIVATE_NAMES):
        return True
    try:
        return not is_public(name if ":" in name else socket.inet_ntoa(socket.inet_aton(name)))
    except OSError:
        return False  # a name, which has to be resolved


def _not_public(target: ParsedUrl) -> ToolFailure:
    return _inaccessible(target.where, "it is not on a public address")


def _check_redirect(redirector: str, url: str, rules: FetchRules) -> ParsedUrl | ToolFailure:
    target = _check_address(url, rules)
    if isinstance(target, ToolFailure) and target.code is not ToolErrorCode.URL_NOT_ALLOWED:
        return _inaccessible(redirector, "it redirects to an address that cannot be fetched")
    return target


def _in_ascii(url: str) -> str:
    """Return the address in ASCII, or as it is if that is not possible; the check refuses it then."""
    try:
        return to_ascii(url)
    except ValueError:
        return url


def _decode_location(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _join(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        return ""  # no address at all, which the check refuses


async def _read(url: str, target: ParsedUrl, answer: IncomingResponse, rules: FetchRules) -> Fetched | ToolFailure:
    if answer.status == 429:
        return ToolFailure(ToolErrorCode.TOO_MANY_REQUESTS, f"{target.where} answered with HTTP 429.")
    if answer.status != 200:
        return _inaccessible(target.where, f"it answered with HTTP {answer.status}")
    content_type = (answer.headers.get(b"content-type") or b"").decode("latin-1")
    media_type = content_type.partition(";")[0].strip().lower()
    if not rules.accepts(media_type):
        shown = media_type[:80] or "something without a content type"
        return ToolFailure(ToolErrorCode.UNSUPPORTED_CONTENT_TYPE, f"{target.where} serves {shown}.")
    try:
        body = await answer.read(rules.max_bytes, rules.timeout_s)
    except SizeLimitExceeded:
        megabytes = rules.max_bytes / (1024 * 1024)
        return ToolFailure(ToolErrorCode.CONTENT_TOO_LARGE, f"{target.where} serves more than {megabytes:.3g} MB.")
    except (ConnectionLost, UpstreamTimeout):
        return _inaccessible(target.where, "it broke off")
    return Fetched(url, content_type, media_type, body)


def _name_of(url: str) -> str:
    try:
        return parse_url(url).where
    except ValueError:
        return "the address"


def _inaccessible(where: str, why: str) -> ToolFailure:
    return ToolFailure(ToolErrorCode.URL_NOT_ACCESSIBLE, f"{where} cannot be fetched: {why}.")


class LinkedMediaFetcher:
    """Fetches the images and PDFs that a request links to, within the configured bounds."""

    def __init__(self, fetcher: GuardedFetcher, bounds: Fetch, user_agent: str) -> None:
        self._fetcher = fetcher
        headers = ((b"accept", b"image/*, application/pdf"), (b"user-agent", user_agent.encode()))
        self._rules = FetchRules(headers, bounds.max_bytes, bounds.timeout_s, _is_media, ports=None)

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        """Raises RequestError, naming the host, for the first that cannot be fetched."""
        if len(urls) > MAX_LINKS:
            raise _make_refusal(f"A request may link to at most {MAX_LINKS} images and documents that must be fetched.")
        places = asyncio.Semaphore(AT_ONCE)

        async def fetch_one(url: str) -> tuple[str, Inline]:
            async with places:
                return url, await self.fetch(url)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(fetch_one(url)) for url in urls]
            return dict(task.result() for task in tasks)
        except ExceptionGroup as faults:
            raise next((fault for fault in faults.exceptions if isinstance(fault, RequestError)), faults) from None
        finally:
            del group, tasks  # what a task raised holds this frame

    async def fetch(self, url: str) -> Inline:
        fetched = await self._fetcher.get(url, self._rules)
        if isinstance(fetched, ToolFailure):
            raise _make_refusal(f"A linked image or document cannot be used. {fetched.message}")
        body = fetched.body
        return Inline(fetched.media_type, await run_off_loop(len(body), lambda: base64.b64encode(body).decode()))


def _is_media(media_type: str) -> bool:
    return media_type.startswith("image/") or media_type == "application/pdf"


def _make_refusal(message: str) -> RequestError:
    return RequestError(Failure(Kind.BAD_REQUEST, message, code="media_not_fetched"))
