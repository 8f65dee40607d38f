"""The URL of an image or PDF comes in; what is there goes out as data, if it is on a public address.

A client chooses the URL, so this must never reach what only the gateway can reach. A name is resolved once, every
address that it has is checked, and exactly a checked address is dialled, for each redirect anew: of a proxy, too, only
that address is asked, whatever the name may mean there.
"""

import asyncio
import base64
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urljoin

from dragoman.config.proxies import EnvironmentProxies
from dragoman.config.settings import Fetch
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.request import Inline
from dragoman.net.client import ConnectionLost, DialOptions, OutgoingRequest, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.dial import ParsedUrl, parse_url
from dragoman.providers.connection import USER_AGENT
from dragoman.providers.provider import IncomingResponse, SendRequest

MAX_REDIRECTS = 3
MAX_LINKS = 20  # of one request
AT_ONCE = 4
CONNECT_TIMEOUT_S = 3.0
HEADERS = ((b"accept", b"image/*, application/pdf"), (b"user-agent", USER_AGENT.encode()))

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
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

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """Every address of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[4][0]) for place in found]


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet, and to nothing that stands for another address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        return parsed in _GLOBAL_V6 and not any(parsed in network for network in _SPECIAL_V6)
    ordinary = parsed.is_global and not (parsed.is_multicast or parsed.is_reserved)
    return ordinary and not any(parsed in network for network in _SPECIAL_V4)


class Fetcher:
    """Fetches linked media within the configured bounds."""

    def __init__(
        self,
        send: SendRequest,
        bounds: Fetch,
        resolve: Resolve = resolve_name,
        detours: EnvironmentProxies | None = None,
    ) -> None:
        self._send = send
        self._bounds = bounds
        self._resolve = resolve
        self._detours = detours  # the proxies that the environment names

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        """Raises RequestError, naming the host, for the first that cannot be had."""
        if len(urls) > MAX_LINKS:
            raise _refused(f"a request may link to at most {MAX_LINKS} images and documents that must be fetched")
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
        target = _parse(url)
        try:
            async with asyncio.timeout(self._bounds.timeout_s):
                return await self._follow(url, target)
        except TimeoutError:
            raise _unfetched(target, f"it took longer than {self._bounds.timeout_s:g} s") from None

    async def _follow(self, url: str, target: ParsedUrl) -> Inline:
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._ask(url, target)
            try:
                if answer.status not in _REDIRECTS:
                    return await self._read(answer, target)
                location = answer.headers.get(b"location") or b""
            finally:
                answer.close()
            url = urljoin(url, location.decode("latin-1"))
            target = _parse(url)
        raise _unfetched(target, f"it redirects more than {MAX_REDIRECTS} times")

    async def _ask(self, url: str, target: ParsedUrl) -> IncomingResponse:
        """The answer of the first of the host's addresses that can be reached."""
        failed: Exception | None = None
        for address in await self._addresses(target):
            dial = DialOptions(address=address, connect_timeout_s=CONNECT_TIMEOUT_S, environment_proxies=self._detours)
            try:
                out = OutgoingRequest("GET", url, HEADERS)
                return await self._send(out, dial, head_timeout_s=self._bounds.timeout_s)
            except (ConnectionLost, UpstreamTimeout) as fault:
                failed = fault
            except ValueError as fault:
                raise _unfetched(target, "the URL cannot be requested") from fault
        try:
            raise _unfetched(target, "it cannot be reached") from failed
        finally:
            del failed  # its traceback holds this frame

    async def _addresses(self, target: ParsedUrl) -> Sequence[str]:
        try:
            addresses = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as fault:
            raise _unfetched(target, "its name cannot be resolved") from fault
        if not addresses or not all(map(is_public, addresses)):
            raise _unfetched(target, "it is not on a public address")
        return addresses

    async def _read(self, answer: IncomingResponse, target: ParsedUrl) -> Inline:
        if answer.status != 200:
            raise _unfetched(target, f"it answered with status {answer.status}")
        kind = (answer.headers.get(b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")
        if not kind.startswith("image/") and kind != "application/pdf":
            raise _unfetched(target, "it is neither an image nor a PDF")
        try:
            data = await answer.read(self._bounds.max_bytes, self._bounds.timeout_s)
        except SizeLimitExceeded as fault:
            raise _unfetched(target, f"it is larger than {self._bounds.max_mb:g} MB") from fault
        except (ConnectionLost, UpstreamTimeout) as fault:
            raise _unfetched(target, "it broke off") from fault
        return Inline(kind, base64.b64encode(data).decode())


def _parse(url: str) -> ParsedUrl:
    try:
        return parse_url(url)
    except ValueError as fault:
        raise _refused(f"a link to an image or document cannot be followed: {fault}") from fault


def _unfetched(target: ParsedUrl, why: str) -> RequestError:
    return _refused(f"the image or document at {target.where} cannot be fetched: {why}")


def _refused(message: str) -> RequestError:
    return RequestError(Failure(Kind.BAD_REQUEST, message, code="media_not_fetched"))
