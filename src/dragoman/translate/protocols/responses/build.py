"""Build the body of a Responses request for an upstream from a hub request."""

import hashlib

import msgspec

from dragoman.translate.caching.breakpoints import choose_key, keep_one_lifetime, mark_parts
from dragoman.translate.hub.ext import record_foreign_fields, restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import EFFORTS, Target, effort_for_budget
from dragoman.translate.hub.request import NO_SAMPLING, Ext, Format, Json, Reasoning, Request, Shape, Switch
from dragoman.translate.protocols.responses.build_tools import ToolBuilder
from dragoman.translate.protocols.responses.build_turns import InputBuilder
from dragoman.translate.protocols.responses.wire import (
    ENCRYPTED,
    LOGPROBS,
    NAME,
    OPENAI_PROTOCOLS,
    SOURCES,
    ResponsesOptions,
    Wire,
)

_MIN_OUTPUT = 16
_encode = msgspec.json.Encoder().encode
_MAX_IDENTIFIER = 64
_UNSUPPORTED = ("top_k", "frequency_penalty", "presence_penalty", "seed", "stop")
_SHARED_FIELDS = frozenset(("moderation", "prompt_cache_options", "prompt_cache_retention"))
_NO_OPTIONS = ResponsesOptions()
_SUMMARIES = {"summarized": "auto", "updates": "auto", "omitted": None}  # Messages' display -> summary


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    record_foreign_fields(request, NAME, ledger, _shared_ext(request))
    return _encode(_BodyBuilder(request, target, ledger).build())


def _shared_ext(request: Request) -> Ext:
    """Return the fields that Chat, which is of the same vendor, spells in the same way."""
    if request.protocol != "chat":
        return {}
    return {pointer: value for pointer, value in request.ext.items() if pointer.partition("/")[0] in _SHARED_FIELDS}


