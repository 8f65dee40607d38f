"""What all connections of a server share: which of them to keep, and how a handler runs.

When connections run short, those that have shown a valid key are kept first. A client always gets a response or a
break.
"""

import asyncio
import ipaddress
import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from dragoman.net.bodies import UNCOUNTED_BYTES, ByteBudget
from dragoman.net.errors import ClientDisconnected, RequestRejected, describe_fault
from dragoman.net.headers import Header
from dragoman.net.http_request import HttpRequest
from dragoman.net.limits import ConnectionLimits
from dragoman.net.sink import SinkPhase
from dragoman.net.socket_sink import Handler, SocketSink
from dragoman.net.write_batch import WriteBatch

# Share of all connections that may belong to clients that have not shown a valid key.
UNAUTHENTICATED_SHARE = 0.75
# Share of all connections that one address without a valid key may hold while connections are short.
ADDRESS_SHARE = 0.125
# The same of one key, beyond which its idle ones are closed.
KEY_SHARE = 0.25
LOG_EVERY_S = 60.0
CANCELLED_AT_ONCE = 10  # requests in a turn of the event loop, if very many clients leave together
_ENDED = SinkPhase.ENDED  # looked up once: on Python 3.11, each look-up of a member is slow
IPV6_NETWORK_BITS = 64  # what one customer of a provider usually gets

RenderError = Callable[[str, int, str], tuple[list[Header], bytes]]
ReceiveBytes = Callable[[bytes], None]

_log = logging.getLogger(__name__)


class Evictable(Protocol):
    """What admission needs of a connection."""

    @property
    def is_idle(self) -> bool: ...  # no request of it is being handled
    def evict(self) -> None: ...


