"""A hub Request and its target come in; the body for a Responses upstream goes out, or a refusal naming the field."""

import hashlib

import msgspec

from dragoman.hub.ext import note_foreign_fields, restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import EFFORTS, Target, effort_for_budget
from dragoman.hub.request import Ext, Format, Json, Reasoning, Request, Shape, Switch
from dragoman.passes.cache_breakpoint import place_cache_breakpoint
from dragoman.protocols.responses.build_tools import ToolWriter
from dragoman.protocols.responses.build_turns import InputWriter
from dragoman.protocols.responses.wire import ENCRYPTED, LOGPROBS, NAME, Wire

_MIN_OUTPUT = 16
_MAX_IDENTIFIER = 64
_ABSENT_HERE = ("top_k", "frequency_penalty", "presence_penalty", "seed", "stop")
_SHARED = frozenset(("moderation", "prompt_cache_options", "prompt_cache_retention"))
_SHOWN = {"summarized": "auto", "updates": "auto", "omitted": None}  # Messages' word -> ours


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    note_foreign_fields(request, NAME, ledger, _shared(request))
    return msgspec.json.encode(_Body(place_cache_breakpoint(request, ledger), target, ledger).wire())


def _shared(request: Request) -> Ext:
    """What Chat, of the same vendor, says with the same words."""
    if request.protocol != "chat":
        return {}
    return {pointer: value for pointer, value in request.ext.items() if pointer.partition("/")[0] in _SHARED}


