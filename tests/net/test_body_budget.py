"""The budget counts what all requests hold together, and gives it back."""

import pytest

from dragoman.net.bodies import UNCOUNTED_BYTES, BudgetShare, ByteBudget
from dragoman.net.errors import BufferBudgetExceeded


def test_what_is_small_is_not_counted() -> None:
    budget = ByteBudget(0)
    charge = BudgetShare(budget)
    charge.hold(UNCOUNTED_BYTES // 2)
    charge.hold(UNCOUNTED_BYTES // 2)
    assert budget.held == 0
    with pytest.raises(BufferBudgetExceeded):
        charge.hold(1)
    assert (charge.held, budget.held) == (UNCOUNTED_BYTES, 0)


@pytest.mark.parametrize("sizes", [[300_000], [1_000, 299_000], [65_000, 1_000, 234_000], [1] * 10], ids=str)
def test_everything_is_returned_to_the_budget(sizes: list[int]) -> None:
    budget = ByteBudget(1_000_000)
    charge = BudgetShare(budget)
    for size in sizes:
        charge.hold(size)
        assert budget.held == max(0, charge.held - UNCOUNTED_BYTES)
    charge.release_to(100)
    assert (charge.held, budget.held) == (100, 0)
    charge.hold(200_000)
    charge.release_to(150_000)
    assert budget.held == 150_000 - UNCOUNTED_BYTES
    charge.release_to(0)
    charge.release_to(0)
    assert budget.held == 0


def test_two_requests_share_a_budget() -> None:
    budget = ByteBudget(200_000)
    first, second = BudgetShare(budget), BudgetShare(budget)
    first.hold(200_000)
    with pytest.raises(BufferBudgetExceeded):
        second.hold(200_000)
    first.release_to(0)
    second.hold(200_000)
