"""Build the body of a Chat request for an upstream from a hub request."""

import hashlib
from collections.abc import Sequence

import msgspec

from dragoman.translate.caching.breakpoints import choose_key, keep_one_lifetime
from dragoman.translate.hub.ext import is_indispensable, record_foreign_fields, restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import EFFORTS, Target, effort_for_budget
from dragoman.translate.hub.request import (
    NO_ATTRIBUTION,
    NO_SAMPLING,
    Custom,
    Ext,
    Format,
    Function,
    Hosted,
    Pick,
    Reasoning,
    Request,
    Role,
    Shape,
    Switch,
    Text,
    Tool,
    ToolChoice,
)
from dragoman.translate.protocols.chat.build_turns import build_messages
from dragoman.translate.protocols.chat.wire import NAME, OPENAI, OPENAI_PROTOCOLS, SEARCH_OPTIONS

_Wire = dict[str, object]
_encode = msgspec.json.Encoder().encode
_ASSISTANT = Role.ASSISTANT  # looked up once: on Python 3.11, each look-up of a member is slow
_STOPS_MAX = 4  # OpenAI's; other servers take more
_SCHEMA_NAME = "reply"
_USER_MAX = 64
_SHARED_FIELDS = frozenset(
    ("moderation", "prompt_cache_options/mode", "prompt_cache_options/ttl", "prompt_cache_retention")
)
_CHOICES = {Pick.AUTO: "auto", Pick.NONE: "none", Pick.REQUIRED: "required"}


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    """Return the body for the upstream; raises RequestError for what would change the answer."""
    shared = _shared_ext(request)
    record_foreign_fields(request, NAME, ledger, shared)
    body: _Wire = {"model": target.model, "messages": build_messages(request, target, ledger)}
    body |= _build_tools(request, target, ledger)
    effort = _build_effort(request, target, ledger)
    if request.sampling != NO_SAMPLING:
        body |= _build_sampling(request, target, effort.get("reasoning_effort"), ledger)
    body |= _build_settings(request, target, ledger)
    if request.attribution != NO_ATTRIBUTION or request.verbosity is not None:
        body |= _build_vendor_settings(request, target, ledger)
    cache_key = request.cache_key if request.protocol == NAME else choose_key(request, target)
    if cache_key is not None:
        body["prompt_cache_key"] = cache_key
    body |= effort
    if request.format is not None:
        body["response_format"] = _build_format(request.format, target, ledger)
    if request.stream:
        body["stream"] = True
        if "no_stream_options" not in target.quirks:
            body["stream_options"] = {"include_usage": True}
    if request.protocol == NAME:
        restore(body, request.ext)
    elif shared:
        restore(body, shared)
        keep_one_lifetime(body, ledger)
    _record_prefill(request, ledger)
    return _encode(body)


def _shared_ext(request: Request) -> Ext:
    """Return the fields that Responses, which is of the same vendor, spells in the same way."""
    if request.protocol not in OPENAI_PROTOCOLS:
        return {}
    return {
        pointer: value
        for pointer, value in request.ext.items()
        if pointer in _SHARED_FIELDS and (pointer, value) != ("prompt_cache_options/ttl", "12h")  # too long for Chat
    }


def _build_tools(request: Request, target: Target, ledger: Ledger) -> dict[str, object]:
    """Return the fields of the body that list the tools and choose among them."""
    same_protocol = request.protocol == NAME
    body: dict[str, object] = {}
    tools: list[dict[str, object]] = []
    drops_hosted = False
    for tool in request.tools:
        match tool:
            case Function():
                tools.append(_write_function(tool, same_protocol, target, ledger))
            case Custom():
                tools.append(_write_custom(tool, same_protocol))
            case Hosted() if same_protocol:
                _write_hosted(tool, body, tools)
            case Hosted():
                drops_hosted = True
    if drops_hosted:
        _drop_hosted(request, ledger)
    if tools:
        body["tools"] = tools
    if request.tool_choice is not None:
        choice = request.tool_choice
        if choice.pick is Pick.REQUIRED and "no_required" in target.quirks:
            choice = _choose_only_tool(choice, request.tools, ledger)
        body |= _write_choice(choice, request.tools, bool(tools))
    if request.parallel is not None and tools:
        body["parallel_tool_calls"] = request.parallel
    return body


