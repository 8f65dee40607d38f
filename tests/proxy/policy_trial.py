"""A policy over one or two targets, driven by hand: each end of a turn is given, and waits are over at once."""

from dragoman.config.settings import Retry
from dragoman.proxy.between_turns import Then
from dragoman.proxy.policy import Policy, RetryLimits, SecondChances
from dragoman.proxy.step import Ask, GiveUp, NoReply, Step, TurnEnd, Wait
from dragoman.translate.hub.failure import Failure
from dragoman.upstreams.learned_quirks import LearnedQuirks
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.routing import Route
from narrowing import expect
from proxy.in_memory import NOW, make_pooled, make_provider, make_resting

ONE, TWO = Route("one", "m"), Route("two", "n")
MAX_STEPS = 50


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Trial:
    """A policy over one or two targets, whose clock advances by what the policy waits."""

    def __init__(
        self,
        *,
        targets: int = 1,
        credentials: int = 1,
        attempts: int = 3,
        continues: bool = False,
        first: Provider | None = None,
    ) -> None:
        self.clock = Clock()
        first = first or make_provider("one")
        first = make_resting(first, self.clock) if credentials == 1 else make_pooled(first, credentials, self.clock)
        self.providers = {"one": first, "two": make_resting(make_provider("two"), self.clock)}
        self.learnt = LearnedQuirks()
        self.policy = Policy(
            (ONE, TWO)[:targets],
            self.providers,
            RetryLimits(Retry(attempts=attempts), continues, lambda: 1.0),
            SecondChances(self.learnt, "t"),
            {"one": "t\0a conversation"},
        )
        self.requests: list[Ask] = []
        self.waits: list[float] = []

    def begin(self) -> Step:
        return self._record_step(self.policy.begin())

    def after(self, end: TurnEnd) -> Step:
        return self._record_step(self.policy.after(end))

    def after_step(self, then: Then) -> Step:
        return self._record_step(self.policy.after_step(then))

    def expect_ask(self, step: Step) -> Ask:
        return expect(Ask, step)

    def _record_step(self, step: Step) -> Step:
        """Note a step; a wait is over at once, by a clock that shows the time after it."""
        if isinstance(step, Wait):
            self.waits.append(step.seconds)
            self.clock.now += step.seconds
            return self._record_step(self.policy.after_step(Then.TRY_AGAIN))
        if isinstance(step, Ask):
            self.requests.append(step)
        return step

    def steps_until_given_up(self, failure: Failure) -> str:
        """Refuse every question with the same failure, and return the row of steps."""
        step, row, slots = self.begin(), "", list[int]()
        for _ in range(MAX_STEPS):
            if not isinstance(step, Ask):
                break
            row += self._letter(step, slots)
            waits = len(self.waits)
            step = self.after(NoReply(failure))
            row += "-" * (len(self.waits) - waits)
        assert isinstance(step, GiveUp)
        return row + "!"

    def _letter(self, ask: Ask, slots: list[int]) -> str:
        if ask.route == TWO:
            return "X"
        if ask.provider.account.slot not in slots:
            slots.append(ask.provider.account.slot)
        return "abc"[slots.index(ask.provider.account.slot)]
