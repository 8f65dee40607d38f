"""How many dollars a request reserves: what such requests have cost lately, or its worst case."""

from math import ceil

from msgspec import Struct

from dragoman.store.meter import MAX_AMOUNT

MIN_RESERVED = 10_000_000  # nanodollars: $0.01
FACTOR = 3
WEIGHT = 0.05  # of the newest cost in the average
DEFAULT_OUTPUT = 4_096  # tokens, of requests without history
MAX_OUTPUT = 128_000  # tokens, where neither request, key nor model says how many there may be
MAX_HISTORIES = 10_000


class RequestSize(Struct, frozen=True):
    """What a request may use of one target; prices are nanodollars for one token."""

    input_tokens: int
    input_price: float  # of fresh input
    cache_write_price: float  # the most expensive
    output_price: float
    request_price: int = 0  # nanodollars for the request itself
    max_tokens: int | None = None  # of the request, else the key's ceiling, else the model's maximum


class CostHistory:
    """What requests have cost, averaged by key and model; of many, those that were used last are kept."""

    def __init__(self, most: int = MAX_HISTORIES) -> None:
        self._most = most
        self._average: dict[tuple[str, str], float] = {}  # the one that was used last comes last

    def record(self, key: str, model: str, cost_nano: int) -> None:
        """Add a request's cost."""
        average = self._average.pop((key, model), None)
        if average is None and len(self._average) >= self._most:
            del self._average[next(iter(self._average))]
        self._average[key, model] = cost_nano if average is None else average + WEIGHT * (cost_nano - average)

    def estimate(self, key: str, model: str, size: RequestSize) -> int:
        """Return what to reserve, in nanodollars."""
        average = self._average.get((key, model))
        if average is not None:
            return _cut(max(MIN_RESERVED, FACTOR * average))
        output = size.output_price * DEFAULT_OUTPUT
        return _cut(size.input_tokens * size.input_price + output + size.request_price)


def find_worst_case(size: RequestSize) -> int:
    """Return the most that a request can cost, in nanodollars: for `strict`."""
    output = MAX_OUTPUT if size.max_tokens is None else size.max_tokens
    highest_price = max(size.input_price, size.cache_write_price)
    return _cut(size.input_tokens * highest_price + output * size.output_price + size.request_price)


def _cut(amount: float) -> int:
    return min(ceil(amount), MAX_AMOUNT)
