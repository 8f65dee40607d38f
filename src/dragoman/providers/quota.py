"""How much of a plan is used: what a provider tells of its account."""

from msgspec import Struct


class Quota(Struct, frozen=True):
    provider: str
    plan: str
    what: str  # credits, requests, tokens
    used: float
    limit: float | None  # None: without one
    resets_on: str | None  # a date, with the time of day where it matters
