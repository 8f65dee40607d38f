"""Headers of the ChatGPT backend come in; the account's windows and credits go out, and are kept."""

import re

from msgspec.structs import replace

from dragoman.net.headers import Headers
from dragoman.providers.limits import Credits, Limits, Window

_USED = re.compile(r"x-(?P<limit>.+)-(?P<which>primary|secondary)-used-percent")
_TRUE = frozenset({"true", "1"})


class Meter:
    """What the account was last said to have left."""

    def __init__(self) -> None:
        self.limits: Limits | None = None

    def see(self, headers: Headers, now: float) -> None:
        told = read_limits(headers, now)
        if told is not None:
            self.limits = replace(told, parked_until=self._parked(now))

    def park(self, until: float) -> None:
        """It has refused to answer before that moment."""
        self.limits = replace(self.limits or Limits(), parked_until=until)

    def _parked(self, now: float) -> float | None:
        until = self.limits.parked_until if self.limits else None
        return until if until is not None and until > now else None


def spent_until(headers: Headers, now: float) -> float | None:
    """When the account has an allowance again, where the headers say that it is used up and no credits step in."""
    told = read_limits(headers, now)
    if told is None or (told.credits is not None and (told.credits.has or told.credits.unlimited)):
        return None
    own = (told.windows[name] for name in ("primary", "secondary") if name in told.windows)
    full = [window.resets_at for window in own if window.used_percent >= 100 and window.resets_at is not None]
    return max((moment for moment in full if moment > now), default=None)


def read_limits(headers: Headers, now: float) -> Limits | None:
    """None where the answer says nothing of them. Other limits than Codex's own have names like `spark/primary`."""
    fields = {name.decode("latin-1"): value.decode("latin-1").strip() for name, value in headers}
    windows: dict[str, Window] = {}
    for name in fields:
        found = _USED.fullmatch(name)
        if found is None:
            continue
        window = _window(fields, name.removesuffix("used-percent"), now)
        if window is not None:
            own = found["limit"] == "codex"
            windows[found["which"] if own else f"{found['limit']}/{found['which']}"] = window
    credits = _credits(fields)
    plan = fields.get("x-codex-plan-type") or None
    if not windows and credits is None and plan is None:
        return None
    return Limits(windows, credits, plan)


def _window(fields: dict[str, str], prefix: str, now: float) -> Window | None:
    used = _number(fields.get(f"{prefix}used-percent"))
    minutes = _number(fields.get(f"{prefix}window-minutes"))
    resets_at = _number(fields.get(f"{prefix}reset-at"))
    after = _number(fields.get(f"{prefix}reset-after-seconds"))
    if resets_at is None and after:
        resets_at = now + after
    if not used and not minutes and resets_at is None:
        return None  # how the backend writes that there is none
    return Window(used or 0.0, resets_at)


def _credits(fields: dict[str, str]) -> Credits | None:
    if "x-codex-credits-has-credits" not in fields:
        return None
    return Credits(
        fields["x-codex-credits-has-credits"].lower() in _TRUE,
        fields.get("x-codex-credits-unlimited", "").lower() in _TRUE,
    )


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None
