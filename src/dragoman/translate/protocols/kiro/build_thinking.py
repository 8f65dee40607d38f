"""Build the request fields, or the tags for the prompt, that ask a Kiro model to think."""

from collections.abc import Iterator

from msgspec import Struct

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import DEFAULT_EFFORT, EFFORTS, Target, effort_for_budget
from dragoman.translate.hub.request import Reasoning, Request, Switch
from dragoman.translate.passes.adapt_tools import Schema, find_reference
from dragoman.translate.protocols.kiro.wire import KiroOptions

_BRANCHES = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH = 20
Fields = dict[str, object]
MODE_TAG = "<thinking_mode>"
USUAL_BUDGET = 4000
MAX_BUDGET = 10_000
_DISPLAYS = {"summarized": "summarized", "omitted": "omitted"}
_SUMMARIES = ("auto", "concise", "detailed")


class NativeFields(Struct, eq=False):
    """`additionalModelRequestFieldsSchema`: Kiro rejects a request whose fields do not satisfy it."""

    _schema: Schema

    def declares(self, *path: str) -> bool:
        """Return whether the schema declares a field; others may be rejected."""
        return next(self._find_schemas(path), None) is not None

    def accepts(self, fields: Schema) -> bool:
        import jsonschema_rs  # 4 MB: only where a model lists a schema

        try:
            return bool(jsonschema_rs.is_valid(self._schema, fields, offline=True))
        except ValueError:  # the schema itself is invalid
            return False

    def maximum(self, *path: str) -> int | None:
        maxima = [schema.get("maximum") for schema in self._find_schemas(path)]
        return min((int(most) for most in maxima if isinstance(most, int | float)), default=None)

    def _find_schemas(self, path: tuple[str, ...]) -> Iterator[Schema]:
        found = [self._schema]
        for name in path:
            found = [
                schema
                for holder in found
                for branch in self._branches(holder, 0)
                if isinstance(schema := _properties(branch).get(name), dict)
            ]
        for schema in found:
            yield from self._branches(schema, 0)

    def _branches(self, schema: Schema, depth: int) -> Iterator[Schema]:
        """Yield the schema itself and everything it is composed of."""
        if depth > _MAX_DEPTH:
            return
        yield schema
        for key in _BRANCHES:
            branches = schema.get(key)
            for branch in branches if isinstance(branches, list) else ():
                if isinstance(branch, dict):
                    yield from self._branches(branch, depth + 1)
        target = find_reference(schema.get("$ref"), self._schema)
        if isinstance(target, dict):
            yield from self._branches(target, depth + 1)


def _properties(schema: Schema) -> Schema:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


class ThinkingPlan(Struct, frozen=True):
    """How to ask for thinking; both fields are empty if there is nothing to send."""

    fields: Fields = {}  # for additionalModelRequestFields
    tags: str = ""  # for the front of the system prompt


def plan_thinking(request: Request, target: Target, options: KiroOptions, ledger: Ledger) -> ThinkingPlan:
    reasoning, by = request.reasoning, options.thinking_by
    if reasoning is None:
        return ThinkingPlan()
    if options.fields_schema is not None and by in ("auto", "native"):
        fields = _NativePlan(reasoning, request.protocol, NativeFields(options.fields_schema), ledger).plan()
        if fields is not None:
            return ThinkingPlan(fields)
    if by in ("auto", "tags"):
        return ThinkingPlan(tags=_TagPlan(reasoning, request.protocol, target.budgets, ledger).plan())
    if _wants_thinking(reasoning) is not False:
        for at in _setting_pointers(reasoning):
            ledger.record_dropped(at, "this model has no setting for thinking")
    return ThinkingPlan()


def _wants_thinking(reasoning: Reasoning) -> bool | None:
    """Return whether to think; None if only an effort is set, which protocols treat differently."""
    match reasoning.switch:
        case Switch.DISABLED | Switch.BETWEEN_TOOLS:
            return False
        case Switch.ENABLED | Switch.ADAPTIVE:
            return True
    if reasoning.effort == "none":
        return False
    return True if reasoning.show not in (None, "omitted") else None


