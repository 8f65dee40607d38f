"""The operations of a meter and their results: it counts what requests take of limits, while they run and afterwards.

A request under limits has a lease. `Admit` takes everything that its limits count (a request, a slot, tokens, dollars)
or nothing; `Correct` raises what is reserved; `Settle` ends the lease with what was really spent; `RowsWritten` follows
once the usage row is stored. Each may be sent again: a lease's id makes them idempotent.

All amounts are whole numbers: dollars in nanodollars, credits in nano-credits, tokens, requests. Counters are named
`SCOPE:UNIT:WINDOW`, rates and slots `SCOPE:LIMIT` (tenancy/windows.py).
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.store.usage_rows import UsageRow

MAX_AMOUNT = 2**63 - 1  # of a limit or a counter
NANO = 10**9


class HoldKind(IntEnum):
    """How a limit is counted."""

    RATE = 0  # a bucket of one minute: `limit` at once, and as much again in a minute
    SLOT = 1  # as many leases as `limit` at the same time
    WINDOW = 2  # spent and reserved in a window
    CHECK = 3  # spent in a window; nothing is reserved


class Hold(Struct, frozen=True, array_like=True, gc=False):
    """What one limit takes of a request."""

    counter: str
    kind: HoldKind
    limit: int
    amount: int
    is_strict: bool = False  # not even the only request in flight may exceed the limit


class Admit(Struct, frozen=True, array_like=True, tag="a", gc=False):
    """Take all holds for a lease, or none. They are checked in their order: rate, concurrency, tokens, spend."""

    lease: str
    process: str
    holds: tuple[Hold, ...]
    scopes: tuple[str, ...] = ()
    began_ms: int = 0  # since the epoch
    charge: bytes = b""  # the usage row if the process dies (`encode_charge`); empty: nothing is charged then


class Change(Struct, frozen=True, array_like=True, tag="h", gc=False):
    """Give back what a running lease has of some counters, and take more holds; all of it, or nothing.

    For another target (`drops` are the counters of its provider before), and for a further turn under `strict`: amounts
    of counters that the lease has already are added.
    """

    lease: str
    drops: tuple[str, ...]
    holds: tuple[Hold, ...]


class Correct(Struct, frozen=True, array_like=True, tag="c", gc=False):
    """Raise what a running lease reserves of some counters to these amounts; never refused, and never lowers any."""

    lease: str
    amounts: Mapping[str, int]


class Settle(Struct, frozen=True, array_like=True, tag="s", gc=False):
    """End a lease: free its slots, forget what it reserved, and count what was spent.

    `amounts` names what was spent per counter, of limits that the lease does not hold too, and what was taken of rates.
    Rates that it does not name keep what the admission took, all others are given back. A lease that is unknown is
    never admitted afterwards, and nothing is counted for it.
    """

    lease: str
    amounts: Mapping[str, int]
    charge: bytes = b""  # the usage row (`encode_charge`); empty: that of the admission


class RowsWritten(Struct, frozen=True, array_like=True, tag="w", gc=False):
    """The usage rows of these leases are in the store."""

    leases: tuple[str, ...]


class Beat(Struct, frozen=True, array_like=True, tag="b"):
    """A process is alive; with `leases` it names all that it has which are not written."""

    process: str
    leases: tuple[str, ...] | None = None


class Announce(Struct, frozen=True, array_like=True, tag="n"):
    """Leases of a process that are not written, for a meter that may have lost them."""

    process: str
    running: tuple[Admit, ...]
    settled: tuple[tuple[Admit, Settle], ...]


Operation = Admit | Change | Correct | Settle | RowsWritten | Beat | Announce


class Admitted(Struct, frozen=True, array_like=True, tag="y", gc=False):
    """Everything was taken. `remaining` says what is left of each hold's limit, in their order; negative: a debt."""

    remaining: tuple[int, ...] = ()


class Refused(Struct, frozen=True, array_like=True, tag="r", gc=False):
    """Nothing was taken. `hold` is the index of the first hold that has no room."""

    hold: int
    spent: int = 0
    reserved: int = 0
    wait_ms: int = 0  # of rates and slots: until there may be room
    is_spent: bool = False  # the limit is used up, or is 0: waiting does not help in this window
    waits: bool = False  # only reservations of other requests are in the way: there may be room when they end


class Acknowledged(Struct, frozen=True, array_like=True, tag="d", gc=False):
    """It is done, or was done before."""


class Gone(Struct, frozen=True, array_like=True, tag="g", gc=False):
    """The meter has no such lease, or ended it: the process was silent for too long, or the lease was settled.

    In answer to `Beat`: the process was collected, and must take a new id.
    """


