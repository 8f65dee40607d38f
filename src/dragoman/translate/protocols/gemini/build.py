"""Build the body of a Gemini request for an upstream from a hub request. Model and mode stand in the path."""

import re

import msgspec

from dragoman.translate.hub.ext import list_settings, record_foreign_fields, record_unsupported, restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import DEFAULT_EFFORT, EFFORTS, Target, effort_for_budget
from dragoman.translate.hub.request import (
    NO_ATTRIBUTION,
    NO_SAMPLING,
    Format,
    Reasoning,
    Request,
    Shape,
    Switch,
)
from dragoman.translate.protocols.gemini.build_schema import clean_schema
from dragoman.translate.protocols.gemini.build_tools import build_tools
from dragoman.translate.protocols.gemini.build_turns import build_conversation
from dragoman.translate.protocols.gemini.wire import MAX_CANDIDATES, NAME, TIERS, VERTEX, Wire

_STOPS_MAX = 5
_encode = msgspec.json.Encoder().encode
_LOGPROBS_MAX = 20
_MAX_TEMPERATURE = 2.0
_INT32_MAX = 2**31 - 1
_JSON_TYPE = "application/json"
_LEVELS = ("minimal", "low", "medium", "high")
_SILENT_BY_DEFAULT = frozenset(("responses", NAME))  # clients that get no thoughts unless they ask for them
_LABEL = re.compile(r"[^a-z0-9_-]")
_LABEL_MAX = 63

# Fields that Gemini does not have, and the default of each, which is no loss.
_UNSUPPORTED = list_settings(
    {
        "verbosity": "medium",
        "attribution.user": None,
        "attribution.safety_identifier": None,
        "max_tool_calls": None,
    }
)


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    """Return the body for the upstream; raises RequestError for what would change the answer."""
    record_foreign_fields(request, NAME, ledger)
    record_unsupported(request, _UNSUPPORTED, "Gemini has no such setting", ledger)
    offered = build_tools(request, target, ledger)
    format_fields, format_text = _build_format(request.format, target, offered.has_functions, ledger)
    conversation = build_conversation(request, target, ledger, format_text)
    body: Wire = {"contents": conversation.contents}
    if conversation.instructions:
        body["systemInstruction"] = {"parts": conversation.instructions}
    body |= offered.fields
    settings = _build_sampling(request, target, ledger) | format_fields
    if request.reasoning is not None:
        settings |= _build_thinking(request.reasoning, request.protocol, target, ledger)
    if settings:
        body["generationConfig"] = settings
    if request.attribution != NO_ATTRIBUTION:
        body |= _build_account_fields(request, target, ledger)
    if request.vendor.continuation is not None:
        body["continuationToken"] = request.vendor.continuation
    if request.protocol == NAME:
        restore(body, request.ext)
    return _encode(body)


def _build_account_fields(request: Request, target: Target, ledger: Ledger) -> Wire:
    """Return the fields that concern billing: the tier, and labels where the endpoint takes them."""
    body: Wire = {}
    requested, labels = request.attribution.service_tier, request.attribution.metadata
    if requested is not None and requested != "auto":
        tier, at = TIERS.get(requested), request.pointer("service_tier")
        if tier is None:
            ledger.record_dropped(at, f"Gemini has no tier like {requested!r}")
        else:
            if request.protocol != NAME:
                ledger.record_approximated(at, "the vendors' tiers differ")
            body["serviceTier"] = tier
    if labels and request.protocol == NAME:
        body["labels"] = labels
    elif labels and VERTEX in target.quirks:
        ledger.record_approximated(request.pointer("metadata"), "labels have only lower-case letters, digits, _ and -")
        body["labels"] = {_make_label(key): _make_label(str(value)) for key, value in labels.items()}
    elif labels:
        ledger.record_dropped(request.pointer("metadata"), "the Gemini API has no such setting")
    return body


def _make_label(text: str) -> str:
    return _LABEL.sub("_", text.lower())[:_LABEL_MAX]