def _setting_pointers(reasoning: Reasoning) -> Iterator[str]:
    """Yield the pointer of every setting about thinking."""
    if reasoning.effort is not None or reasoning.switch is None:
        yield reasoning.at
    if reasoning.switch is not None:
        yield reasoning.switch_at
    if reasoning.budget is not None:
        yield reasoning.budget_at
    if reasoning.show is not None:
        yield reasoning.show_at


def _order_efforts(effort: str) -> list[str]:
    """Return the efforts to try for one: itself, lower ones, then higher ones."""
    rank = EFFORTS.index(effort) if effort in EFFORTS else EFFORTS.index("medium")
    weaker, stronger = EFFORTS[1:rank][::-1], EFFORTS[rank + 1 :]
    above = ("max",) if effort == "xhigh" else ()
    return list(dict.fromkeys((effort, *above, *weaker, *stronger)))


class _NativePlan:
    """Choose request fields that the model's schema accepts."""

    __slots__ = ("_claude", "_ledger", "_protocol", "_reasoning", "_schema")

    def __init__(self, reasoning: Reasoning, protocol: str, schema: NativeFields, ledger: Ledger) -> None:
        self._reasoning = reasoning
        self._protocol = protocol
        self._schema = schema
        self._ledger = ledger
        self._claude = schema.declares("thinking") or schema.declares("output_config")

    def plan(self) -> Fields | None:
        """Return the fields; None if this model has none that express the request."""
        if not self._claude and not self._schema.declares("reasoning"):
            return None
        is_requested = _wants_thinking(self._reasoning)
        if is_requested is None and not self._schema.declares("output_config") and self._protocol != "messages":
            is_requested = True
        effort = self._choose_effort(is_requested)
        if is_requested and not self._claude and effort is None and self._reasoning.show is None:
            self._ledger.record_approximated(self._reasoning.switch_at, "this model decides itself how much to think")
            return {}
        candidates = self._claude_candidates(is_requested, effort) if self._claude else self._gpt_candidates(effort)
        fields = next((fields for fields in candidates if self._schema.accepts(fields)), None)
        if fields is None:
            if is_requested is not False:
                return None
            self._ledger.record_approximated(
                self._reasoning.switch_at or self._reasoning.at, "this model's thinking cannot be disabled"
            )
            return {}
        self._record_differences(is_requested, fields)
        return fields

    def _choose_effort(self, is_requested: bool | None) -> str | None:
        reasoning = self._reasoning
        if is_requested is False and not self._claude:
            return "none"
        if reasoning.effort is not None:
            return None if reasoning.effort == "none" else reasoning.effort
        return effort_for_budget(reasoning.budget) if reasoning.switch is Switch.ENABLED else None

    def _claude_candidates(self, is_requested: bool | None, effort: str | None) -> Iterator[Fields]:
        for thinking in self._thinking_candidates(is_requested):
            for level in (*(_order_efforts(effort) if effort else ()), None):
                fields: Fields = {} if thinking is None else {"thinking": thinking}
                if level is not None and self._schema.declares("output_config", "effort"):
                    fields["output_config"] = {"effort": level}
                if fields:
                    yield fields

    def _thinking_candidates(self, is_requested: bool | None) -> Iterator[Fields | None]:
        if is_requested is None or not self._schema.declares("thinking"):
            yield None
            return
        if not is_requested:
            yield {"type": "disabled"}
            return
        if self._reasoning.show is not None and self._schema.declares("thinking", "display"):
            yield {"type": "adaptive", "display": _DISPLAYS.get(self._reasoning.show, "summarized")}
        yield {"type": "adaptive"}

    def _gpt_candidates(self, effort: str | None) -> Iterator[Fields]:
        show = self._reasoning.show
        summary: Fields = {}
        if show not in (None, "omitted") and self._schema.declares("reasoning", "summary"):
            summary = {"summary": show if show in _SUMMARIES else "auto"}
        for shown in (summary, {}):
            for level in _order_efforts(effort) if effort else ():
                yield {"reasoning": {"effort": level, **shown}}
            if shown and not effort:
                yield {"reasoning": shown}

    def _record_differences(self, is_requested: bool | None, fields: Fields) -> None:
        """Record how the fields differ from the client's settings."""
        reasoning, ledger = self._reasoning, self._ledger
        if reasoning.is_default:
            return
        output, thinking, gpt = (
            dict(value) if isinstance(value := fields.get(key), dict) else {}
            for key in ("output_config", "thinking", "reasoning")
        )
        sent = output.get("effort") or gpt.get("effort")
        if is_requested is False and not self._claude and sent != "none":
            ledger.record_approximated(
                reasoning.switch_at or reasoning.at, "this model always thinks; the lowest effort is requested"
            )
        if reasoning.effort not in (None, "none") and sent is None:
            ledger.record_dropped(reasoning.at, "this model does not support reasoning effort")
        elif reasoning.effort is not None and sent not in (None, reasoning.effort):
            ledger.record_approximated(reasoning.at, f"the nearest effort of this model is {sent!r}")
        elif reasoning.effort is not None and self._claude != (self._protocol == "messages"):
            ledger.record_approximated(reasoning.at, "vendors scale efforts differently")
        if reasoning.switch is Switch.BETWEEN_TOOLS:
            ledger.record_approximated(reasoning.switch_at, "this model cannot think between tools only")
        if reasoning.switch is Switch.ENABLED:
            ledger.record_approximated(reasoning.switch_at, "this model decides itself how much to think")
        if reasoning.budget is not None:
            ledger.record_approximated(reasoning.budget_at, "this model takes an effort, not a budget")
        if reasoning.switch is Switch.ADAPTIVE and not thinking:
            ledger.record_approximated(reasoning.switch_at, "only an effort is sent")
        shown = thinking.get("display") or gpt.get("summary")
        if reasoning.show is not None and shown is None:
            ledger.record_dropped(reasoning.show_at, "this model has no setting for what it shows of its reasoning")
        elif shown != reasoning.show:
            ledger.record_approximated(reasoning.show_at, f"reasoning is shown as {shown!r}")


