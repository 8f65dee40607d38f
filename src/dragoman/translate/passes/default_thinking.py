"""Ask for thinking where the client asks for nothing and the configuration has a default for it."""

from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Profile
from dragoman.translate.hub.request import Pick, Reasoning, Request, Switch

THINKING = ("adaptive", "enabled")
FORCED = (Pick.REQUIRED, Pick.NAMED)
# Fields with which clients of compatible servers ask for thinking, or switch it off.
VENDOR_FIELDS = frozenset(
    ("thinking", "reasoning", "enable_thinking", "thinking_budget", "chat_template_kwargs", "think")
)
UNKNOWN_EFFORT = "output_config/effort"


def add_default_thinking(request: Request, default: str | int, profile: Profile, ledger: Ledger) -> Request:
    """Return the request with an effort, or a budget in tokens, unless it says anything of thinking itself.

    A model that does not think is left alone, and so is a call that the client forces and the model makes only
    without thinking.
    """
    if not any(kind in profile.thinking for kind in THINKING) or _mentions_thinking(request):
        return request
    choice = request.tool_choice
    if choice is not None and choice.pick in FORCED and not profile.forced_choice_while_thinking:
        return request
    at = request.pointer("reasoning")
    ledger.record_default(at, f"default_thinking is {default!r}, and the client asks for nothing")
    return replace(request, reasoning=_make_reasoning(default, at))


def _make_reasoning(default: str | int, at: str) -> Reasoning:
    if isinstance(default, int):
        return Reasoning(at, budget=default, budget_at=at, switch=Switch.ENABLED, switch_at=at, is_default=True)
    return Reasoning(at, effort=default, switch=Switch.ADAPTIVE, switch_at=at, is_default=True)


def _mentions_thinking(request: Request) -> bool:
    own = request.reasoning
    if own is not None and any(value is not None for value in (own.effort, own.budget, own.switch, own.show)):
        return True
    return any(path.partition("/")[0] in VENDOR_FIELDS or path == UNKNOWN_EFFORT for path in request.ext)
