"""Build the request fields, or the tags for the prompt, that ask a Kiro model to think."""

from collections.abc import Iterator

import jsonschema_rs
from msgspec import Struct

from dragoman.hub.loss import Ledger
from dragoman.hub.profile import DEFAULT_EFFORT, EFFORTS, Target, effort_for_budget
from dragoman.hub.request import Reasoning, Request, Switch
from dragoman.protocols.kiro.wire import KiroOptions

Schema = dict[str, object]
_BRANCHES = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH = 20
Fields = dict[str, object]
MODE_TAG = "<thinking_mode>"
USUAL_BUDGET = 4000
MAX_BUDGET = 10_000
_DISPLAYS = {"summarized": "summarized", "omitted": "omitted"}
_SUMMARIES = ("auto", "concise", "detailed")


class NativeFields:
    """`additionalModelRequestFieldsSchema`: a value that does not satisfy it costs the whole request."""

    __slots__ = ("_schema",)

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def declares(self, *path: str) -> bool:
        """Whether the schema speaks of such a field; what it does not mention may be refused."""
        return next(self._schemas_at(path), None) is not None

    def accepts(self, fields: Schema) -> bool:
        try:
            return bool(jsonschema_rs.is_valid(self._schema, fields, offline=True))
        except ValueError:  # the schema itself is wrong
            return False

    def maximum(self, *path: str) -> int | None:
        told = [schema.get("maximum") for schema in self._schemas_at(path)]
        return min((int(most) for most in told if isinstance(most, int | float)), default=None)

    def _schemas_at(self, path: tuple[str, ...]) -> Iterator[Schema]:
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
        """The schema itself and whatever it is composed of."""
        if depth > _MAX_DEPTH:
            return
        yield schema
        for key in _BRANCHES:
            branches = schema.get(key)
            for branch in branches if isinstance(branches, list) else ():
                if isinstance(branch, dict):
                    yield from self._branches(branch, depth + 1)
        referred = self._referred(schema.get("$ref"))
        if referred is not None:
            yield from self._branches(referred, depth + 1)

    def _referred(self, reference: object) -> Schema | None:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        found: object = self._schema
        for name in reference[2:].split("/"):
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None


def _properties(schema: Schema) -> Schema:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


class Thought(Struct, frozen=True):
    """How thinking is asked for; both empty where nothing need be said."""

    fields: Fields = {}  # for additionalModelRequestFields
    tags: str = ""  # for the front of the system prompt


def plan_thinking(request: Request, target: Target, options: KiroOptions, ledger: Ledger) -> Thought:
    wish, by = request.reasoning, options.thinking_by
    if wish is None:
        return Thought()
    if options.fields_schema is not None and by in ("auto", "native"):
        fields = _Native(wish, request.protocol, NativeFields(options.fields_schema), ledger).plan()
        if fields is not None:
            return Thought(fields)
    if by in ("auto", "tags"):
        return Thought(tags=_Tags(wish, request.protocol, target.budgets, ledger).plan())
    if _is_on(wish) is not False:
        for at in _places(wish):
            ledger.note_dropped(at, "this model cannot be asked to think here")
    return Thought()


def _is_on(wish: Reasoning) -> bool | None:
    """Whether to think; None where only an effort is named, which is not the same in every protocol."""
    match wish.switch:
        case Switch.DISABLED | Switch.BETWEEN_TOOLS:
            return False
        case Switch.ENABLED | Switch.ADAPTIVE:
            return True
    if wish.effort == "none":
        return False
    return True if wish.show not in (None, "omitted") else None


def _places(wish: Reasoning) -> Iterator[str]:
    """Every place where the client said something about thinking."""
    if wish.effort is not None or wish.switch is None:
        yield wish.at
    if wish.switch is not None:
        yield wish.switch_at
    if wish.budget is not None:
        yield wish.budget_at
    if wish.show is not None:
        yield wish.show_at


def _nearest(effort: str) -> list[str]:
    """Efforts in the order in which they may stand for one: itself, weaker ones, stronger ones."""
    rank = EFFORTS.index(effort) if effort in EFFORTS else EFFORTS.index("medium")
    weaker, stronger = EFFORTS[1:rank][::-1], EFFORTS[rank + 1 :]
    above = ("max",) if effort == "xhigh" else ()
    return list(dict.fromkeys((effort, *above, *weaker, *stronger)))


