"""The budget counts what all requests hold together, and gives it back."""

import pytest

from dragoman.net.bodies import FREE_BYTES, ByteBudget, Charge
from dragoman.net.errors import BudgetSpent


def test_what_is_small_is_not_counted() -> None:
    budget = ByteBudget(0)
    charge = Charge(budget)
    charge.hold(FREE_BYTES // 2)
    charge.hold(FREE_BYTES // 2)
    assert budget.held == 0
    with pytest.raises(BudgetSpent):
        charge.hold(1)
    assert (charge.held, budget.held) == (FREE_BYTES, 0)


@pytest.mark.parametrize("sizes", [[300_000], [1_000, 299_000], [65_000, 1_000, 234_000], [1] * 10], ids=str)
def test_everything_is_given_back(sizes: list[int]) -> None:
    budget = ByteBudget(1_000_000)
    charge = Charge(budget)
    for size in sizes:
        charge.hold(size)
        assert budget.held == max(0, charge.held - FREE_BYTES)
    charge.release_to(100)
    assert (charge.held, budget.held) == (100, 0)
    charge.hold(200_000)
    charge.release_to(150_000)
    assert budget.held == 150_000 - FREE_BYTES
    charge.release_to(0)
    charge.release_to(0)
    assert budget.held == 0


def test_two_requests_share_it() -> None:
    budget = ByteBudget(200_000)
    first, second = Charge(budget), Charge(budget)
    first.hold(200_000)
    with pytest.raises(BudgetSpent):
        second.hold(200_000)
    first.release_to(0)
    second.hold(200_000)
