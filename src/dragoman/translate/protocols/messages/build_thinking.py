"""Choose `thinking` and the effort for a model from what the client requests."""

from itertools import dropwhile, takewhile

from msgspec import Struct

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import can_send_to
from dragoman.translate.hub.profile import DEFAULT_EFFORT, Profile, Target, effort_for_budget
from dragoman.translate.hub.request import Request, Role, Switch, Thinking, ToolCall, ToolResult, Turn
from dragoman.translate.protocols.messages.wire import EFFORTS, MIN_BUDGET, NAME, Wire

_ANSWER_TOKENS = 1024  # left for the answer, if max_tokens allows
_DISPLAYS = ("summarized", "omitted", "updates")


class ThinkingPlan(Struct, frozen=True):
    """What to send, and whether the model will think."""

    thinking: Wire | None = None
    effort: str | None = None
    on: bool = False


def plan_thinking(request: Request, target: Target, max_tokens: int, ledger: Ledger) -> ThinkingPlan:
    if request.reasoning is None:
        return ThinkingPlan(on=target.profile.thinking_default)
    return _Planner(request, target, max_tokens, ledger).plan()


class _Planner:
    __slots__ = (
        "_accepted",
        "_budgets",
        "_efforts",
        "_lacks_thinking",
        "_ledger",
        "_max_tokens",
        "_profile",
        "_reasoning",
        "_same_protocol",
    )

    def __init__(self, request: Request, target: Target, max_tokens: int, ledger: Ledger) -> None:
        assert request.reasoning is not None
        self._reasoning = request.reasoning
        self._lacks_thinking = _lacks_thinking_before_calls(request, target.issuer)
        self._profile: Profile = target.profile
        self._budgets = target.budgets
        self._max_tokens = max_tokens
        self._same_protocol = request.protocol == NAME
        self._ledger = ledger
        self._accepted = target.profile.thinking
        self._efforts = tuple(effort for effort in EFFORTS if effort in target.profile.efforts)

    def plan(self) -> ThinkingPlan:
        reasoning = self._reasoning
        if reasoning.effort is not None and not self._same_protocol:
            self._ledger.record_approximated(reasoning.at, "vendors scale efforts differently")
        match reasoning.switch:
            case Switch.DISABLED:
                return self._plan_off(reasoning.switch_at, "disabled")
            case Switch.BETWEEN_TOOLS:
                return self._plan_off(reasoning.switch_at, "between_tools")
            case Switch.ENABLED:
                return self._plan_enabled()
            case Switch.ADAPTIVE:
                return self._plan_adaptive(reasoning.switch_at)
        if reasoning.effort == "none":
            return self._plan_off(reasoning.at, "disabled")
        if reasoning.show is not None and reasoning.show != "omitted":
            return self._plan_adaptive(reasoning.show_at)
        return self._plan_by_effort()

    def _plan_off(self, at: str, requested: str) -> ThinkingPlan:
        profile = self._profile
        off = requested if requested in self._accepted else profile.thinking_off
        if off is None:
            self._ledger.record_approximated(at, "this model always thinks; the lowest effort is requested")
            return ThinkingPlan(None, self._choose_effort() or self._clamp_effort("low"), on=True)
        if off != requested:
            self._ledger.record_approximated(at, f"this model has {off!r} instead of {requested!r}")
        thinking: Wire | None = {"type": off} if off in self._accepted else None
        return ThinkingPlan(thinking, self._choose_effort(profile.effort_cap_when_off), on=False)

    def _plan_enabled(self) -> ThinkingPlan:
        """Plan thinking with a budget; models without budgets get a similar effort."""
        reasoning = self._reasoning
        if "enabled" in self._accepted:
            if reasoning.budget:
                return self._plan_budget(reasoning.budget, reasoning.budget_at)
            return self._plan_budget(self._choose_budget(), reasoning.switch_at)
        if "adaptive" not in self._accepted:
            self._ledger.record_dropped(reasoning.switch_at, "this model does not think")
            return ThinkingPlan(effort=self._choose_effort())
        at = reasoning.budget_at if reasoning.budget else reasoning.switch_at
        self._ledger.record_approximated(at, "this model takes an effort, not a budget")
        effort = self._choose_effort() if reasoning.effort else self._clamp_effort(effort_for_budget(reasoning.budget))
        return ThinkingPlan(self._add_display({"type": "adaptive"}), effort, on=True)

    def _plan_adaptive(self, at: str) -> ThinkingPlan:
        """Plan adaptive thinking; older models get a budget."""
        reasoning = self._reasoning
        if "adaptive" in self._accepted:
            if not self._same_protocol:
                self._ledger.record_approximated(at, "thinking is shown as a summary")
            return ThinkingPlan(self._add_display({"type": "adaptive"}), self._choose_effort(), on=True)
        if "enabled" not in self._accepted:
            self._ledger.record_dropped(at, "this model does not think")
            return ThinkingPlan(effort=self._choose_effort())
        if reasoning.effort is None and reasoning.switch is None:  # only `display` is set
            self._ledger.record_dropped(at, "this model thinks only if thinking is enabled")
            return ThinkingPlan()
        self._ledger.record_approximated(at, "this model thinks with a budget")
        return self._plan_budget(self._choose_budget(), at)

    def _plan_by_effort(self) -> ThinkingPlan:
        """Plan an effort alone: if the model has efforts, it does not switch thinking on."""
        reasoning = self._reasoning
        if self._efforts:
            return ThinkingPlan(None, self._choose_effort(), on=self._profile.thinking_default)
        if reasoning.effort is None:
            return ThinkingPlan(on=self._profile.thinking_default)
        if "enabled" not in self._accepted:
            self._ledger.record_dropped(reasoning.at, "this model has neither efforts nor thinking")
            return ThinkingPlan(on=self._profile.thinking_default)
        return self._plan_budget(self._choose_budget(), reasoning.at)

    def _choose_budget(self) -> int:
        """Return the budget for an effort, with room for an answer; unknown efforts get the usual budget."""
        usual = self._budgets.get(DEFAULT_EFFORT, MIN_BUDGET)
        worth = self._budgets.get(self._reasoning.effort or DEFAULT_EFFORT, usual)
        return min(worth, max(MIN_BUDGET, self._max_tokens - min(_ANSWER_TOKENS, self._max_tokens // 4)))

    def _plan_budget(self, budget: int, at: str) -> ThinkingPlan:
        if self._lacks_thinking:
            why = "a thinking budget needs the thinking before the last calls, which the client did not send"
            self._ledger.record_dropped(at, why)
            if self._reasoning.show is not None and not self._same_protocol:
                self._ledger.record_dropped(self._reasoning.show_at, "without thinking there is nothing to show")
            return self._plan_without_budget()
        fitting = max(MIN_BUDGET, min(budget, self._max_tokens - 1))
        if fitting >= self._max_tokens:
            self._ledger.record_dropped(at, f"thinking needs {MIN_BUDGET} tokens, more than max_tokens allows")
            return self._plan_without_budget()
        if fitting != budget:
            self._ledger.record_approximated(at, f"the thinking budget must be below max_tokens; set to {fitting}")
        return ThinkingPlan(
            self._add_display({"type": "enabled", "budget_tokens": fitting}), self._choose_effort(), on=True
        )

    def _plan_without_budget(self) -> ThinkingPlan:
        """Keep the client's effort; a default is for thinking alone."""
        return ThinkingPlan(effort=None if self._reasoning.is_default else self._choose_effort())

    def _add_display(self, thinking: Wire) -> Wire:
        show = self._reasoning.show
        if show is None:
            return thinking
        return {**thinking, "display": show if show in _DISPLAYS else "summarized"}

    def _choose_effort(self, cap: str | None = None) -> str | None:
        reasoning = self._reasoning
        if reasoning.effort is None or reasoning.effort == "none":
            return None
        if not self._efforts and reasoning.budget is not None:
            self._ledger.record_dropped(reasoning.at, "this model does not support reasoning effort")
        effort = self._clamp_effort(reasoning.effort)
        if effort is not None and cap is not None and EFFORTS.index(effort) > EFFORTS.index(cap):
            self._ledger.record_approximated(reasoning.at, f"without thinking this model's highest effort is {cap!r}")
            return cap
        if effort is not None and effort != reasoning.effort:
            self._ledger.record_approximated(reasoning.at, f"the nearest effort of this model is {effort!r}")
        return effort

    def _clamp_effort(self, effort: str) -> str | None:
        if not self._efforts or effort in self._efforts:
            return effort if self._efforts else None
        if effort == "xhigh" and "max" in self._efforts:
            return "max"
        rank = EFFORTS.index(effort) if effort in EFFORTS else 0
        lower = [known for known in self._efforts if EFFORTS.index(known) <= rank]
        return lower[-1] if lower else self._efforts[0]


def _lacks_thinking_before_calls(request: Request, issuer: str) -> bool:
    """Return whether results are sent of calls that no thinking comes before which this issuer signed.

    Most clients of other protocols return no thinking, and what another vendor signed is never sent. Without thinking
    between calls, a model thinks before the first of them only, and says nothing of it again until the user speaks.
    """
    turns = request.turns
    latest = list(dropwhile(lambda turn: turn.role is not Role.ASSISTANT, reversed(turns)))
    reply_parts = [part for turn in takewhile(_is_reply, latest) for part in turn.parts]
    later_parts = [part for turn in turns[len(latest) :] for part in turn.parts]
    if not any(isinstance(part, ToolCall) for part in reply_parts) or not any(
        isinstance(part, ToolResult) for part in later_parts
    ):
        return False
    steps = reversed(list(takewhile(_is_of_loop, latest)))
    first_parts = [part for turn in takewhile(_is_reply, steps) for part in turn.parts]
    opaques = [part.opaque for part in (*reply_parts, *first_parts) if isinstance(part, Thinking)]
    return not any(opaque is not None and can_send_to(opaque, issuer, request.protocol == NAME) for opaque in opaques)


def _is_reply(turn: Turn) -> bool:
    return turn.role is Role.ASSISTANT


def _is_of_loop(turn: Turn) -> bool:
    """Whether a turn belongs to a loop of calls and their results, in which the user says nothing."""
    return _is_reply(turn) or all(isinstance(part, ToolResult) for part in turn.parts)