class _BodyBuilder:
    def __init__(self, request: Request, target: Target, ledger: Ledger) -> None:
        self._request = request
        self._target = target
        self._ledger = ledger
        self._same_protocol = request.protocol == NAME
        self._from_messages = request.protocol == "messages"
        self._from_other_vendor = request.protocol not in OPENAI_PROTOCOLS
        options = target.options
        self._options = options if isinstance(options, ResponsesOptions) else _NO_OPTIONS

    def build(self) -> Wire:
        request = self._request
        if request.sampling != NO_SAMPLING:
            self._drop_unsupported()
        wire: Wire = {"model": self._target.model}
        self._add_conversation(wire)
        tools = ToolBuilder(request, self._ledger)
        _set_if_given(wire, "tools", tools.tools() or None)
        _set_if_given(wire, "tool_choice", tools.choice())
        _set_if_given(wire, "parallel_tool_calls", request.parallel)
        _set_if_given(wire, "max_tool_calls", request.max_tool_calls)
        reasoning = self._build_reasoning()
        if request.sampling != NO_SAMPLING:
            self._add_sampling(wire, reasoning or {})
        self._add_max_tokens(wire)
        _set_if_given(wire, "reasoning", reasoning)
        _set_if_given(wire, "text", self._build_text())
        self._add_identity(wire)
        wire["store"] = request.raw.get("store", True) if self._same_protocol else False
        _set_if_given(wire, "include", self._build_include() or None)
        wire["stream"] = request.stream
        if self._same_protocol:
            restore(wire, request.ext)
        elif shared := _shared_ext(request):
            restore(wire, shared)
            keep_one_lifetime(wire, self._ledger)
        return wire

    def _drop_unsupported(self) -> None:
        request = self._request
        count = request.sampling.n
        if count is not None and count > 1:
            message = f"n must be 1, got {count}: a Responses upstream returns one answer."
            raise BadRequest(request.pointer("n"), message)
        for name in _UNSUPPORTED:
            if getattr(request.sampling, name) not in (None, ()):
                self._ledger.record_dropped(request.pointer(name), f"Responses has no {name}")

    def _add_conversation(self, wire: Wire) -> None:
        writer = InputBuilder(self._request, self._target, self._ledger)
        instructions, turns = writer.instructions()
        _set_if_given(wire, "instructions", instructions)
        wire["input"] = items = writer.items(turns)
        if not self._same_protocol and self._target.cache.breakpoints:
            head, plan, same_vendor = writer.find_head(items), self._target.cache, not self._from_other_vendor
            mark_parts(self._request, head, writer.marked, plan, same_vendor=same_vendor)

    def _add_sampling(self, wire: Wire, reasoning: Wire) -> None:
        profile = self._target.profile
        effort = reasoning.get("effort")
        thinks = profile.thinking_default if effort is None else effort != "none"
        allowed = profile.sampling and (profile.sampling_while_thinking or not thinks)
        for name in ("temperature", "top_p"):
            value = getattr(self._request.sampling, name)
            if value is None:
                continue
            if allowed:
                wire[name] = value
            elif value != 1:
                why = f"{self._target.model} takes no {name}{' while it thinks' if profile.sampling else ''}"
                self._ledger.record_dropped(self._request.pointer(name), why)
        _set_if_given(wire, "top_logprobs", self._request.sampling.top_logprobs)

    def _add_max_tokens(self, wire: Wire) -> None:
        requested = self._request.max_tokens
        if requested is None:
            return
        if requested == 0:
            wire["prompt_cache_options"] = {"prewarm": True}
            return
        most = self._target.profile.max_output
        cap = max(requested, _MIN_OUTPUT) if most is None else min(max(requested, _MIN_OUTPUT), most)
        if cap != requested:
            self._ledger.record_approximated(self._request.pointer("max_tokens"), f"the upstream takes {cap} instead")
        wire["max_output_tokens"] = cap

    # Reasoning

    def _build_reasoning(self) -> Wire | None:
        requested = self._request.reasoning
        if requested is None:
            return None
        wire: Wire = {}
        _set_if_given(wire, "effort", self._choose_effort(requested))
        _set_if_given(wire, "summary", self._choose_summary(requested))
        return wire or None

    def _choose_effort(self, requested: Reasoning) -> str | None:
        if requested.switch is Switch.DISABLED:
            return self._choose_effort_off(requested)
        if requested.switch is not None and requested.budget is None:
            self._ledger.record_approximated(
                requested.switch_at, "Responses has no switch for thinking, only its effort"
            )
        if requested.effort is not None:
            if requested.budget is not None:
                self._ledger.record_dropped(
                    requested.budget_at, "Responses has no thinking budget; the effort is sent instead"
                )
            if self._from_other_vendor:
                self._ledger.record_approximated(requested.at, "what an effort means differs between vendors")
            return self._fit_effort(requested.effort, requested.at)
        if requested.budget is None:
            return None
        effort = effort_for_budget(requested.budget)
        self._ledger.record_approximated(
            requested.budget_at or requested.at, f"the thinking budget becomes the effort {effort!r}"
        )
        return self._fit_effort(effort, requested.budget_at or requested.at)

    def _choose_effort_off(self, requested: Reasoning) -> str | None:
        if requested.effort is not None:
            self._ledger.record_dropped(requested.at, "with thinking off the effort is none")
        if self._efforts:
            self._ledger.record_approximated(
                requested.switch_at, "Responses has no switch for thinking, only its effort"
            )
        return self._fit_effort("none", requested.switch_at)

    @property
    def _efforts(self) -> tuple[str, ...]:
        efforts = self._options.efforts
        return self._target.profile.efforts if efforts is None else efforts

    def _fit_effort(self, effort: str, at: str) -> str | None:
        """Return the effort, or the nearest that the model takes: the next lower one, else the lowest."""
        efforts = self._efforts
        if effort in efforts or effort not in EFFORTS:
            return effort
        if not efforts:
            if effort != "none":
                self._ledger.record_dropped(at, f"{self._target.model} has no effort to set")
            return None
        ranked = sorted((known for known in efforts if known != "none"), key=EFFORTS.index)
        lower = [known for known in ranked if EFFORTS.index(known) < EFFORTS.index(effort)]
        nearest = lower[-1] if lower else ranked[0]  # never "none", which is not a low effort
        self._ledger.record_approximated(at, f"{self._target.model} takes {nearest!r} instead of {effort!r}")
        return nearest

    def _choose_summary(self, requested: Reasoning) -> str | None:
        if requested.show is not None and not self._options.summaries:
            self._ledger.record_dropped(requested.show_at or requested.at, f"{self._target.model} has no summaries")
            return None
        if requested.show is None or requested.show not in _SUMMARIES:
            return requested.show
        self._ledger.record_approximated(requested.show_at or requested.at, "Responses has other kinds of summaries")
        return _SUMMARIES[requested.show]

    # The rest

    def _build_text(self) -> Wire | None:
        wire: Wire = {}
        if self._request.format is not None:
            _set_if_given(wire, "format", self._build_format(self._request.format))
        _set_if_given(wire, "verbosity", self._request.verbosity)
        return wire or None

    def _build_format(self, requested: Format) -> Wire | None:
        match requested.shape:
            case Shape.TEXT:
                return None
            case Shape.JSON:
                return {"type": "json_object"}
            case Shape.SCHEMA:
                if requested.name is None:
                    self._ledger.record_invented(requested.at, "Responses wants the schema named: response")
                wire: Wire = {"type": "json_schema", "name": requested.name or "response", "schema": requested.schema}
                _set_if_given(wire, "description", requested.description)
                _set_if_given(wire, "strict", requested.strict)
                return wire

    def _add_identity(self, wire: Wire) -> None:
        request, attribution = self._request, self._request.attribution
        key = request.cache_key if self._same_protocol else choose_key(request, self._target)
        _set_if_given(wire, "prompt_cache_key", key)
        _set_if_given(wire, "safety_identifier", attribution.safety_identifier)
        _set_if_given(wire, "metadata", attribution.metadata)
        _set_if_given(wire, "service_tier", attribution.service_tier)
        if self._from_other_vendor and attribution.service_tier is not None:
            self._ledger.record_approximated(request.pointer("service_tier"), "the vendors' tiers differ")
        if attribution.user is None:
            return
        if not self._from_messages:
            wire["user"] = attribution.user
        else:
            self._ledger.record_approximated(
                request.pointer("user"), "sent as the safety_identifier, hashed if it is long"
            )
            long = len(attribution.user) > _MAX_IDENTIFIER
            named = hashlib.sha256(attribution.user.encode()).hexdigest() if long else attribution.user
            wire.setdefault("safety_identifier", named)

    def _build_include(self) -> list[Json]:
        request = self._request
        include: list[Json] = []
        portable = bool(self._target.profile.efforts)  # models that do not reason reject it
        is_requested = request.extras.encrypted_reasoning if self._same_protocol else portable
        if is_requested or (request.extras.kept and portable):
            include.append(ENCRYPTED)
        if request.sampling.logprobs:
            include.append(LOGPROBS)
        if request.extras.search_sources:
            include.append(SOURCES)
        if self._same_protocol:
            include += [value for key, value in request.ext.items() if key.startswith("include/")]
        return include


def _set_if_given(wire: Wire, key: str, value: Json) -> None:
    if value is not None:
        wire[key] = value
