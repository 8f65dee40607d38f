"""An account's allowance as its provider tells it: windows, when they start anew, and credits beside them."""

from msgspec import Struct


class Window(Struct, frozen=True):
    """A share of an allowance that is used up, and when it starts anew."""

    used_percent: float
    resets_at: float | None = None  # seconds since the epoch
    unlimited: bool = False


class Credits(Struct, frozen=True):
    has: bool
    unlimited: bool


class Limits(Struct, frozen=True):
    windows: dict[str, Window] = {}  # by the provider's own names
    credits: Credits | None = None
    plan: str | None = None
    parked_until: float | None = None  # it has refused an answer until then