class _TagPlan(Struct, eq=False):
    """Choose tags that ask a model in its prompt to think aloud."""

    _reasoning: Reasoning
    _protocol: str
    _budgets: dict[str, int]
    _ledger: Ledger

    def plan(self) -> str:
        reasoning, is_requested = self._reasoning, _wants_thinking(self._reasoning)
        if is_requested is False:
            self._record_off()
            return ""
        if is_requested is None and self._protocol == "messages":  # an effort alone does not enable it
            self._ledger.record_dropped(reasoning.at, "this model does not support reasoning effort")
            return ""
        for at in _setting_pointers(reasoning):
            self._ledger.record_approximated(at, "the prompt asks for thinking, which is shown as it is")
        adaptive = reasoning.switch is Switch.ADAPTIVE or (reasoning.switch is None and reasoning.effort is None)
        return self._adaptive_tags() if adaptive else self._budget_tags()

    def _record_off(self) -> None:
        reasoning = self._reasoning
        if reasoning.switch is Switch.BETWEEN_TOOLS:
            self._ledger.record_approximated(reasoning.switch_at, "thinking is off for the whole reply")
        if reasoning.switch is not None and reasoning.effort is not None:
            self._ledger.record_dropped(reasoning.at, "this model does not support reasoning effort")
        if reasoning.show is not None:
            self._ledger.record_dropped(reasoning.show_at, "without thinking there is nothing to show")

    def _adaptive_tags(self) -> str:
        effort = self._reasoning.effort if self._reasoning.effort in EFFORTS[2:] else None
        if self._reasoning.effort == "minimal":
            effort = "low"
        return f"{MODE_TAG}adaptive</thinking_mode><thinking_effort>{effort or DEFAULT_EFFORT}</thinking_effort>"

    def _budget_tags(self) -> str:
        reasoning = self._reasoning
        budget = reasoning.budget or self._budgets.get(reasoning.effort or "", USUAL_BUDGET)
        return f"{MODE_TAG}enabled</thinking_mode><max_thinking_length>{min(budget, MAX_BUDGET)}</max_thinking_length>"