class _Native:
    """Fields that the model's schema accepts."""

    __slots__ = ("_claude", "_ledger", "_protocol", "_schema", "_wish")

    def __init__(self, wish: Reasoning, protocol: str, schema: NativeFields, ledger: Ledger) -> None:
        self._wish = wish
        self._protocol = protocol
        self._schema = schema
        self._ledger = ledger
        self._claude = schema.declares("thinking") or schema.declares("output_config")

    def plan(self) -> Fields | None:
        """None: this model has no such fields, or none that say what is wished."""
        if not self._claude and not self._schema.declares("reasoning"):
            return None
        on = _is_on(self._wish)
        if on is None and not self._schema.declares("output_config") and self._protocol != "messages":
            on = True
        effort = self._asked_effort(on)
        if on and not self._claude and effort is None and self._wish.show is None:
            self._ledger.note_approximated(self._wish.switch_at, "this model thinks as it sees fit")
            return {}
        candidates = self._claude_fields(on, effort) if self._claude else self._gpt_fields(effort)
        fields = next((fields for fields in candidates if self._schema.accepts(fields)), None)
        if fields is None:
            return self._helpless(on)
        self._tell(on, effort, fields)
        return fields

    def _helpless(self, on: bool | None) -> Fields | None:
        if on is not False:
            return None
        self._ledger.note_approximated(self._wish.switch_at or self._wish.at, "this model cannot be told not to think")
        return {}

    def _asked_effort(self, on: bool | None) -> str | None:
        wish = self._wish
        if on is False and not self._claude:
            return "none"
        if wish.effort is not None:
            return None if wish.effort == "none" else wish.effort
        return effort_for_budget(wish.budget) if wish.switch is Switch.ENABLED else None

    def _claude_fields(self, on: bool | None, effort: str | None) -> Iterator[Fields]:
        for thinking in self._thinkings(on):
            for level in (*(_nearest(effort) if effort else ()), None):
                fields: Fields = {} if thinking is None else {"thinking": thinking}
                if level is not None and self._schema.declares("output_config", "effort"):
                    fields["output_config"] = {"effort": level}
                if fields:
                    yield fields

    def _thinkings(self, on: bool | None) -> Iterator[Fields | None]:
        if on is None or not self._schema.declares("thinking"):
            yield None
            return
        if not on:
            yield {"type": "disabled"}
            return
        if self._wish.show is not None and self._schema.declares("thinking", "display"):
            yield {"type": "adaptive", "display": _DISPLAYS.get(self._wish.show, "summarized")}
        yield {"type": "adaptive"}

    def _gpt_fields(self, effort: str | None) -> Iterator[Fields]:
        show = self._wish.show
        summary: Fields = {}
        if show not in (None, "omitted") and self._schema.declares("reasoning", "summary"):
            summary = {"summary": show if show in _SUMMARIES else "auto"}
        for shown in (summary, {}):
            for level in _nearest(effort) if effort else ():
                yield {"reasoning": {"effort": level, **shown}}
            if shown and not effort:
                yield {"reasoning": shown}

    def _tell(self, on: bool | None, effort: str | None, fields: Fields) -> None:
        """What the fields say otherwise than the client did."""
        wish, ledger = self._wish, self._ledger
        output, thinking, reasoning = (
            dict(held) if isinstance(held := fields.get(key), dict) else {}
            for key in ("output_config", "thinking", "reasoning")
        )
        sent = output.get("effort") or reasoning.get("effort")
        if on is False and not self._claude and sent != "none":
            ledger.note_approximated(
                wish.switch_at or wish.at, "this model always thinks; it is asked for as little as possible"
            )
        if wish.effort not in (None, "none") and sent is None:
            ledger.note_dropped(wish.at, "this model has no efforts")
        elif wish.effort is not None and sent not in (None, wish.effort):
            ledger.note_approximated(wish.at, f"the nearest effort of this model is {sent!r}")
        elif wish.effort is not None and self._claude != (self._protocol == "messages"):
            ledger.note_approximated(wish.at, "another vendor's effort is only like this one's")
        if wish.switch is Switch.BETWEEN_TOOLS:
            ledger.note_approximated(wish.switch_at, "this model knows no thinking between tools only")
        if wish.switch is Switch.ENABLED:
            ledger.note_approximated(wish.switch_at, "this model thinks as it sees fit")
        if wish.budget is not None:
            ledger.note_approximated(wish.budget_at, "this model takes an effort, not a budget")
        if wish.switch is Switch.ADAPTIVE and not thinking:
            ledger.note_approximated(wish.switch_at, "this model is told an effort only")
        shown = thinking.get("display") or reasoning.get("summary")
        if wish.show is not None and shown is None:
            ledger.note_dropped(wish.show_at, "how much of its thoughts this model shows cannot be chosen")
        elif shown != wish.show:
            ledger.note_approximated(wish.show_at, f"thoughts are shown as {shown!r}")


class _Tags:
    """Tags that ask a model in its prompt to think aloud."""

    __slots__ = ("_budgets", "_ledger", "_protocol", "_wish")

    def __init__(self, wish: Reasoning, protocol: str, budgets: dict[str, int], ledger: Ledger) -> None:
        self._wish = wish
        self._protocol = protocol
        self._budgets = budgets
        self._ledger = ledger

    def plan(self) -> str:
        wish, on = self._wish, _is_on(self._wish)
        if on is False:
            self._off()
            return ""
        if on is None and self._protocol == "messages":  # where an effort alone switches no thinking on
            self._ledger.note_dropped(wish.at, "this model has no efforts")
            return ""
        for at in _places(wish):
            self._ledger.note_approximated(at, "thinking is asked for in the prompt, and shown as it is")
        adaptive = wish.switch is Switch.ADAPTIVE or (wish.switch is None and wish.effort is None)
        return self._adaptive() if adaptive else self._budgeted()

    def _off(self) -> None:
        wish = self._wish
        if wish.switch is Switch.BETWEEN_TOOLS:
            self._ledger.note_approximated(wish.switch_at, "this model is not told to think at all")
        if wish.switch is not None and wish.effort is not None:
            self._ledger.note_dropped(wish.at, "this model has no efforts")
        if wish.show is not None:
            self._ledger.note_dropped(wish.show_at, "there are no thoughts to be shown")

    def _adaptive(self) -> str:
        effort = self._wish.effort if self._wish.effort in EFFORTS[2:] else None
        if self._wish.effort == "minimal":
            effort = "low"
        return f"{MODE_TAG}adaptive</thinking_mode><thinking_effort>{effort or DEFAULT_EFFORT}</thinking_effort>"

    def _budgeted(self) -> str:
        wish = self._wish
        budget = wish.budget or self._budgets.get(wish.effort or "", USUAL_BUDGET)
        return f"{MODE_TAG}enabled</thinking_mode><max_thinking_length>{min(budget, MAX_BUDGET)}</max_thinking_length>"