def _write_function(tool: Function, same_protocol: bool, target: Target, ledger: Ledger) -> dict[str, object]:
    function: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    elif "needs_parameters" in target.quirks:
        function["parameters"] = {"type": "object", "properties": {}}  # the same as leaving them out
    if tool.strict is not None:
        function["strict"] = tool.strict
    if tool.deferred:
        ledger.record_approximated(f"{tool.at}/defer_loading", "Chat has no tool search; the tool is offered at once")
    wire: dict[str, object] = {"type": "function", "function": function}
    if same_protocol:
        restore(wire, tool.ext)
    return wire


def _write_custom(tool: Custom, same_protocol: bool) -> dict[str, object]:
    custom: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        custom["description"] = tool.description
    if tool.grammar is not None:
        rules = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
        custom["format"] = {"type": "grammar", "grammar": rules}
    wire: dict[str, object] = {"type": "custom", "custom": custom}
    if same_protocol:
        restore(wire, tool.ext)
    return wire


def _write_hosted(tool: Hosted, body: dict[str, object], tools: list[dict[str, object]]) -> None:
    if tool.at == f"/{SEARCH_OPTIONS}":
        body[SEARCH_OPTIONS] = tool.raw
    elif isinstance(tool.raw, dict):
        tools.append(dict(tool.raw))


def _drop_hosted(request: Request, ledger: Ledger) -> None:
    """Leave out tools that the vendor runs; raise BadRequest if the answer depends on one of them."""
    others = [tool for tool in request.tools if type(tool) is not Hosted]
    for tool in request.tools:
        if type(tool) is not Hosted:
            continue
        if is_indispensable(tool, request.tool_choice, others):
            raise BadRequest(
                tool.at, f"This model's provider cannot run the tool {tool.kind!r}. Remove it or choose another model."
            )
        ledger.record_dropped(tool.at, f"a Chat upstream cannot run {tool.kind!r}")


def _choose_only_tool(choice: ToolChoice, tools: Sequence[Tool], ledger: Ledger) -> ToolChoice:
    """Replace "required" by the name of the only tool, for servers that honour only a named choice."""
    allowed = [t for t in tools if not isinstance(t, Hosted) and (choice.allowed is None or t.name in choice.allowed)]
    if len(allowed) == 1:
        only = allowed[0]
        return ToolChoice(Pick.NAMED, choice.at, name=only.name, custom=isinstance(only, Custom))
    if allowed:
        ledger.record_approximated(choice.at, "this server cannot require one of several tools")
    return choice


def _write_choice(choice: ToolChoice, tools: Sequence[Tool], offered: bool) -> dict[str, object]:
    if choice.hosted is not None:
        raise BadRequest(
            choice.at,
            f"tool_choice names {choice.hosted!r}, which a Chat upstream cannot run. Name a function instead.",
        )
    if not offered:
        if choice.pick in (Pick.REQUIRED, Pick.NAMED):
            raise BadRequest(
                choice.at, "tool_choice requires a tool call, but tools is empty. Add a tool or remove tool_choice."
            )
        return {}
    if choice.pick is Pick.NAMED:
        kind = "custom" if choice.custom else "function"
        return {"tool_choice": {"type": kind, kind: {"name": choice.name}}}
    word = _CHOICES[choice.pick]
    if choice.allowed is None or choice.pick is Pick.NONE:
        return {"tool_choice": word}
    custom = {tool.name for tool in tools if isinstance(tool, Custom)}
    kinds = [("custom" if name in custom else "function", name) for name in choice.allowed]
    allowed = [{"type": kind, kind: {"name": name}} for kind, name in kinds]
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": word, "tools": allowed}}}


