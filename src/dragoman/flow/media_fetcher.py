"""Fetch the images and PDFs that a request links to, for upstreams that need them inline."""

import asyncio
import base64
from collections.abc import Sequence

from dragoman.config.proxies import EnvironmentProxies
from dragoman.config.settings import Fetch
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.request import Inline
from dragoman.hub.server_tools import ToolFailure
from dragoman.net.client import SendRequest
from dragoman.providers.section import USER_AGENT
from dragoman.tools.guarded_fetch import FetchRules, GuardedFetcher, Resolve, resolve_name

MAX_LINKS = 20  # of one request
AT_ONCE = 4
HEADERS = ((b"accept", b"image/*, application/pdf"), (b"user-agent", USER_AGENT.encode()))


class Fetcher:
    """Fetches linked media within the configured bounds."""

    def __init__(
        self,
        send: SendRequest,
        bounds: Fetch,
        resolve: Resolve = resolve_name,
        proxies: EnvironmentProxies | None = None,
    ) -> None:
        self._fetcher = GuardedFetcher(send, resolve, proxies)
        self._rules = FetchRules(HEADERS, bounds.max_bytes, bounds.timeout_s, _is_media, ports=None)

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
        return Inline(fetched.media_type, base64.b64encode(fetched.body).decode())


def _is_media(media_type: str) -> bool:
    return media_type.startswith("image/") or media_type == "application/pdf"


def _make_refusal(message: str) -> RequestError:
    return RequestError(Failure(Kind.BAD_REQUEST, message, code="media_not_fetched"))