def _build_sampling(request: Request, target: Target, ledger: Ledger) -> Wire:
    sampling = request.sampling
    if sampling == NO_SAMPLING:
        most = _build_max_tokens(request, target, ledger)
        return {} if most is None else {"maxOutputTokens": most}
    settings: Wire = {
        "temperature": _build_temperature(request, ledger),
        "topP": sampling.top_p,
        "topK": sampling.top_k,
        "frequencyPenalty": sampling.frequency_penalty or None,
        "presencePenalty": sampling.presence_penalty or None,
        "seed": _build_seed(request, ledger),
        "candidateCount": _build_count(request),
        "maxOutputTokens": _build_max_tokens(request, target, ledger),
        "stopSequences": _build_stop(request, ledger),
        **_build_logprobs(request, ledger),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _build_temperature(request: Request, ledger: Ledger) -> float | None:
    requested = request.sampling.temperature
    if requested is None or requested <= _MAX_TEMPERATURE:
        return requested
    ledger.record_approximated(request.pointer("temperature"), f"Gemini's highest temperature is {_MAX_TEMPERATURE}")
    return _MAX_TEMPERATURE


def _build_logprobs(request: Request, ledger: Ledger) -> Wire:
    most = request.sampling.top_logprobs
    if not request.sampling.logprobs and most is None:
        return {}
    if most is not None and most > _LOGPROBS_MAX:
        ledger.record_approximated(request.pointer("top_logprobs"), f"Gemini gives at most {_LOGPROBS_MAX}")
        most = _LOGPROBS_MAX
    return {"responseLogprobs": True, "logprobs": most or None}


def _build_count(request: Request) -> int | None:
    count = request.sampling.n
    if count is not None and count > MAX_CANDIDATES:
        raise BadRequest(request.pointer("n"), f"n must be at most {MAX_CANDIDATES}, got {count}.")
    return count if count != 1 else None


def _build_seed(request: Request, ledger: Ledger) -> int | None:
    seed = request.sampling.seed
    if seed is None or -_INT32_MAX <= seed <= _INT32_MAX:
        return seed
    ledger.record_approximated(request.pointer("seed"), "Gemini's seeds have 32 bits")
    return seed % _INT32_MAX


def _build_max_tokens(request: Request, target: Target, ledger: Ledger) -> int | None:
    requested, most = request.max_tokens, target.profile.max_output
    if requested is None:
        return None
    fitting = max(1, requested if most is None else min(requested, most))
    if fitting != requested:
        ledger.record_approximated(request.pointer("max_tokens"), f"the upstream takes {fitting} instead")
    return fitting


def _build_stop(request: Request, ledger: Ledger) -> list[str] | None:
    stops = list(request.sampling.stop)
    if len(stops) > _STOPS_MAX:
        ledger.record_dropped(
            request.pointer("stop"), f"Gemini takes {_STOPS_MAX} stop sequences: the others are left out"
        )
    return stops[:_STOPS_MAX] or None


def _build_format(
    format: Format | None, target: Target, has_functions: bool, ledger: Ledger
) -> tuple[Wire, str | None]:
    """Return the settings that bind the reply to JSON, or the instruction that requests it."""
    if format is None or format.shape is Shape.TEXT:
        return {}, None
    schema = None if format.shape is Shape.JSON else format.schema
    if schema is not None and (format.name or format.description or format.strict):
        ledger.record_approximated(format.at, "Gemini's schema has no name, and honours only some keywords")
    if has_functions and not target.profile.schema_beside_functions:
        ledger.record_approximated(
            format.at, f"{target.model} takes no format beside functions: instructions ask for it"
        )
        written = "" if schema is None else f" that matches this JSON Schema:\n{msgspec.json.encode(schema).decode()}"
        return {}, f"Unless you call a function, reply only with JSON{written}"
    settings: Wire = {"responseMimeType": _JSON_TYPE}
    if schema is not None:
        settings["responseJsonSchema"] = clean_schema(schema, format.at, ledger)
    return settings, None


# Thinking: newer models take a level (`adaptive` in the profile), older ones a budget (`enabled`), never both.


def _build_thinking(reasoning: Reasoning, protocol: str, target: Target, ledger: Ledger) -> Wire:
    profile = target.profile
    is_off = _is_off(reasoning)
    if not profile.thinking:
        if not is_off:
            ledger.record_dropped(reasoning.at, f"{target.model} does not think")
        return {}
    if is_off:
        if reasoning.effort not in (None, "none"):
            ledger.record_dropped(reasoning.at, "without thinking there is no effort")
        config = _build_thinking_off(reasoning, target, ledger)
        return {"thinkingConfig": config} if config else {}
    if reasoning.switch is Switch.BETWEEN_TOOLS:
        ledger.record_approximated(reasoning.switch_at or reasoning.at, f"{target.model} thinks everywhere")
    if _takes_budget(reasoning, target):
        config = _build_budget(reasoning, target, ledger)
    else:
        config = _build_level(reasoning, target, ledger)
    if _shows_thoughts(reasoning, protocol, ledger):
        config["includeThoughts"] = True
    return {"thinkingConfig": config} if config else {}


def _takes_budget(reasoning: Reasoning, target: Target) -> bool:
    """Return whether a budget is sent; to a model that is not known, whatever the client has."""
    has_budget = reasoning.budget is not None and reasoning.effort is None and not _is_off(reasoning)
    return "adaptive" not in target.profile.thinking or (has_budget and "enabled" in target.profile.thinking)


def _is_off(reasoning: Reasoning) -> bool:
    return reasoning.switch is Switch.DISABLED or reasoning.effort == "none"


def _shows_thoughts(reasoning: Reasoning, protocol: str, ledger: Ledger) -> bool:
    """Return whether thoughts are requested; a Responses client gets only a summary that it asks for."""
    if reasoning.show in ("concise", "detailed", "updates"):
        ledger.record_approximated(reasoning.show_at, "Gemini has one kind of summary of its thoughts")
    if reasoning.show is None:
        return protocol not in _SILENT_BY_DEFAULT
    return reasoning.show != "omitted"


def _build_thinking_off(reasoning: Reasoning, target: Target, ledger: Ledger) -> Wire:
    at = reasoning.switch_at or reasoning.at
    scale = target.profile.budget
    if not _takes_budget(reasoning, target):
        lowest = _list_levels(target)[0]
        ledger.record_approximated(at, f"{target.model} always thinks: its level is {lowest!r}")
        return {"thinkingLevel": lowest.upper()}
    if target.profile.thinking_off is not None:
        return {"thinkingBudget": 0}
    ledger.record_approximated(at, f"{target.model} always thinks")
    return {} if scale is None else {"thinkingBudget": scale.least}


def _build_budget(reasoning: Reasoning, target: Target, ledger: Ledger) -> Wire:
    budget, at = reasoning.budget, reasoning.budget_at or reasoning.at
    if budget is None:
        budget, at = target.budgets.get(reasoning.effort or ""), reasoning.at
        if budget is None:
            return {}
        ledger.record_approximated(at, f"{target.model} takes a budget instead of an effort: {budget}")
    elif reasoning.effort is not None:
        ledger.record_dropped(reasoning.at, f"{target.model} takes a budget or an effort: the budget is sent")
    scale = target.profile.budget
    if scale is not None and budget >= 0 and not scale.least <= budget <= scale.most:
        budget = min(max(budget, scale.least), scale.most)
        ledger.record_approximated(at, f"{target.model} takes a budget of {budget} instead")
    return {"thinkingBudget": budget}


def _build_level(reasoning: Reasoning, target: Target, ledger: Ledger) -> Wire:
    effort, at = reasoning.effort, reasoning.at
    if reasoning.budget is not None and effort is not None:
        ledger.record_dropped(reasoning.budget_at or at, f"{target.model} takes a level or a budget: the level is sent")
    elif reasoning.budget is not None and reasoning.budget >= 0:
        effort, at = effort_for_budget(reasoning.budget), reasoning.budget_at or at
        ledger.record_approximated(at, f"{target.model} takes a level instead of a budget: {effort!r}")
    if effort is None:
        return {}
    known = _list_levels(target)
    if effort not in known:
        place = EFFORTS.index(effort) if effort in EFFORTS else EFFORTS.index(DEFAULT_EFFORT)
        nearest = min(known, key=lambda level: (abs(EFFORTS.index(level) - place), -EFFORTS.index(level)))
        ledger.record_approximated(at, f"{target.model} takes {nearest!r} instead of {effort!r}")
        effort = nearest
    return {"thinkingLevel": effort.upper()}


def _list_levels(target: Target) -> list[str]:
    return [level for level in _LEVELS if level in target.profile.efforts] or list(_LEVELS)