def _build_sampling(request: Request, target: Target, effort: object, ledger: Ledger) -> _Wire:
    """Return the sampling settings, which models reject while they think; 1 is the default and no loss."""
    profile, given = target.profile, request.sampling
    sampling: _Wire = {"temperature": given.temperature, "top_p": given.top_p}
    thinks = profile.thinking_default if effort is None else effort != "none"
    if profile.sampling and (profile.sampling_while_thinking or not thinks):
        return _drop_none(sampling)
    unusual = {name: value for name, value in sampling.items() if value != 1}
    return _record_dropped(request, ledger, unusual, f"{target.model} takes no sampling settings")


def _build_settings(request: Request, target: Target, ledger: Ledger) -> _Wire:
    """Return the settings that all servers take, and record those that Chat does not have."""
    same_protocol, sampling = request.protocol == NAME, request.sampling
    settings: _Wire = {}
    if sampling.top_k is not None or request.max_tool_calls is not None:
        settings = _drop_none({"top_k": sampling.top_k, "max_tool_calls": request.max_tool_calls})
        if not same_protocol:
            settings = _record_dropped(request, ledger, settings, "Chat has no such setting")
    max_tokens = _build_max_tokens(request, ledger)
    if max_tokens is not None:
        settings["max_tokens" if "max_tokens" in target.quirks else "max_completion_tokens"] = max_tokens
    if sampling == NO_SAMPLING:
        return settings
    others: _Wire = {
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "seed": sampling.seed,
        "n": sampling.n,
        "stop": _build_stop(request, target, ledger),
        "logprobs": True if sampling.top_logprobs is not None and not same_protocol else sampling.logprobs,
        "top_logprobs": sampling.top_logprobs,
    }
    return settings | _drop_none(others)


def _build_max_tokens(request: Request, ledger: Ledger) -> int | None:
    if request.max_tokens != 0 or request.protocol == NAME:
        return request.max_tokens
    ledger.record_approximated(
        request.pointer("max_tokens"), "Chat cannot warm a cache without answering; one token is requested"
    )
    return 1


def _build_user(request: Request) -> str | None:
    """Return the end user's id, hashed if it is too long for OpenAI, as Claude Code's is."""
    user = request.attribution.user
    if user is None or request.protocol in OPENAI_PROTOCOLS or len(user) <= _USER_MAX:
        return user
    return hashlib.sha256(user.encode(errors="replace")).hexdigest()


def _build_vendor_settings(request: Request, target: Target, ledger: Ledger) -> _Wire:
    """Return settings that most other servers ignore, and that those with the quirk `plain` reject."""
    attribution = request.attribution
    settings: _Wire = {
        "user": _build_user(request),
        "verbosity": request.verbosity,
        "safety_identifier": attribution.safety_identifier,
        "metadata": attribution.metadata,
        "service_tier": attribution.service_tier,
    }
    if request.protocol != NAME and "plain" in target.quirks:
        settings = _record_dropped(request, ledger, settings, "this server rejects it")
    if request.protocol not in OPENAI_PROTOCOLS:
        for name, value in (("user", settings.get("user")), ("service_tier", settings.get("service_tier"))):
            if value is not None:
                ledger.record_approximated(request.pointer(name), "has nearly the same meaning in Chat")
    return _drop_none(settings)


def _drop_none(fields: _Wire) -> _Wire:
    return {name: value for name, value in fields.items() if value is not None}


def _record_dropped(request: Request, ledger: Ledger, fields: _Wire, why: str) -> _Wire:
    for name, value in fields.items():
        if value is not None:
            ledger.record_dropped(request.pointer(name), why)
    return {}