class _Body:
    def __init__(self, request: Request, target: Target, ledger: Ledger) -> None:
        self._request = request
        self._target = target
        self._ledger = ledger
        self._own = request.protocol == NAME
        self._from_messages = request.protocol == "messages"

    def wire(self) -> Wire:
        request = self._request
        self._refuse_and_drop()
        wire: Wire = {"model": self._target.model}
        self._conversation(wire)
        tools = ToolWriter(request, self._ledger)
        _put(wire, "tools", tools.tools() or None)
        _put(wire, "tool_choice", tools.choice())
        _put(wire, "parallel_tool_calls", request.parallel)
        _put(wire, "max_tool_calls", request.max_tool_calls)
        reasoning = self._reasoning()
        self._sampling(wire, reasoning or {})
        self._cap(wire)
        _put(wire, "reasoning", reasoning)
        _put(wire, "text", self._text())
        self._identity(wire)
        wire["store"] = request.raw.get("store", True) if self._own else False
        _put(wire, "include", self._include() or None)
        wire["stream"] = request.stream
        restore(wire, request.ext if self._own else _shared(request))
        return wire

    def _refuse_and_drop(self) -> None:
        request = self._request
        if request.n is not None and request.n > 1:
            raise BadRequest(
                request.pointer("n"), f"n must be 1: a Responses upstream gives one answer, not {request.n}"
            )
        for name in _ABSENT_HERE:
            if getattr(request, name) not in (None, ()):
                self._ledger.note_dropped(request.pointer(name), f"responses has no {name}")

    def _conversation(self, wire: Wire) -> None:
        writer = InputWriter(self._request, self._target, self._ledger)
        instructions, turns = writer.instructions()
        _put(wire, "instructions", instructions)
        wire["input"] = writer.items(turns)

    def _sampling(self, wire: Wire, reasoning: Wire) -> None:
        profile = self._target.profile
        effort = reasoning.get("effort")
        thinks = profile.thinking_default if effort is None else effort != "none"
        taken = profile.sampling and (profile.sampling_while_thinking or not thinks)
        for name in ("temperature", "top_p"):
            value = getattr(self._request, name)
            if value is None:
                continue
            if taken:
                wire[name] = value
            elif value != 1:
                why = f"{self._target.model} takes no {name}{' while it thinks' if profile.sampling else ''}"
                self._ledger.note_dropped(self._request.pointer(name), why)
        _put(wire, "top_logprobs", self._request.top_logprobs)

    def _cap(self, wire: Wire) -> None:
        asked = self._request.max_tokens
        if asked is None:
            return
        if asked == 0:
            wire["prompt_cache_options"] = {"prewarm": True}
            return
        most = self._target.profile.max_output
        cap = max(asked, _MIN_OUTPUT) if most is None else min(max(asked, _MIN_OUTPUT), most)
        if cap != asked:
            self._ledger.note_approximated(self._request.pointer("max_tokens"), f"the upstream takes {cap} instead")
        wire["max_output_tokens"] = cap

    # Reasoning

    def _reasoning(self) -> Wire | None:
        asked = self._request.reasoning
        if asked is None:
            return None
        wire: Wire = {}
        _put(wire, "effort", self._effort(asked))
        _put(wire, "summary", self._summary(asked))
        return wire or None

    def _effort(self, asked: Reasoning) -> str | None:
        if asked.switch is Switch.DISABLED:
            return self._switched_off(asked)
        if asked.switch is not None and asked.budget is None:
            self._ledger.note_approximated(asked.switch_at, "responses has no switch for thinking, only its effort")
        if asked.effort is not None:
            if asked.budget is not None:
                self._ledger.note_dropped(asked.budget_at, "responses has no thinking budget: the effort says it")
            if self._from_messages:
                self._ledger.note_approximated(asked.at, "what an effort means differs between vendors")
            return self._fitted(asked.effort, asked.at)
        if asked.budget is None:
            return None
        effort = effort_for_budget(asked.budget)
        self._ledger.note_approximated(
            asked.budget_at or asked.at, f"a budget of thought becomes the effort {effort!r}"
        )
        return self._fitted(effort, asked.budget_at or asked.at)

    def _switched_off(self, asked: Reasoning) -> str | None:
        if asked.effort is not None:
            self._ledger.note_dropped(asked.at, "with thinking off the effort is none")
        if self._target.profile.efforts:
            self._ledger.note_approximated(asked.switch_at, "responses has no switch for thinking, only its effort")
        return self._fitted("none", asked.switch_at)

    def _fitted(self, effort: str, at: str) -> str | None:
        """The effort, or the nearest that the model takes: the next lower one, else the lowest."""
        efforts = self._target.profile.efforts
        if effort in efforts or effort not in EFFORTS:
            return effort
        if not efforts:
            if effort != "none":
                self._ledger.note_dropped(at, f"{self._target.model} has no effort to set")
            return None
        ranked = sorted((known for known in efforts if known != "none"), key=EFFORTS.index)
        lower = [known for known in ranked if EFFORTS.index(known) < EFFORTS.index(effort)]
        nearest = lower[-1] if lower else ranked[0]  # never none: little thought is not no thought
        self._ledger.note_approximated(at, f"{self._target.model} takes {nearest!r} instead of {effort!r}")
        return nearest

    def _summary(self, asked: Reasoning) -> str | None:
        if asked.show is None or asked.show not in _SHOWN:
            return asked.show
        self._ledger.note_approximated(asked.show_at or asked.at, "responses shows a summary of its own kind, or none")
        return _SHOWN[asked.show]

    # The rest

    def _text(self) -> Wire | None:
        wire: Wire = {}
        if self._request.format is not None:
            _put(wire, "format", self._format(self._request.format))
        _put(wire, "verbosity", self._request.verbosity)
        return wire or None

    def _format(self, asked: Format) -> Wire | None:
        match asked.shape:
            case Shape.TEXT:
                return None
            case Shape.JSON:
                return {"type": "json_object"}
            case Shape.SCHEMA:
                if asked.name is None:
                    self._ledger.note_invented(asked.at, "responses wants the schema named: response")
                wire: Wire = {"type": "json_schema", "name": asked.name or "response", "schema": asked.schema}
                _put(wire, "description", asked.description)
                _put(wire, "strict", asked.strict)
                return wire

    def _identity(self, wire: Wire) -> None:
        request = self._request
        _put(wire, "prompt_cache_key", request.cache_key)
        _put(wire, "safety_identifier", request.safety_identifier)
        _put(wire, "metadata", request.metadata)
        _put(wire, "service_tier", request.service_tier)
        if self._from_messages and request.service_tier is not None:
            self._ledger.note_approximated(request.pointer("service_tier"), "the vendors' tiers differ")
        if request.user is None:
            return
        if not self._from_messages:
            wire["user"] = request.user
        else:
            self._ledger.note_approximated(
                request.pointer("user"), "sent as the safety_identifier, hashed if it is long"
            )
            long = len(request.user) > _MAX_IDENTIFIER
            named = hashlib.sha256(request.user.encode()).hexdigest() if long else request.user
            wire.setdefault("safety_identifier", named)

    def _include(self) -> list[Json]:
        request = self._request
        include: list[Json] = []
        portable = bool(self._target.profile.efforts)  # an error on a model that does not reason
        if request.encrypted_reasoning if self._own else portable:
            include.append(ENCRYPTED)
        if request.logprobs:
            include.append(LOGPROBS)
        if self._own:
            include += [value for key, value in request.ext.items() if key.startswith("include/")]
        return include


def _put(wire: Wire, key: str, value: Json) -> None:
    if value is not None:
        wire[key] = value
