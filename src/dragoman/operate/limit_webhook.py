"""Tell a URL of the configuration that most of a limit is spent."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dragoman.config.problems import ConfigError
from dragoman.net.client import ConnectionLost, HttpClient, OutgoingRequest, UpstreamTimeout
from dragoman.net.headers import JSON
from dragoman.tenancy.limit_watch import LimitWarning
from dragoman.upstreams.section import USER_AGENT

TRIES = 3
TIMEOUT_S = 5.0
PAUSE_S = 1.0  # before the second try; twice as long before the third

log = logging.getLogger(__name__)


class LimitWebhook:
    """Posts warnings as JSON. Redirects are not followed.

    `find_url` returns None where there is no webhook, and raises ConfigError where its URL cannot be read.
    """

    def __init__(self, client: HttpClient, find_url: Callable[[], str | None], pause_s: float = PAUSE_S) -> None:
        self._client = client
        self._find_url = find_url
        self._pause_s = pause_s

    async def __call__(self, warning: LimitWarning) -> None:
        try:
            url = self._find_url()
        except ConfigError as error:
            log.warning("the warning at %d %% is not sent: %s", warning.percent, error)
            return
        if not url:
            return
        problem = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(self._pause_s * number)
            problem = await self._post(url, msgspec.json.encode(warning))
            if not problem:
                return
        log.warning("limits.webhook did not accept the warning at %d %%: %s", warning.percent, problem)

    async def _post(self, url: str, body: bytes) -> str:
        """Return why the warning was not taken; empty if it was."""
        request = OutgoingRequest("POST", url, (JSON, (b"user-agent", USER_AGENT.encode())), body)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await self._client.send(request, head_timeout_s=TIMEOUT_S)
                answer.close()
        except (ConnectionLost, UpstreamTimeout, TimeoutError, ValueError) as fault:
            return f"{type(fault).__name__}: {fault}" if str(fault) else "no answer in time"
        return "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