def _build_stop(request: Request, target: Target, ledger: Ledger) -> list[str] | None:
    stops = list(request.sampling.stop)
    if len(stops) > _STOPS_MAX and target.issuer == OPENAI:
        ledger.record_dropped(
            request.pointer("stop"), f"Chat takes {_STOPS_MAX} stop sequences: the others are left out"
        )
        stops = stops[:_STOPS_MAX]
    return stops or None


def _build_format(format: Format, target: Target, ledger: Ledger) -> _Wire:
    if format.shape is not Shape.SCHEMA:
        return {"type": "json_object" if format.shape is Shape.JSON else "text"}
    if "json_object_schema" in target.quirks:
        ledger.record_approximated(
            format.at, "this server takes a schema only beside json_object, without name or strictness"
        )
        return _drop_none({"type": "json_object", "schema": format.schema})
    if format.name is None:
        ledger.record_invented(format.at, f"Chat's schemas need a name: {_SCHEMA_NAME!r}")
    schema = {"name": format.name or _SCHEMA_NAME, "description": format.description}
    return {
        "type": "json_schema",
        "json_schema": _drop_none(schema | {"schema": format.schema, "strict": format.strict}),
    }


def _build_effort(request: Request, target: Target, ledger: Ledger) -> _Wire:
    reasoning = request.reasoning
    if reasoning is None:
        return {}
    if reasoning.show is not None:
        ledger.record_dropped(reasoning.show_at, "Chat has no setting to show reasoning")
    requested, at = _find_effort(reasoning, ledger)
    if requested is None:
        return {}
    accepted = [effort for effort in EFFORTS if effort in target.profile.efforts]
    if target.issuer == OPENAI and "max" in accepted:
        accepted.remove("max")  # known on Responses only
    if not accepted:
        if requested != "none":
            ledger.record_dropped(at, f"{target.model} has no such setting")
        return {}
    effort = _find_nearest_effort(requested, accepted)
    if effort != requested:
        ledger.record_approximated(at, f"{target.model} takes {effort!r}, not {requested!r}")
    elif request.protocol not in OPENAI_PROTOCOLS:
        ledger.record_approximated(at, "vendors scale efforts differently")
    return {"reasoning_effort": effort}


def _find_effort(reasoning: Reasoning, ledger: Ledger) -> tuple[str | None, str]:
    """Return the requested effort, or the one closest to the requested budget, and where the client wrote it."""
    if reasoning.switch is Switch.DISABLED:
        if reasoning.effort is not None:
            ledger.record_dropped(reasoning.at, "with thinking off the effort is none")
        return "none", reasoning.switch_at
    if reasoning.budget is None and reasoning.switch is not None:
        ledger.record_approximated(reasoning.switch_at, "Chat has no switch for thinking")
    if reasoning.effort is not None:
        if reasoning.budget is not None:
            ledger.record_dropped(reasoning.budget_at, "Chat has no thinking budget; the effort is sent instead")
        return reasoning.effort, reasoning.at
    if reasoning.budget is None:
        return None, reasoning.at
    effort = effort_for_budget(reasoning.budget)
    ledger.record_approximated(reasoning.budget_at, f"Chat has no thinking budget: the effort is {effort!r}")
    return effort, reasoning.budget_at


def _find_nearest_effort(effort: str, accepted: list[str]) -> str:
    """Return the closest effort that the model takes, of two the lower one; unknown efforts stay as they are."""
    if effort in accepted or effort not in EFFORTS:
        return effort
    requested = EFFORTS.index(effort)
    thinking = [known for known in accepted if known != "none"] or accepted  # "none" is not a low effort
    return min(thinking, key=lambda known: (abs(EFFORTS.index(known) - requested), EFFORTS.index(known)))


def _record_prefill(request: Request, ledger: Ledger) -> None:
    if request.protocol in OPENAI_PROTOCOLS or not request.turns:
        return
    last = request.turns[-1]
    if last.role is _ASSISTANT and any(isinstance(part, Text) for part in last.parts):
        ledger.record_approximated(last.at, "Chat reads it as history, not as the beginning of the reply")
