"""What all connections of a server share, and how a handler runs: a client always gets a response or a break."""

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Protocol

from dragoman.net.admission import Admission, Evictable
from dragoman.net.bodies import UNCOUNTED_BYTES, ByteBudget
from dragoman.net.errors import ClientDisconnected, RequestRejected
from dragoman.net.exchange import Exchange, Handler, ResponseState
from dragoman.net.headers import Header
from dragoman.net.limits import Limits
from dragoman.net.tasks import describe_fault, log_fault
from dragoman.net.write_batch import WriteBatch

RenderError = Callable[[str, int, str], tuple[list[Header], bytes]]

_log = logging.getLogger(__name__)


class Connection(Evictable, Protocol):
    """What a server needs of a connection."""

    def retire(self) -> None: ...
    def abort(self) -> None: ...


class Service:
    """What all connections of a server share."""

    def __init__(
        self, handler: Handler, limits: Limits, render_error: RenderError, budget: ByteBudget | None = None
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
        self.tasks: set[asyncio.Task[None]] = set()
        self.empty = asyncio.Event()  # set while draining, once the last connection and the last task have ended

    def begin(self, exchange: Exchange) -> asyncio.Task[None]:
        exchange.task = task = self._loop.create_task(self._serve(exchange))
        self.tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

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
        if self.draining and not self.connections and not self.tasks:
            self.empty.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        log_fault(task)
        self.signal_if_empty()

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self.handler(exchange)
            if exchange.reply is not ResponseState.ENDED and not exchange.gone:
                _log.error("handler returned without ending its reply")
                self._give_up(exchange, 500, "internal error")
        except asyncio.CancelledError:
            self._give_up(exchange, 503, "The gateway is shutting down. Send the request again.")
        except RequestRejected as refusal:
            self._give_up(exchange, refusal.status, refusal.message)
        except ClientDisconnected:
            exchange.abort()
        except Exception as fault:
            _log.error("handler failed: %s", describe_fault(fault))
            self._give_up(exchange, 500, "internal error")
        try:
            if exchange.buffered.held > UNCOUNTED_BYTES and not exchange.gone:
                await exchange.wait_writable()  # the response to a slow reader is still buffered
        except ClientDisconnected:
            return
        finally:
            exchange.buffered.release_to(0)

    def _give_up(self, exchange: Exchange, status: int, message: str) -> None:
        if exchange.gone or exchange.reply is ResponseState.ENDED:
            return
        if exchange.started:
            exchange.abort()
            return
        headers, body = self.render_error(exchange.path, status, message)
        exchange.respond(status, headers, body)
