"""The ledger tells each loss once, and as what it came to."""

from dragoman.hub.loss import How, Ledger


def told(ledger: Ledger) -> list[tuple[str, How]]:
    return [(loss.path, loss.how) for loss in ledger]


def test_the_same_loss_is_told_once() -> None:
    ledger = Ledger()
    ledger.dropped("/a", "first")
    ledger.dropped("/a", "second")
    assert [loss.why for loss in ledger] == ["first"]


def test_what_is_dropped_is_not_approximated_as_well() -> None:
    ledger = Ledger()
    ledger.approximated("/a", "nearly")
    ledger.dropped("/a", "not after all")
    ledger.dropped("/b", "not at all")
    ledger.approximated("/b", "nearly")
    assert told(ledger) == [("/a", How.DROPPED), ("/b", How.DROPPED)]


def test_a_thing_may_be_approximated_and_something_about_it_invented() -> None:
    ledger = Ledger()
    ledger.approximated("/a", "moved")
    ledger.invented("/a", "named")
    assert told(ledger) == [("/a", How.APPROXIMATED), ("/a", How.INVENTED)]
