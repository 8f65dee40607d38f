"""Model profiles: what a model accepts, as data. Requests are adapted to the profile before they are built."""

from msgspec import Struct

from dragoman.translate.hub.caching import CachePlan

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
REPLAYS = frozenset(("replay_reasoning", "replay_thinking"))  # quirks: a server that wants its earlier thinking back
DEFAULT_EFFORT = "high"  # of a model whose thinking is enabled without an effort
_EFFORT_UP_TO = ((1024, "low"), (8192, "medium"), (24576, "high"))  # thinking tokens; xhigh above the last bound


def effort_for_budget(budget: int | None) -> str:
    """Return the effort nearest to a thinking budget in tokens, for protocols that have efforts but no budgets."""
    if budget is None:
        return DEFAULT_EFFORT
    return next((effort for most, effort in _EFFORT_UP_TO if budget <= most), "xhigh")


class BudgetScale(Struct, frozen=True, forbid_unknown_fields=True):
    """The thinking budgets of a model, in tokens."""

    least: int
    most: int
    by_effort: dict[str, int] = {}  # unless the configuration says otherwise


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model accepts. By default a model accepts everything that its protocol has."""

    sampling: bool = True  # temperature, top_p, top_k
    sampling_while_thinking: bool = True
    thinking: tuple[str, ...] = ("adaptive", "enabled", "disabled")  # Messages thinking types accepted
    thinking_off: str | None = "disabled"  # the type that switches thinking off; None: it cannot be switched off
    thinking_default: bool = False  # thinks unless thinking is switched off
    efforts: tuple[str, ...] = EFFORTS  # efforts accepted; () = the model has no such setting
    effort_cap_when_off: str | None = None  # the highest effort while thinking is off
    forced_choice: bool = True  # tool_choice any / required / named
    forced_choice_while_thinking: bool = False
    prefill: bool = True
    later_system: bool = False  # Messages: role system within messages
    max_output: int | None = None
    window: int | None = None
    no_tools_in: tuple[str, ...] = ()  # protocols in which the model takes no function tools, though it has some
    budget: BudgetScale | None = None  # None: any budget, and the general scale of efforts
    instructions: bool = True  # has instructions apart from the conversation
    hosted_beside_functions: bool = True  # Gemini: tools that Google runs work beside functions
    schema_beside_functions: bool = True  # Gemini: replies can be bound to JSON beside functions
    media_in_results: bool = True  # Gemini: the result of a call may have media
    cache_breakpoints: bool = False  # OpenAI: caches at explicit breakpoints, too
    cache_minimum: int = 1024  # tokens of the shortest prompt that can be cached, for upstreams that cache at marks


class Target(Struct, frozen=True):
    """The model and upstream that a request is built for."""

    model: str  # the upstream's name of the model
    issuer: str  # the issuer whose opaque reasoning this upstream can read
    profile: Profile = Profile()
    budgets: dict[str, int] = {}  # effort -> thinking budget, as configured
    quirks: frozenset[str] = frozenset()  # oddities of a compatible server, by name
    options: object = None  # settings that only this provider's protocol uses
    cache: CachePlan = CachePlan()
