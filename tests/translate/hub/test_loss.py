"""The ledger lists each loss once, with its final kind."""

from dragoman.translate.hub.loss import LISTED, Ledger, LossKind


def list_losses(ledger: Ledger) -> list[tuple[str, LossKind]]:
    return [(loss.path, loss.how) for loss in ledger]


def test_the_same_loss_is_listed_once() -> None:
    ledger = Ledger()
    ledger.record_dropped("/a", "first")
    ledger.record_dropped("/a", "second")
    assert [loss.why for loss in ledger] == ["first"]


def test_what_is_dropped_is_not_approximated_as_well() -> None:
    ledger = Ledger()
    ledger.record_approximated("/a", "nearly")
    ledger.record_dropped("/a", "not after all")
    ledger.record_dropped("/b", "not at all")
    ledger.record_approximated("/b", "nearly")
    assert list_losses(ledger) == [("/a", LossKind.DROPPED), ("/b", LossKind.DROPPED)]


def test_a_thing_may_be_approximated_and_something_about_it_invented() -> None:
    ledger = Ledger()
    ledger.record_approximated("/a", "moved")
    ledger.record_invented("/a", "named")
    assert list_losses(ledger) == [("/a", LossKind.APPROXIMATED), ("/a", LossKind.INVENTED)]


def test_a_default_is_invented_and_what_becomes_of_it_is_no_further_loss() -> None:
    ledger = Ledger(lambda path: "/client" + path)
    ledger.record_default("/thinking", "default_thinking is 'low'")
    ledger.record_approximated("/thinking", "vendors differ")
    assert list_losses(ledger) == [("/client/thinking", LossKind.INVENTED)]
    copied = ledger.copy()
    copied.record_dropped("/thinking", "this model does not think")
    assert list_losses(copied) == []
    assert len(ledger) == 1


def test_losses_beyond_the_listed_ones_are_counted_each_once() -> None:
    ledger = Ledger()
    for _ in range(2):
        for number in range(LISTED + 50):
            ledger.record_dropped(f"/{number}", "unknown")
    ledger.record_approximated("/far", "nearly")
    twin = ledger.copy()
    twin.record_dropped("/far", "not after all")
    twin.record_approximated("/149", "dropped already")
    assert [loss.path for loss in ledger] == [f"/{number}" for number in range(LISTED)]
    assert (len(ledger), ledger.count_by_kind()) == (LISTED + 51, (LISTED + 50, 1, 0))
    assert (len(twin), twin.count_by_kind()) == (LISTED + 51, (LISTED + 51, 0, 0))


def test_a_long_path_is_shortened() -> None:
    ledger = Ledger()
    ledger.record_dropped("/" + "x" * 1_000_000, "unknown")
    assert [len(loss.path) for loss in ledger] == [1025]
