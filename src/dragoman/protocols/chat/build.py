"""Build the body of a Chat request for an upstream from a hub request."""

import hashlib

import msgspec

from dragoman.hub.ext import note_foreign_fields, restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import EFFORTS, Target, effort_for_budget
from dragoman.hub.request import Ext, Format, Reasoning, Request, Role, Shape, Switch, Text
from dragoman.passes.cache_breakpoint import place_cache_breakpoint
from dragoman.protocols.chat.build_tools import write_tools
from dragoman.protocols.chat.build_turns import write_messages
from dragoman.protocols.chat.wire import NAME, OPENAI, OPENAI_PROTOCOLS

_Wire = dict[str, object]
_STOPS_MAX = 4  # OpenAI's; other servers take more
_SCHEMA_NAME = "reply"
_USER_MAX = 64
_SHARED = frozenset(("moderation", "prompt_cache_options/mode", "prompt_cache_options/ttl", "prompt_cache_retention"))


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    """The body for the upstream; what it cannot be asked raises Refused."""
    shared = _shared(request)
    note_foreign_fields(request, NAME, ledger, shared)
    request = place_cache_breakpoint(request, ledger)
    body: _Wire = {"model": target.model, "messages": write_messages(request, target, ledger)}
    body |= write_tools(request, target, ledger)
    effort = _effort(request, target, ledger)
    body |= _sampling(request, target, effort.get("reasoning_effort"), ledger)
    body |= _settings(request, target, ledger)
    body |= _vendor_settings(request, target, ledger)
    body |= effort
    if request.format is not None:
        body["response_format"] = _format(request.format, target, ledger)
    if request.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    restore(body, request.ext if request.protocol == NAME else shared)
    _note_prefill(request, ledger)
    return msgspec.json.encode(body)


def _shared(request: Request) -> Ext:
    """What Responses, of the same vendor, says with the same words."""
    if request.protocol not in OPENAI_PROTOCOLS:
        return {}
    return {
        pointer: value
        for pointer, value in request.ext.items()
        if pointer in _SHARED and (pointer, value) != ("prompt_cache_options/ttl", "12h")  # too long for Chat
    }


def _sampling(request: Request, target: Target, effort: object, ledger: Ledger) -> _Wire:
    """Temperature and its like, which models refuse while they think; 1 is what they do anyway."""
    profile = target.profile
    sampling: _Wire = {"temperature": request.temperature, "top_p": request.top_p}
    thinks = profile.thinking_default if effort is None else effort != "none"
    if profile.sampling and (profile.sampling_while_thinking or not thinks):
        return _given(sampling)
    unusual = {name: value for name, value in sampling.items() if value != 1}
    return _dropped(request, ledger, unusual, f"{target.model} takes no sampling settings")


def _settings(request: Request, target: Target, ledger: Ledger) -> _Wire:
    """What every server takes, or nobody."""
    own = request.protocol == NAME
    unheard: _Wire = {"top_k": request.top_k, "max_tool_calls": request.max_tool_calls}
    if not own:
        unheard = _dropped(request, ledger, unheard, "Chat has no such setting")
    if request.n is not None and request.n > 1 and not own:
        raise BadRequest(request.pointer("n"), f"n must be 1: {request.n} answers to a request cannot be translated")
    return _given(
        unheard
        | {
            "max_tokens" if "max_tokens" in target.quirks else "max_completion_tokens": _cap(request, ledger),
            "frequency_penalty": request.frequency_penalty,
            "presence_penalty": request.presence_penalty,
            "seed": request.seed,
            "n": request.n,
            "stop": _stop(request, target, ledger),
            "logprobs": True if request.top_logprobs is not None and not own else request.logprobs,
            "top_logprobs": request.top_logprobs,
            "user": _user(request),
        }
    )


def _cap(request: Request, ledger: Ledger) -> int | None:
    if request.max_tokens != 0 or request.protocol == NAME:
        return request.max_tokens
    ledger.note_approximated(
        request.pointer("max_tokens"), "Chat warms a cache only by answering: one token is asked for"
    )
    return 1


def _user(request: Request) -> str | None:
    """Whom the request is for. OpenAI takes no longer name; Claude Code's, for one, is."""
    if request.user is None or request.protocol in OPENAI_PROTOCOLS or len(request.user) <= _USER_MAX:
        return request.user
    return hashlib.sha256(request.user.encode(errors="replace")).hexdigest()


