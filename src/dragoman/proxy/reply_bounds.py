"""How long to wait for an upstream's reply, and how much of it to read."""

from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.config.settings import ServerSettings
from dragoman.net.bodies import BodyBounds, BudgetShare, read_chunks
from dragoman.net.client import IncomingResponse
from dragoman.net.errors import BufferBudgetExceeded
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.provider import FirstTokenWait

if TYPE_CHECKING:
    from dragoman.proxy.call import Call

MAX_REPLY_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 1024 * 1024
ERROR_BODY_S = 30.0  # in all: an error is short, and a client waits for it
BUSY_S = 1.0  # when to try again where the gateway holds as many bytes as it may


class Timeouts(Struct, frozen=True):
    """The timeouts for one upstream, in seconds. Any byte of its reply is a sign of life."""

    first_token_s: float  # before the first token: between two signs of life
    token_s: float  # signs of life without any token, in all
    idle_s: float  # after the first token: between two signs of life


def timeouts_for(wait: FirstTokenWait, server: ServerSettings, *, is_later_round: bool = False) -> Timeouts:
    """Return a provider's timeouts: its own setting, else the server's, limited by its kind.

    In a later round of a reply, the first token came long ago.
    """
    first = wait.timeout_s
    if first is None:
        first = server.first_token_timeout_s if server.first_token_timeout_s < wait.limit_s else wait.limit_s
    if is_later_round:
        first = max(first, server.idle_timeout_s)
    return Timeouts(first, server.token_timeout_s, server.idle_timeout_s)


class ReplyDeadline:
    """When to give up on one request that was sent; times are those of the event loop's clock."""

    __slots__ = ("_name", "_token_deadline", "deadline", "has_token", "timeouts")

    def __init__(self, name: str, timeouts: Timeouts, now: float) -> None:
        self._name = name  # of the provider
        self.timeouts = timeouts
        self._token_deadline = now + timeouts.token_s
        self.has_token = False  # the model has answered, or the upstream has said that it is still working
        soon = now + timeouts.first_token_s
        self.deadline = soon if soon < self._token_deadline else self._token_deadline

    def extend(self, now: float, has_token: bool) -> None:
        """Note a sign of life."""
        self.has_token = has_token
        if has_token:
            self.deadline = now + self.timeouts.idle_s
        else:
            self.deadline = min(now + self.timeouts.first_token_s, self._token_deadline)

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the deadline; never 0, which some timers read as no limit."""
        left = self.deadline - now
        return left if left > 0.001 else 0.001

    def failure(self) -> Failure:
        """Return the failure for a client once the deadline has passed."""
        timeouts = self.timeouts
        if self.has_token:
            why = f"sent no data for {timeouts.idle_s:g} s; idle_timeout_s"
        elif self.deadline >= self._token_deadline:
            why = f"sent no token within {timeouts.token_s:g} s; token_timeout_s"
        else:
            why = f"sent no data for {timeouts.first_token_s:g} s before its first token; first_token_timeout_s"
        return Failure(Kind.TIMEOUT, f"Provider {self._name!r} {why} sets how long to wait.")


class IdleDeadline(ReplyDeadline):
    """The deadline of a reply whose tokens are not known: the longest time without data is the only limit."""

    __slots__ = ()

    def __init__(self, name: str, timeouts: Timeouts, now: float) -> None:
        super().__init__(name, timeouts, now)
        self.extend(now, has_token=True)

    def extend(self, now: float, has_token: bool) -> None:
        super().extend(now, has_token=True)


def read_reply(
    call: "Call", answer: IncomingResponse, silence_s: float, total_s: float, where: str
) -> Coroutine[object, object, bytes]:
    """Return the body of a whole reply, counted in what the request holds.

    Raises UpstreamTimeout, SizeLimitExceeded, ConnectionLost or RequestError.
    """
    bounds = BodyBounds(MAX_REPLY_BYTES, silence_s, total_s)
    return read_chunks(answer, bounds, where, partial(charge_bytes, call.buffered))


def read_error(answer: IncomingResponse, silence_s: float) -> Coroutine[object, object, bytes]:
    return read_chunks(answer, BodyBounds(MAX_ERROR_BYTES, silence_s, ERROR_BODY_S), "the upstream")


def charge_bytes(charge: BudgetShare, size: int) -> None:
    """Count bytes of a request or its reply; raises RequestError where there is no room for them."""
    try:
        charge.hold(size)
    except BufferBudgetExceeded:
        raise RequestError(no_room_failure()) from None


def no_room_failure() -> Failure:
    message = "The gateway buffers as many bytes as it may (server.max_buffered_mb). Retry in 1 s."
    return Failure(Kind.BUSY, message, retry_after=BUSY_S)
