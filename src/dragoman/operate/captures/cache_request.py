"""Ask the running gateway why a prompt cache had less of a request; without one, read store and captures."""

from urllib.parse import quote

import msgspec

from dragoman.config.settings import Config
from dragoman.net.client import ConnectionLost, HttpClient, SizeLimitExceeded, UpstreamTimeout
from dragoman.operate import AdminError, NotFound
from dragoman.operate.captures.cache_why import CacheExplanation, explain_cache
from dragoman.operate.gateway.running_gateway import GatewayClient, GatewayRefused
from dragoman.operate.usage.reports import is_absent
from dragoman.store import open_store
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.framing.redaction import redact

Question = tuple[str, str | None]  # the request, and the one to compare it with


async def ask_why(
    config: Config, root: str | None, key: str | None, question: Question
) -> tuple[CacheExplanation, str]:
    """Return the answer, and why it is not the gateway's; empty if it is, or if none runs. Raises NotFound."""
    problem = ""
    if root is not None and key:
        try:
            return await _ask_gateway(root, key, question), ""
        except GatewayRefused as refused:
            if refused.status == 404:
                raise NotFound(str(refused)) from None
            problem = redact(str(refused))
        except (AdminError, ConnectionLost, UpstreamTimeout, SizeLimitExceeded, *JSON_ERRORS) as fault:
            problem = redact(str(fault))
    url, debug = config.store.url, config.debug
    if is_absent(url):
        return await explain_cache(None, debug, *question), problem
    async with await open_store(url) as store:
        return await explain_cache(store, debug, *question), problem


async def _ask_gateway(root: str, key: str, question: Question) -> CacheExplanation:
    which, against = question
    path = f"/api/v1/requests/{quote(which, safe='')}/cache"
    if against is not None:
        path += f"?against={quote(against, safe='')}"
    async with HttpClient() as http:
        return msgspec.json.decode(await GatewayClient(root, key, http).get(path), type=CacheExplanation)