def _vendor_settings(request: Request, target: Target, ledger: Ledger) -> _Wire:
    """What OpenAI takes, and most others ignore; a server of the `plain` quirk refuses fields that it does not know."""
    settings: _Wire = {
        "verbosity": request.verbosity,
        "cache_key": request.cache_key,
        "safety_identifier": request.safety_identifier,
        "metadata": request.metadata,
        "service_tier": request.service_tier,
    }
    if request.protocol != NAME and "plain" in target.quirks:
        settings = _dropped(request, ledger, settings, "this server refuses it")
    if request.protocol not in OPENAI_PROTOCOLS:
        for name in _given({"user": request.user, "service_tier": settings.get("service_tier")}):
            ledger.note_approximated(request.pointer(name), "means nearly the same in Chat")
    wire = _given(settings)
    if "cache_key" in wire:
        wire["prompt_cache_key"] = wire.pop("cache_key")
    return wire


def _given(fields: _Wire) -> _Wire:
    return {name: value for name, value in fields.items() if value is not None}


def _dropped(request: Request, ledger: Ledger, fields: _Wire, why: str) -> _Wire:
    for name in _given(fields):
        ledger.note_dropped(request.pointer(name), why)
    return {}


def _stop(request: Request, target: Target, ledger: Ledger) -> list[str] | None:
    stops = list(request.stop)
    if len(stops) > _STOPS_MAX and target.issuer == OPENAI:
        ledger.note_dropped(request.pointer("stop"), f"Chat takes {_STOPS_MAX} stop sequences: the others are left out")
        stops = stops[:_STOPS_MAX]
    return stops or None


def _format(wanted: Format, target: Target, ledger: Ledger) -> _Wire:
    if wanted.shape is not Shape.SCHEMA:
        return {"type": "json_object" if wanted.shape is Shape.JSON else "text"}
    if "json_object_schema" in target.quirks:
        ledger.note_approximated(
            wanted.at, "this server takes a schema only beside json_object, without name or strictness"
        )
        return _given({"type": "json_object", "schema": wanted.schema})
    if wanted.name is None:
        ledger.note_invented(wanted.at, f"Chat's schemas need a name: {_SCHEMA_NAME!r}")
    schema = {"name": wanted.name or _SCHEMA_NAME, "description": wanted.description}
    return {"type": "json_schema", "json_schema": _given(schema | {"schema": wanted.schema, "strict": wanted.strict})}


def _effort(request: Request, target: Target, ledger: Ledger) -> _Wire:
    asked = request.reasoning
    if asked is None:
        return {}
    if asked.show is not None:
        ledger.note_dropped(asked.show_at, "Chat cannot ask to see thoughts")
    wanted, at = _wanted_effort(asked, ledger)
    if wanted is None:
        return {}
    accepted = [effort for effort in EFFORTS if effort in target.profile.efforts]
    if target.issuer == OPENAI and "max" in accepted:
        accepted.remove("max")  # known on Responses only
    if not accepted:
        if wanted != "none":
            ledger.note_dropped(at, f"{target.model} has no such setting")
        return {}
    effort = _nearest(wanted, accepted)
    if effort != wanted:
        ledger.note_approximated(at, f"{target.model} takes {effort!r}, not {wanted!r}")
    elif request.protocol not in OPENAI_PROTOCOLS:
        ledger.note_approximated(at, "each vendor has its own scale of effort")
    return {"reasoning_effort": effort}


def _wanted_effort(asked: Reasoning, ledger: Ledger) -> tuple[str | None, str]:
    """The effort that says nearly the same, and where the client said it."""
    if asked.switch is Switch.DISABLED:
        if asked.effort is not None:
            ledger.note_dropped(asked.at, "with thinking off the effort is none")
        return "none", asked.switch_at
    if asked.budget is None and asked.switch is not None:
        ledger.note_approximated(asked.switch_at, "Chat leaves it to the model whether to think")
    if asked.effort is not None:
        if asked.budget is not None:
            ledger.note_dropped(asked.budget_at, "Chat has no thinking budget: the effort says it")
        return asked.effort, asked.at
    if asked.budget is None:
        return None, asked.at
    effort = effort_for_budget(asked.budget)
    ledger.note_approximated(asked.budget_at, f"Chat has no thinking budget: the effort is {effort!r}")
    return effort, asked.budget_at


def _nearest(effort: str, accepted: list[str]) -> str:
    """The accepted effort that is closest, of two the lower; one that nobody knows goes out as it is."""
    if effort in accepted or effort not in EFFORTS:
        return effort
    wanted = EFFORTS.index(effort)
    thinking = [known for known in accepted if known != "none"] or accepted  # little thought is not no thought
    return min(thinking, key=lambda known: (abs(EFFORTS.index(known) - wanted), EFFORTS.index(known)))


def _note_prefill(request: Request, ledger: Ledger) -> None:
    if request.protocol in OPENAI_PROTOCOLS or not request.turns:
        return
    last = request.turns[-1]
    if last.role is Role.ASSISTANT and any(isinstance(part, Text) for part in last.parts):
        ledger.note_approximated(last.at, "Chat takes it for history, not for the beginning of the reply")
