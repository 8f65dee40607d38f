"""The ledger tells each loss once, and as what it came to."""

from dragoman.hub.loss import LISTED, Ledger, LossKind


def told(ledger: Ledger) -> list[tuple[str, LossKind]]:
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
    assert told(ledger) == [("/a", LossKind.DROPPED), ("/b", LossKind.DROPPED)]


def test_a_thing_may_be_approximated_and_something_about_it_invented() -> None:
    ledger = Ledger()
    ledger.approximated("/a", "moved")
    ledger.invented("/a", "named")
    assert told(ledger) == [("/a", LossKind.APPROXIMATED), ("/a", LossKind.INVENTED)]


def test_losses_beyond_the_listed_ones_are_counted_each_once() -> None:
    ledger = Ledger()
    for _ in range(2):
        for number in range(LISTED + 50):
            ledger.dropped(f"/{number}", "unknown")
    ledger.approximated("/far", "nearly")
    twin = ledger.copy()
    twin.dropped("/far", "not after all")
    twin.approximated("/149", "dropped already")
    assert [loss.path for loss in ledger] == [f"/{number}" for number in range(LISTED)]
    assert (len(ledger), ledger.by_how()) == (LISTED + 51, (LISTED + 50, 1, 0))
    assert (len(twin), twin.by_how()) == (LISTED + 51, (LISTED + 51, 0, 0))


def test_a_path_of_any_length_is_told_in_short() -> None:
    ledger = Ledger()
    ledger.dropped("/" + "x" * 1_000_000, "unknown")
    assert [len(loss.path) for loss in ledger] == [1025]