class Admission:
    """The connections of a server, oldest first: those without a valid key in all and by address, others by key."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._addresses: dict[Evictable, str] = {}
        self._by_address: dict[str, dict[Evictable, None]] = {}
        self._keys: dict[Evictable, str] = {}
        self._by_key: dict[str, dict[Evictable, None]] = {}
        self._clock = clock
        self._logged_at = float("-inf")
        self._unlogged = 0

    def add(self, connection: Evictable, peer: str) -> None:
        address = network_of(peer)
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None

    def keep(self, connection: Evictable, key: str) -> None:
        """Note that a connection has shown this valid key."""
        self.discard(connection)
        self._keys[connection] = key
        self._by_key.setdefault(key, {})[connection] = None

    def discard(self, connection: Evictable) -> None:
        """Forget a connection because it is closed."""
        _remove(connection, self._addresses, self._by_address)
        _remove(connection, self._keys, self._by_key)

    def is_crowded(self, most: int) -> bool:
        """Whether clients without a key have more than their share of the connections that we take."""
        return len(self._addresses) > most * UNAUTHENTICATED_SHARE

    def make_room(self, newcomer: Evictable, most: int) -> bool:
        """Evict one idle connection without a key, of the newcomer's address if that has more than its share.

        If there is none, evict one of the key that has most of all, if that is more than its share.
        """
        neighbours = self._by_address[self._addresses[newcomer]]
        is_over_share = len(neighbours) > most * ADDRESS_SHARE
        candidates: Iterable[Evictable] = neighbours if is_over_share else self._addresses
        victim = next((one for one in candidates if one is not newcomer and one.is_idle), None)
        if victim is None:
            widest = max(self._by_key.values(), key=len, default={})
            crowd = widest if len(widest) > max(1.0, most * KEY_SHARE) else {}
            victim = next((one for one in crowd if one.is_idle), None)
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


def _remove(connection: Evictable, names: dict[Evictable, str], groups: dict[str, dict[Evictable, None]]) -> None:
    """Remove a connection from its group, and a group that has none left."""
    name = names.pop(connection, None)
    if name is None:
        return
    others = groups[name]
    del others[connection]
    if not others:
        del groups[name]


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


class Connection(Evictable, Protocol):
    """What a server needs of a connection."""

    def retire(self) -> None: ...
    def abort(self) -> None: ...


class ConnectionService:
    """What all connections of a server share."""

    def __init__(
        self, handler: Handler, limits: ConnectionLimits, render_error: RenderError, budget: ByteBudget | None = None
    ) -> None:
        self.handler = handler
        self.budget = budget or ByteBudget(sys.maxsize)
        self.limits = limits
        self.render_error = render_error
        self.draining = False
        self.is_stopping = False  # new requests are served, and their connections closed after the response
        self.last_admitted = float("-inf")  # by the event loop's clock
        self.outbox = WriteBatch()
        self.connections: set[Connection] = set()
        self._refused: set[Connection] = (
            set()
        )  # refused because there were too many; closed once their clients have the 503
        self.admission = Admission()
        self.highest_descriptor = sys.maxsize  # a higher one means that the process has almost none left
        self._loop = asyncio.get_running_loop()  # kept: each look-up of it is a system call
        self.requests: dict[SocketSink, HttpRequest] = {}  # that are being handled, by the sinks of their replies
        self._left: deque[asyncio.Task[None]] = deque()  # of clients that have left, until they are cancelled
        self._is_cancelling = False  # some were cancelled in this turn of the loop
        self.empty = asyncio.Event()  # set while draining, once the last connection and the last request have ended

    def begin(self, request: HttpRequest, sink: SocketSink) -> None:
        sink.task = self._loop.create_task(self._serve(request, sink))
        self.requests[sink] = request

    def cancel(self, sink: SocketSink) -> None:
        """Cancel the task of a request. One that has not started never runs, and so cannot end its request."""
        assert sink.task is not None
        sink.task.add_done_callback(lambda _: self._end(sink))
        self._left.append(sink.task)
        if not self._is_cancelling:
            self._cancel_left()

    def _cancel_left(self) -> None:
        """Cancel the tasks of some clients that have left, and of the others in later turns of the loop."""
        count = min(CANCELLED_AT_ONCE, len(self._left))
        for _ in range(count):
            self._left.popleft().cancel()
        self._is_cancelling = count > 0
        if count:
            self._loop.call_soon(self._cancel_left)

    def admit(self, connection: Connection, peer: str, descriptor: int) -> bool:
        """Add a connection; if there are too many, evict one without a valid key, or return False."""
        most = self.limits.max_connections
        self.last_admitted = self._loop.time()
        self.connections.add(connection)
        self.admission.add(connection, peer)
        is_full = descriptor > self.highest_descriptor or len(self.connections) - len(self._refused) > most
        if not is_full and not self.admission.is_crowded(most):
            return True
        self.admission.log_shortage(f"too many connections: those without a valid key are closed first (limit {most})")
        if self.admission.make_room(connection, most) or not is_full:
            return True
        self.admission.discard(connection)
        self._refused.add(connection)
        return False

    def connection_lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._refused.discard(connection)
        self.admission.discard(connection)
        self.signal_if_empty()

    def signal_if_empty(self) -> None:
        if self.draining and not self.connections and not self.requests:
            self.empty.set()

    async def _serve(self, request: HttpRequest, sink: SocketSink) -> None:
        try:
            try:
                await self.handler(request, sink)
                if sink.phase < _ENDED and not sink.reader_gone:
                    _log.error("handler returned without ending its reply")
                    self._give_up(request, sink, 500, "internal error")
            except (asyncio.CancelledError, Exception) as fault:
                self._end_failed(request, sink, fault)
            if request.buffered.held > UNCOUNTED_BYTES and not sink.reader_gone:
                await sink.wait_writable()  # the response to a slow reader is still buffered
        except ClientDisconnected:
            return
        except Exception as fault:
            _log.error("a request was not ended: %s", describe_fault(fault))
        finally:
            self._end(sink)

    def _end(self, sink: SocketSink) -> None:
        request = self.requests.pop(sink, None)
        if request is not None:
            request.buffered.release_to(0)
        if self.draining:
            self.signal_if_empty()

    def _end_failed(self, request: HttpRequest, sink: SocketSink, fault: BaseException) -> None:
        """End a request whose handler has failed."""
        match fault:
            case asyncio.CancelledError():
                self._give_up(request, sink, 503, "The gateway is shutting down. Send the request again.")
            case RequestRejected(status=status, message=message):
                self._give_up(request, sink, status, message)
            case ClientDisconnected():
                sink.abort()
            case _:
                _log.error("handler failed: %s", describe_fault(fault))
                self._give_up(request, sink, 500, "internal error")

    def _give_up(self, request: HttpRequest, sink: SocketSink, status: int, message: str) -> None:
        if sink.reader_gone or sink.phase >= SinkPhase.ENDED:
            return
        if sink.phase is SinkPhase.SENT:
            sink.abort()
            return
        headers, body = self.render_error(request.path, status, message)
        sink.respond(status, headers, body)


class UpgradedConnection(asyncio.Protocol):
    """A connection whose protocol has changed: what arrives goes to its new reader.

    `connection` still writes, and notices the end.
    """

    def __init__(self, connection: asyncio.Protocol, receive: ReceiveBytes) -> None:
        self._connection = connection
        self._receive = receive

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
