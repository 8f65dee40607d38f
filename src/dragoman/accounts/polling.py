"""A device code that a person must confirm comes in; what its issuer gives once they have goes out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from dragoman.accounts.credential import Declined, Unusable
from dragoman.accounts.signing_in import LoginFailed
from dragoman.hub.failure import Kind

T = TypeVar("T")

DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
SLOW_DOWN_S = 5.0
LEAST_INTERVAL_S = 0.1
MAX_LIFE_S = 3600.0

ENDINGS = {
    "expired_token": "the code has expired before anyone confirmed it: start again",
    "access_denied": "the request was denied in the browser",
    "invalid_grant": "the code is not valid any more: start again",
}

Sleep = Callable[[float], Awaitable[None]]
Tick = Callable[[float], None]


class Waiting(Declined):
    """Nobody has confirmed it yet; `slower` and `interval_s` are what the issuer says of the pace."""

    def __init__(self, *, slower: bool = False, interval_s: float | None = None) -> None:
        super().__init__("slow_down" if slower else "authorization_pending")
        self.slower = slower
        self.interval_s = interval_s


class Pace(Struct, frozen=True):
    """How often may be asked, and for how long."""

    interval_s: float
    life_s: float
    sleep: Sleep = asyncio.sleep


async def poll(ask: Callable[[], Awaitable[T]], pace: Pace, tick: Tick) -> T:
    """Asks until the person has decided; `tick` is told how many seconds are left.

    `ask` raises Declined with the issuer's word, or Waiting where that word has more to say.
    """
    interval = max(pace.interval_s, LEAST_INTERVAL_S)
    left = min(pace.life_s, MAX_LIFE_S)
    while left > 0:
        tick(left)
        await pace.sleep(interval)
        left -= interval
        try:
            return await ask()
        except Declined as declined:
            interval = _next_interval(interval, declined)
        except Unusable as unheard:
            if unheard.kind is Kind.UPSTREAM:
                raise LoginFailed(str(unheard)) from unheard
    raise LoginFailed(ENDINGS["expired_token"])


def _next_interval(interval: float, declined: Declined) -> float:
    """How long to wait between questions from now on; LoginFailed where more of them are no use."""
    match declined:
        case Waiting(interval_s=float() as asked):
            return max(asked, interval)
        case Waiting(slower=slower):
            return interval + SLOW_DOWN_S if slower else interval
    match declined.code:
        case "authorization_pending" | "AuthorizationPendingException":
            return interval
        case "slow_down" | "SlowDownException":
            return interval + SLOW_DOWN_S
        case code:
            raise LoginFailed(ENDINGS.get(code, f"the sign-in was refused ({code})"))
