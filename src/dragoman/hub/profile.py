"""What one model accepts, as data: the gates that a request is fitted to before it is built."""

from msgspec import Struct

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
DEFAULT_EFFORT = "high"  # what a model does that is told to think and not how hard
_EFFORT_UP_TO = ((1024, "low"), (8192, "medium"), (24576, "high"))  # tokens of thought; beyond the last it is xhigh


def effort_for_budget(budget: int | None) -> str:
    """The effort that a thinking budget comes nearest to, where one protocol counts tokens and the other does not."""
    if budget is None:
        return DEFAULT_EFFORT
    return next((effort for most, effort in _EFFORT_UP_TO if budget <= most), "xhigh")


class Profile(Struct, frozen=True, forbid_unknown_fields=True):
    """The defaults are those of a model of which nothing is known: it takes everything its protocol has."""

    sampling: bool = True  # temperature, top_p, top_k
    sampling_while_thinking: bool = True
    thinking: tuple[str, ...] = ("adaptive", "enabled", "disabled")  # Messages thinking types accepted
    thinking_off: str | None = "disabled"  # the type that switches thinking off; None: it cannot be switched off
    thinking_default: bool = False  # thinks unless told otherwise
    efforts: tuple[str, ...] = EFFORTS  # efforts accepted; () = the model has no such setting
    effort_cap_when_off: str | None = None  # the highest effort while thinking is off
    forced_choice: bool = True  # tool_choice any / required / named
    forced_choice_while_thinking: bool = False
    prefill: bool = True
    later_system: bool = False  # Messages: role system within messages
    max_output: int | None = None
    window: int | None = None
    chat_tools: bool = True  # OpenAI: function tools work on the Chat endpoint


class Target(Struct, frozen=True):
    """To whom a request is built."""

    model: str  # the upstream's own name for it
    issuer: str  # whose opaque reasoning this upstream can read
    profile: Profile = Profile()
    budgets: dict[str, int] = {}  # effort -> thinking budget, as configured
    quirks: frozenset[str] = frozenset()  # oddities of a compatible server, by name
    options: object = None  # what only this provider's own protocol needs to know