class Unavailable(Struct, frozen=True, array_like=True, tag="u", gc=False):
    """The meter did not answer in time, or does not know yet what was spent.

    An `Admit` may still be executed: undo it with a `Settle` of nothing.
    """

    reason: str


class Missing(Struct, frozen=True, array_like=True, tag="m"):
    """Nothing was done: it is not known yet what was spent of these counters. Meters answer `Unavailable` then."""

    counters: tuple[str, ...]


Result = Admitted | Refused | Acknowledged | Gone | Unavailable
ACKNOWLEDGED, GONE = Acknowledged(), Gone()


class Level(Struct, frozen=True, array_like=True, gc=False):
    """How a counter stands. Of a rate, `spent` is what was taken and has not come back yet."""

    counter: str
    spent: int = 0
    reserved: int = 0
    running: int = 0  # leases that hold it


class Meter(Protocol):
    """Counts what requests take of limits. It never raises: what it cannot answer in time is `Unavailable`."""

    @property
    def process(self) -> str:
        """The id of this process, for `Admit`; another one after it was collected."""

    @property
    def keeps_charges(self) -> bool:
        """Whether `charge` has a use: others can write the rows of a process that dies."""

    async def apply(self, operations: Sequence[Operation]) -> Sequence[Result]:
        """Apply operations in their order, and return their results within about two seconds."""

    def post(self, operation: Operation) -> None:
        """Apply an operation whose result is not needed, without waiting; it is repeated until it is acknowledged.

        For `Correct`, `Settle` and `RowsWritten`.
        """

    async def read(self, counters: Sequence[str]) -> Sequence[Level]:
        """Return how counters stand; empty if the meter does not answer."""


_charges = msgspec.msgpack.Encoder()
_read_charge = msgspec.msgpack.Decoder(UsageRow)


def encode_charge(row: UsageRow) -> bytes:
    """Return a usage row as leases carry it."""
    return _charges.encode(row)


def decode_charge(charge: bytes) -> UsageRow:
    """Return the usage row that a lease carries. Raises msgspec.DecodeError."""
    return _read_charge.decode(charge)


def find_amount(row: UsageRow, unit: str) -> int:
    """Return what a row adds to a counter of this unit.

    Tokens are output, and input that was not read from a cache.
    """
    match unit:
        case "usd":
            return row.cost_nano_usd or 0
        case "credits":
            return round((row.credits or 0.0) * NANO)
        case _:
            return (row.input_tokens or 0) - (row.cache_read_tokens or 0) + (row.output_tokens or 0)


def interrupt(row: UsageRow, cost_nano: int | None) -> UsageRow:
    """Return the row of a request whose process is gone; its cost is this, if that is known."""
    cost = row.cost_nano_usd if cost_nano is None else cost_nano
    return replace(row, outcome="interrupted", usage_source="estimated", cost_nano_usd=cost)


def has_row(settle: Settle) -> bool:
    """Whether a meter keeps a settled lease until its row is written: not if nothing was spent, as of an undone one."""
    return bool(settle.charge) or any(settle.amounts.values())


def charge_lease(admit: Admit, holds: Sequence[Hold]) -> Settle:
    """Return how a running lease is settled whose process is gone: at what it reserved."""
    row = _read_row(admit.lease, admit.charge)
    if row is None:
        return Settle(admit.lease, {})
    reserved = [hold.amount for hold in holds if hold.kind == HoldKind.WINDOW and find_unit(hold.counter) == "usd"]
    row = interrupt(row, max(reserved, default=None))
    counted = [hold.counter for hold in holds if hold.kind in (HoldKind.WINDOW, HoldKind.CHECK)]
    amounts = {counter: find_amount(row, find_unit(counter)) for counter in counted}
    return Settle(admit.lease, amounts, encode_charge(row))


def make_lost_row(admit: Admit, settle: Settle) -> UsageRow | None:
    """Return the row of a settled lease whose process is gone; None if it carries none."""
    if settle.charge:
        return _read_row(admit.lease, settle.charge)
    row = _read_row(admit.lease, admit.charge)
    spent = [amount for counter, amount in settle.amounts.items() if find_unit(counter) == "usd"]
    return None if row is None else interrupt(row, max(spent, default=None))


def find_unit(counter: str) -> str:
    """Return the unit of a window's counter."""
    return counter.rsplit(":", 2)[1]


def _read_row(lease: str, charge: bytes) -> UsageRow | None:
    try:
        return replace(decode_charge(charge), lease=lease) if charge else None
    except msgspec.DecodeError:
        return None
