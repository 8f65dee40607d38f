"""Delay responses to wrong API keys, per address, and log them as one line per minute.

A key is always checked first, and a right one is served at once: people who share an address with an attacker, behind
one NAT or one reverse proxy, are not locked out. Only the address of the connection counts, no header.
"""

import asyncio
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

log = logging.getLogger(__name__)

FREE_FAILURES = 10  # of one address at once: a person who tries old keys notices nothing
INTERVAL_S = 0.2  # from then on, one failure in so many seconds
MAX_DELAY_S = 5.0  # of one answer
MAX_ADDRESSES = 4096
LOG_EVERY_S = 60.0
MAX_LOGGED_ADDRESSES = 1000


class AuthBackoff:
    """Counts the rejected requests of this process. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: OrderedDict[str, float] = OrderedDict()  # address -> when its next failure costs no wait
        self._rejected = 0
        self._addresses: set[str] = set()
        self._summary: asyncio.TimerHandle | None = None

    async def reject(self, address: str, path: str, *, had_key: bool) -> None:
        """Record a request without a valid key, and wait until its response may be sent."""
        source = _source_of(address)
        self._log(source, path)
        if had_key:
            delay_s = self.delay(source)
            if delay_s > 0:
                await asyncio.sleep(delay_s)

    def delay(self, source: str) -> float:
        """Record a wrong key, and return the delay of its response in seconds."""
        now = self._clock()
        free_s = FREE_FAILURES * INTERVAL_S
        due = min(max(self._due.pop(source, now), now) + INTERVAL_S, now + free_s + MAX_DELAY_S)
        self._due[source] = due
        if len(self._due) > MAX_ADDRESSES:
            self._due.popitem(last=False)
        return max(0.0, due - now - free_s)

    def close(self) -> None:
        """Log the requests that are counted but not logged yet."""
        if self._summary is not None:
            self._summary.cancel()
            self._summarise()
        if self._summary is not None:
            self._summary.cancel()

    def _log(self, source: str, path: str) -> None:
        if self._summary is None:
            log.info("%s: rejected a request from %s without a valid API key; further ones are counted", path, source)
            self._summary = asyncio.get_running_loop().call_later(LOG_EVERY_S, self._summarise)
            return
        self._rejected += 1
        if len(self._addresses) < MAX_LOGGED_ADDRESSES:
            self._addresses.add(source)

    def _summarise(self) -> None:
        """Log one line for all requests rejected since the last line; stop the timer if there were none."""
        self._summary = None
        if not self._rejected:
            return
        addresses = sorted(self._addresses)
        shown = ", ".join(addresses[:3]) + (f" and {len(addresses) - 3} more" if len(addresses) > 3 else "")
        log.warning("rejected %d more requests without a valid API key, from %s", self._rejected, shown)
        self._rejected = 0
        self._addresses.clear()
        self._summary = asyncio.get_running_loop().call_later(LOG_EVERY_S, self._summarise)


def _source_of(address: str) -> str:
    """Return what counts as one address: for IPv6 its /64 network, which one customer usually gets."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address or "a local socket"
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if not parsed.is_loopback else str(parsed)
