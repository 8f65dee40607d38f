"""The client's wishes about reasoning and a model's profile come in; `thinking` and the effort to send go out."""

from itertools import dropwhile, takewhile

from msgspec import Struct

from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import can_send_to
from dragoman.hub.profile import DEFAULT_EFFORT, Profile, Target, effort_for_budget
from dragoman.hub.request import Reasoning, Request, Role, Switch, Thinking, ToolCall, ToolResult
from dragoman.protocols.messages.wire import EFFORTS, MIN_BUDGET, NAME, Wire

_ANSWER = 1024  # tokens that thoughts leave for it, if there are so many
_DISPLAYS = ("summarized", "omitted", "updates")


class Thought(Struct, frozen=True):
    """What is sent, and whether the model will think."""

    thinking: Wire | None = None
    effort: str | None = None
    on: bool = False


def plan_thinking(request: Request, target: Target, max_tokens: int, ledger: Ledger) -> Thought:
    if request.reasoning is None:
        return Thought(on=target.profile.thinking_default)
    return _Planner(request, request.reasoning, target, max_tokens, ledger).plan()


class _Planner:
    __slots__ = ("_accepted", "_bare", "_budgets", "_efforts", "_ledger", "_max_tokens", "_own", "_profile", "_wish")

    def __init__(self, request: Request, wish: Reasoning, target: Target, max_tokens: int, ledger: Ledger) -> None:
        self._wish = wish
        self._bare = _calls_barely(request, target.issuer)
        self._profile: Profile = target.profile
        self._budgets = target.budgets
        self._max_tokens = max_tokens
        self._own = request.protocol == NAME
        self._ledger = ledger
        self._accepted = target.profile.thinking
        self._efforts = tuple(effort for effort in EFFORTS if effort in target.profile.efforts)

    def plan(self) -> Thought:
        wish = self._wish
        if wish.effort is not None and not self._own:
            self._ledger.note_approximated(wish.at, "another vendor's effort is only like this one's")
        match wish.switch:
            case Switch.DISABLED:
                return self._off(wish.switch_at, "disabled")
            case Switch.BETWEEN_TOOLS:
                return self._off(wish.switch_at, "between_tools")
            case Switch.ENABLED:
                return self._enabled()
            case Switch.ADAPTIVE:
                return self._adaptive(wish.switch_at)
        if wish.effort == "none":
            return self._off(wish.at, "disabled")
        if wish.show is not None and wish.show != "omitted":
            return self._adaptive(wish.show_at)
        return self._by_effort()

    def _off(self, at: str, asked: str) -> Thought:
        profile = self._profile
        off = asked if asked in self._accepted else profile.thinking_off
        if off is None:
            self._ledger.note_approximated(at, "this model always thinks; it is asked for as little as possible")
            return Thought(None, self._effort() or self._clamped("low"), on=True)
        if off != asked:
            self._ledger.note_approximated(at, f"this model knows {off!r} instead of {asked!r}")
        thinking: Wire | None = {"type": off} if off in self._accepted else None
        return Thought(thinking, self._effort(profile.effort_cap_when_off), on=False)

    def _enabled(self) -> Thought:
        """A budget of its own; models without budgets are told an effort like it."""
        wish = self._wish
        if "enabled" in self._accepted:
            if wish.budget:
                return self._budgeted(wish.budget, wish.budget_at)
            return self._budgeted(self._budget(), wish.switch_at)
        if "adaptive" not in self._accepted:
            self._ledger.note_dropped(wish.switch_at, "this model does not think")
            return Thought(effort=self._effort())
        at = wish.budget_at if wish.budget else wish.switch_at
        self._ledger.note_approximated(at, "this model takes an effort, not a budget")
        effort = self._effort() if wish.effort else self._clamped(effort_for_budget(wish.budget))
        return Thought(self._shown({"type": "adaptive"}), effort, on=True)

    def _adaptive(self, at: str) -> Thought:
        """Thinking as the model sees fit; older models get a budget."""
        wish = self._wish
        if "adaptive" in self._accepted:
            if not self._own:
                self._ledger.note_approximated(at, "thoughts are shown as a summary")
            return Thought(self._shown({"type": "adaptive"}), self._effort(), on=True)
        if "enabled" not in self._accepted:
            self._ledger.note_dropped(at, "this model does not think")
            return Thought(effort=self._effort())
        if wish.effort is None and wish.switch is None:  # only a wish to see thoughts, and this model has none
            self._ledger.note_dropped(at, "this model does not think unless told to")
            return Thought()
        self._ledger.note_approximated(at, "this model thinks with a budget")
        return self._budgeted(self._budget(), at)

    def _by_effort(self) -> Thought:
        """An effort alone says how hard to work and switches nothing on, where the model has efforts."""
        wish = self._wish
        if self._efforts:
            return Thought(None, self._effort(), on=self._profile.thinking_default)
        if wish.effort is None:
            return Thought(on=self._profile.thinking_default)
        if "enabled" not in self._accepted:
            self._ledger.note_dropped(wish.at, "this model has neither efforts nor thinking")
            return Thought(on=self._profile.thinking_default)
        return self._budgeted(self._budget(), wish.at)

    def _budget(self) -> int:
        """The thoughts that an effort is worth, with room for an answer; one that nobody knows is worth the usual."""
        usual = self._budgets.get(DEFAULT_EFFORT, MIN_BUDGET)
        worth = self._budgets.get(self._wish.effort or DEFAULT_EFFORT, usual)
        return min(worth, max(MIN_BUDGET, self._max_tokens - min(_ANSWER, self._max_tokens // 4)))

    def _budgeted(self, budget: int, at: str) -> Thought:
        if self._bare:
            self._ledger.note_dropped(
                at, "a budget of thoughts wants those before the last calls back, and they are gone"
            )
            return Thought(effort=self._effort())
        fitting = max(MIN_BUDGET, min(budget, self._max_tokens - 1))
        if fitting >= self._max_tokens:
            self._ledger.note_dropped(at, f"thinking needs {MIN_BUDGET} tokens and max_tokens leaves no room for them")
            return Thought(effort=self._effort())
        if fitting != budget:
            self._ledger.note_approximated(at, f"the budget of thoughts must be below max_tokens: {fitting} tokens")
        return Thought(self._shown({"type": "enabled", "budget_tokens": fitting}), self._effort(), on=True)

    def _shown(self, thinking: Wire) -> Wire:
        show = self._wish.show
        if show is None:
            return thinking
        return {**thinking, "display": show if show in _DISPLAYS else "summarized"}

    def _effort(self, cap: str | None = None) -> str | None:
        wish = self._wish
        if wish.effort is None or wish.effort == "none":
            return None
        if not self._efforts and wish.budget is not None:
            self._ledger.note_dropped(wish.at, "this model has no efforts")
        effort = self._clamped(wish.effort)
        if effort is not None and cap is not None and EFFORTS.index(effort) > EFFORTS.index(cap):
            self._ledger.note_approximated(wish.at, f"without thinking this model's highest effort is {cap!r}")
            return cap
        if effort is not None and effort != wish.effort:
            self._ledger.note_approximated(wish.at, f"the nearest effort of this model is {effort!r}")
        return effort

    def _clamped(self, effort: str) -> str | None:
        if not self._efforts or effort in self._efforts:
            return effort if self._efforts else None
        if effort == "xhigh" and "max" in self._efforts:
            return "max"
        rank = EFFORTS.index(effort) if effort in EFFORTS else 0
        lower = [known for known in self._efforts if EFFORTS.index(known) <= rank]
        return lower[-1] if lower else self._efforts[0]


def _calls_barely(request: Request, issuer: str) -> bool:
    """Whether results wait for an answer whose calls come without any thought that this issuer could read.

    Most clients of other protocols give no thoughts back, and what another vendor sealed is never sent.
    """
    turns = request.turns
    latest = list(dropwhile(lambda turn: turn.role is not Role.ASSISTANT, reversed(turns)))
    said = [part for turn in takewhile(lambda turn: turn.role is Role.ASSISTANT, latest) for part in turn.parts]
    since = [part for turn in turns[len(latest) :] for part in turn.parts]
    if not any(isinstance(part, ToolCall) for part in said) or not any(isinstance(part, ToolResult) for part in since):
        return False
    opaques = [part.opaque for part in said if isinstance(part, Thinking)]
    return not any(opaque is not None and can_send_to(opaque, issuer, request.protocol == NAME) for opaque in opaques)
