"""Build the body of a Gemini request for an upstream from a hub request. Model and mode stand in the path."""

import msgspec

from dragoman.hub.ext import note_foreign_fields
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import EFFORTS, Target, effort_for_budget
from dragoman.hub.request import Format, Reasoning, Request, Shape, Switch
from dragoman.passes.cache_breakpoint import place_cache_breakpoint
from dragoman.protocols.gemini.build_schema import clean_schema
from dragoman.protocols.gemini.build_tools import build_tools
from dragoman.protocols.gemini.build_turns import build_conversation
from dragoman.protocols.gemini.wire import NAME, Wire

_STOPS_MAX = 5
_INT32_MAX = 2**31 - 1
_JSON_TYPE = "application/json"
_BUDGETS = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576, "max": 24576}
_LEVELS = ("minimal", "low", "medium", "high")

# Fields that Gemini does not have, and the default of each, which is no loss.
_UNSUPPORTED: dict[str, object] = {
    "logprobs": False,
    "top_logprobs": 0,
    "verbosity": "medium",
    "cache_key": None,
    "metadata": {},
    "user": None,
    "safety_identifier": None,
    "service_tier": "auto",
    "max_tool_calls": None,
}


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    """Return the body for the upstream; raises RequestError for what would change the answer."""
    note_foreign_fields(request, NAME, ledger)
    request = place_cache_breakpoint(request, ledger)
    _drop_unsupported(request, ledger)
    conversation = build_conversation(request, target, ledger)
    body: Wire = {"contents": conversation.contents}
    if conversation.instructions:
        body["systemInstruction"] = {"parts": conversation.instructions}
    body |= build_tools(request, ledger)
    settings = _build_sampling(request, target, ledger)
    if request.format is not None:
        settings |= _build_format(request.format, ledger)
    if request.reasoning is not None:
        settings |= _build_thinking(request.reasoning, target, ledger)
    if settings:
        body["generationConfig"] = settings
    return msgspec.json.encode(body)


def _drop_unsupported(request: Request, ledger: Ledger) -> None:
    for name, default in _UNSUPPORTED.items():
        value = getattr(request, name)
        if value is not None and value != default:
            ledger.note_dropped(request.pointer(name), "Gemini has no such setting")
    if request.n is not None and request.n > 1:
        raise BadRequest(request.pointer("n"), f"n must be 1, got {request.n}: several answers cannot be translated.")


def _build_sampling(request: Request, target: Target, ledger: Ledger) -> Wire:
    settings: Wire = {
        "temperature": request.temperature,
        "topP": request.top_p,
        "topK": request.top_k,
        "frequencyPenalty": request.frequency_penalty or None,
        "presencePenalty": request.presence_penalty or None,
        "seed": _build_seed(request, ledger),
        "maxOutputTokens": _build_max_tokens(request, target, ledger),
        "stopSequences": _build_stop(request, ledger),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _build_seed(request: Request, ledger: Ledger) -> int | None:
    if request.seed is None or -_INT32_MAX <= request.seed <= _INT32_MAX:
        return request.seed
    ledger.note_approximated(request.pointer("seed"), "Gemini's seeds have 32 bits")
    return request.seed % _INT32_MAX


def _build_max_tokens(request: Request, target: Target, ledger: Ledger) -> int | None:
    requested, most = request.max_tokens, target.profile.max_output
    if requested is None:
        return None
    fitting = max(1, requested if most is None else min(requested, most))
    if fitting != requested:
        ledger.note_approximated(request.pointer("max_tokens"), f"the upstream takes {fitting} instead")
    return fitting


def _build_stop(request: Request, ledger: Ledger) -> list[str] | None:
    stops = list(request.stop)
    if len(stops) > _STOPS_MAX:
        ledger.note_dropped(
            request.pointer("stop"), f"Gemini takes {_STOPS_MAX} stop sequences: the others are left out"
        )
    return stops[:_STOPS_MAX] or None


def _build_format(format: Format, ledger: Ledger) -> Wire:
    if format.shape is Shape.TEXT:
        return {}
    if format.shape is Shape.JSON or format.schema is None:
        return {"responseMimeType": _JSON_TYPE}
    schema = clean_schema(format.schema, lambda why: ledger.note_approximated(format.at, why))
    if format.description:
        ledger.note_dropped(f"{format.at}/description", "Gemini's schemas have no description of their own")
    return {"responseMimeType": _JSON_TYPE, "responseJsonSchema": schema}


# Thinking: newer models take a level (`adaptive` in the profile), older ones a budget (`enabled`), never both.


def _build_thinking(reasoning: Reasoning, target: Target, ledger: Ledger) -> Wire:
    profile = target.profile
    is_off = reasoning.switch is Switch.DISABLED or reasoning.effort == "none"
    if not profile.thinking:
        if not is_off:
            ledger.note_dropped(reasoning.at, f"{target.model} does not think")
        return {}
    wants_budget = "adaptive" not in profile.thinking
    config: Wire = {}
    if is_off:
        config |= _build_thinking_off(reasoning, target, wants_budget, ledger)
    elif wants_budget:
        budget = _choose_budget(reasoning, target, ledger)
        config |= {} if budget is None else {"thinkingBudget": budget}
    else:
        level = _choose_level(reasoning, target, ledger)
        config |= {} if level is None else {"thinkingLevel": level}
    if not is_off and reasoning.show != "omitted":
        config["includeThoughts"] = True
    return {"thinkingConfig": config} if config else {}


def _build_thinking_off(reasoning: Reasoning, target: Target, wants_budget: bool, ledger: Ledger) -> Wire:
    at = reasoning.switch_at or reasoning.at
    if wants_budget and target.profile.thinking_off is not None:
        return {"thinkingBudget": 0}
    if wants_budget:
        ledger.note_approximated(at, f"{target.model} always thinks")
        return {}
    lowest = next((level for level in _LEVELS if level in target.profile.efforts), _LEVELS[0])
    ledger.note_approximated(at, f"{target.model} always thinks: its level is {lowest!r}")
    return {"thinkingLevel": lowest}


def _choose_budget(reasoning: Reasoning, target: Target, ledger: Ledger) -> int | None:
    if reasoning.budget is not None:
        return reasoning.budget
    if reasoning.effort is None:
        return None
    budget = target.budgets.get(reasoning.effort, _BUDGETS.get(reasoning.effort))
    ledger.note_approximated(reasoning.at, f"{target.model} takes a budget instead of an effort: {budget}")
    return budget


def _choose_level(reasoning: Reasoning, target: Target, ledger: Ledger) -> str | None:
    effort, at = reasoning.effort, reasoning.at
    if effort is None and reasoning.budget is not None:
        effort, at = effort_for_budget(reasoning.budget), reasoning.budget_at or reasoning.at
        ledger.note_approximated(at, f"{target.model} takes a level instead of a budget: {effort!r}")
    if effort is None:
        return None
    known = [level for level in _LEVELS if level in target.profile.efforts] or list(_LEVELS)
    if effort in known or effort not in EFFORTS:
        return effort
    place = EFFORTS.index(effort)
    nearest = min(known, key=lambda level: abs(EFFORTS.index(level) - place))
    ledger.note_approximated(at, f"{target.model} takes {nearest!r} instead of {effort!r}")
    return nearest
