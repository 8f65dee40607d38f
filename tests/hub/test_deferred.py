"""Functions that are imported when they are first called."""

from collections.abc import Callable

from msgspec import Struct

from dragoman.hub.deferred import Deferred, replace_when_called
from dragoman.hub.loss import Ledger
from dragoman.protocols import PROTOCOLS
from dragoman.protocols.chat.parse import parse


class Inner(Struct, frozen=True):
    double: Callable[[int], int]


class Outer(Struct, frozen=True):
    double: Callable[[int], int]
    inner: Inner


def double(number: int) -> int:
    return number * 2


def test_the_first_call_puts_the_function_into_every_record_that_holds_it() -> None:
    loads: list[str] = []

    @Deferred
    def deferred() -> Callable[[int], int]:
        loads.append("loaded")
        return double

    record = Outer(deferred, Inner(deferred))
    replace_when_called(record)
    assert loads == []
    assert record.inner.double(2) == 4
    assert (record.double, record.inner.double) == (double, double)
    assert loads == ["loaded"]


def test_a_copy_made_before_the_first_call_still_works() -> None:
    deferred: Deferred[[int], int] = Deferred(lambda: double)
    record = Inner(deferred)
    replace_when_called(record)
    assert record.double(1) == deferred(1) == 2


def test_a_request_replaces_what_it_uses_in_the_records_of_its_protocol() -> None:
    client = PROTOCOLS["chat"].client
    assert client is not None
    client.parse(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', Ledger())
    assert client.parse is parse
