"""Which connections to keep when they run short: those that have shown a valid key come first."""

import ipaddress
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

_log = logging.getLogger(__name__)

# Of all connections, at most so many may belong to clients that have not shown a valid key.
UNAUTHENTICATED_SHARE = 0.75
# Of all connections, an address whose clients have not shown a valid key may hold so many once they run short.
ADDRESS_SHARE = 0.125
LOG_EVERY_S = 60.0
IPV6_NETWORK_BITS = 64  # what one customer of a provider usually gets


class Evictable(Protocol):
    """What admission needs of a connection."""

    @property
    def is_idle(self) -> bool: ...  # no request of it is being handled
    def evict(self) -> None: ...


class Admission:
    """The connections of a server that have not shown a valid key, oldest first, in all and by address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._addresses: dict[Evictable, str] = {}
        self._by_address: dict[str, dict[Evictable, None]] = {}
        self._clock = clock
        self._logged_at = float("-inf")
        self._unlogged = 0

    @property
    def unauthenticated(self) -> int:
        return len(self._addresses)

    def add(self, connection: Evictable, peer: str) -> None:
        address = network_of(peer)
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None

    def discard(self, connection: Evictable) -> None:
        """Forget a connection because it is closed, or because it has shown a valid key."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        others = self._by_address[address]
        del others[connection]
        if not others:
            del self._by_address[address]

    def is_crowded(self, most: int) -> bool:
        """Whether clients without a key have more than their share of the connections that we take."""
        return len(self._addresses) > most * UNAUTHENTICATED_SHARE

    def make_room(self, newcomer: Evictable, most: int) -> bool:
        """Evict one idle connection without a key, of the newcomer's address if that has more than its share."""
        neighbours = self._by_address[self._addresses[newcomer]]
        is_over_share = len(neighbours) > most * ADDRESS_SHARE
        candidates: Iterable[Evictable] = neighbours if is_over_share else self._addresses
        victim = next((one for one in candidates if one is not newcomer and one.is_idle), None)
        if victim is None:
            return False
        self.discard(victim)
        victim.evict()
        return True

    def evict_oldest(self, count: int) -> None:
        """Evict up to `count` idle connections without a key, the oldest first."""
        idle = (connection for connection in self._addresses if connection.is_idle)
        for victim in tuple(itertools.islice(idle, count)):
            self.discard(victim)
            victim.evict()

    def log_shortage(self, what: str) -> None:
        """Log a shortage of connections at most once a minute, with how often it came up since."""
        now = self._clock()
        self._unlogged += 1
        if now - self._logged_at < LOG_EVERY_S:
            return
        _log.warning("%s (%d connections since the last such line)", what, self._unlogged)
        self._logged_at, self._unlogged = now, 0


def network_of(peer: str) -> str:
    """Return the address, or for IPv6 the network, that a share is counted for."""
    if ":" not in peer:
        return peer
    try:
        address = ipaddress.IPv6Address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, IPV6_NETWORK_BITS), strict=False).network_address)
