"""How long an upstream may be silent: the three time-outs of the configuration as one pure decision."""

from msgspec import Struct

from dragoman.config.settings import Server
from dragoman.hub.failure import Failure, Kind
from dragoman.providers.provider import Provider


class Patience(Struct, frozen=True):
    """The time-outs, in seconds, that hold for one upstream. Any byte of its answer is a sign of life."""

    first_token_s: float  # before the first token: between two signs of life
    token_s: float  # signs of life without any token, in all
    idle_s: float  # after the first token: between two signs of life


def patience_with(provider: Provider, server: Server) -> Patience:
    """A provider's own time-out wins; else its kind may be more hurried than the server, never less."""
    first = provider.first_token_timeout_s
    if first is None:
        first = min(server.first_token_timeout_s, provider.first_token_limit_s)
    return Patience(first, server.token_timeout_s, server.idle_timeout_s)


class Wait:
    """When to give up on one request that was sent; times are those of the event loop's clock."""

    __slots__ = ("_patience", "_token_deadline", "deadline")

    def __init__(self, patience: Patience, now: float) -> None:
        self._patience = patience
        self._token_deadline = now + patience.token_s
        self.deadline = min(now + patience.first_token_s, self._token_deadline)

    def extend(self, now: float, has_token: bool) -> None:
        """A sign of life came; `has_token`: the model answers, or has said that it works in silence."""
        if has_token:
            self.deadline = now + self._patience.idle_s
        else:
            self.deadline = min(now + self._patience.first_token_s, self._token_deadline)

    def left(self, now: float) -> float:
        """Seconds until the deadline; never 0, which some timers take for none."""
        return max(0.001, self.deadline - now)

    def failure(self, name: str, has_token: bool) -> Failure:
        """What the client is told once the deadline has passed."""
        patience = self._patience
        if has_token:
            why = f"sent no data for {patience.idle_s:g} s; idle_timeout_s"
        elif self.deadline >= self._token_deadline:
            why = f"sent no token within {patience.token_s:g} s; token_timeout_s"
        else:
            why = f"sent no data for {patience.first_token_s:g} s before its first token; first_token_timeout_s"
        return Failure(Kind.TIMEOUT, f"Provider {name!r} {why} sets how long to wait.")
