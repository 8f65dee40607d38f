"""One budget for all bodies that the process holds, requests and replies alike."""

from dragoman.net.refusals import Refused

FREE_BYTES = 64 * 1024  # of each request: what is small need not be counted


class BudgetSpent(Refused):
    """All requests together hold as many bytes as they may."""

    status = 503


class ByteBudget:
    """How many bytes may be held, and how many are."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Charge:
    """What one request holds of the budget."""

    __slots__ = ("_budget", "held")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.held = 0

    def hold(self, size: int) -> None:
        """Count so many bytes more; raises BudgetSpent, and counts none, where they do not fit."""
        held = self.held + size
        if held > FREE_BYTES:
            budget = self._budget
            more = held - max(self.held, FREE_BYTES)
            if budget.held + more > budget.limit:
                raise BudgetSpent(f"the gateway holds as many bytes as it may, {budget.limit}")
            budget.held += more
        self.held = held

    def release_to(self, held: int) -> None:
        """Count no more than so many bytes from now on."""
        if self.held > FREE_BYTES:
            self._budget.held -= self.held - max(held, FREE_BYTES)
        self.held = held
