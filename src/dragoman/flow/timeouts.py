"""How long to wait for an upstream: the three timeouts of the configuration as one decision, without I/O."""

from msgspec import Struct

from dragoman.config.settings import Server
from dragoman.hub.failure import Failure, Kind
from dragoman.providers.provider import FirstTokenWait


class Timeouts(Struct, frozen=True):
    """The timeouts for one upstream, in seconds. Any byte of its reply is a sign of life."""

    first_token_s: float  # before the first token: between two signs of life
    token_s: float  # signs of life without any token, in all
    idle_s: float  # after the first token: between two signs of life


def timeouts_for(wait: FirstTokenWait, server: Server, *, is_later_round: bool = False) -> Timeouts:
    """Return a provider's timeouts: its own setting, else the server's, limited by its kind.

    In a later round of a reply, the first token came long ago.
    """
    first = wait.timeout_s
    if first is None:
        first = min(server.first_token_timeout_s, wait.limit_s)
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
        self.deadline = min(now + timeouts.first_token_s, self._token_deadline)

    def extend(self, now: float, has_token: bool) -> None:
        """Note a sign of life."""
        self.has_token = has_token
        if has_token:
            self.deadline = now + self.timeouts.idle_s
        else:
            self.deadline = min(now + self.timeouts.first_token_s, self._token_deadline)

    def left(self, now: float) -> float:
        """Return the seconds until the deadline; never 0, which some timers read as no limit."""
        return max(0.001, self.deadline - now)

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
