"""Build `instructions` and the `input` items of a Responses request from hub turns."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from dragoman.hub.ext import restore
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import ENVELOPE_PREFIX, Form, can_send_to
from dragoman.hub.profile import Target
from dragoman.hub.request import (
    Audio,
    Document,
    Ext,
    Foreign,
    Image,
    Json,
    Part,
    Refusal,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.protocols.responses.build_content import PartWriter
from dragoman.protocols.responses.wire import NAME, Wire

_ERROR_MARK = "[tool error] "
_UNANSWERED = "[no result]"


class InputWriter:
    """Writes the conversation of one request, and tells the ledger what it loses."""

    def __init__(self, request: Request, target: Target, ledger: Ledger) -> None:
        self._request = request
        self._target = target
        self._ledger = ledger
        self._own = request.protocol == NAME
        self._parts = PartWriter(request, ledger)
        self._unread = _by_item(request.ext) if self._own else {}
        parts = (part for turn in request.turns for part in turn.parts)
        self._custom_calls = {part.id for part in parts if isinstance(part, ToolCall) and part.custom}

    def instructions(self) -> tuple[str | None, Sequence[Turn]]:
        """The leading system text, where it is nothing but text, and the turns that remain."""
        turns = self._request.turns if self._own else paired(self._request.turns, self._ledger)
        leading = list(takewhile(self._leads, turns))
        parts = [part for turn in leading for part in turn.parts]
        texts = [part.text for part in parts if isinstance(part, Text) and part.cache is None]
        if not parts or len(texts) < len(parts):  # a cache breakpoint needs a part of an item to stand on
            return None, turns
        return "\n\n".join(texts) or None, turns[len(leading) :]

    def items(self, turns: Sequence[Turn]) -> list[Json]:
        items: list[Json] = []
        for turn in turns:
            if turn.role is Role.ASSISTANT:
                items += self._assistant(turn.parts)
            else:
                items += self._user(turn)
        last = turns[-1] if turns else None
        if last is not None and last.role is Role.ASSISTANT and self._request.protocol == "messages":
            self._ledger.note_approximated(
                last.at, "responses reads a last assistant turn as history, not as a prefill"
            )
        return items

    def _leads(self, turn: Turn) -> bool:
        return turn.at == "/instructions" if self._own else turn.role in (Role.SYSTEM, Role.DEVELOPER)

    def _user(self, turn: Turn) -> Iterable[Wire]:
        spoken: list[Part] = []
        for part in turn.parts:
            match part:
                case ToolResult():
                    yield from self._message(turn, spoken)
                    spoken = []
                    yield self._result(part)
                case Foreign() if self._stands_alone(part):
                    yield from self._message(turn, spoken)
                    spoken = []
                    yield from _raw(part)
                case _:
                    spoken.append(part)
        yield from self._message(turn, spoken)

    def _stands_alone(self, part: Foreign) -> bool:
        """Whether it was an item rather than a part of a message."""
        return self._own and part.at.count("/") == 2

    def _message(self, turn: Turn, parts: Sequence[Part]) -> Iterable[Wire]:
        content = self._parts.parts(parts)
        if not content:
            return
        # What Messages calls system is the developer's word here.
        role = Role.DEVELOPER if turn.role is Role.SYSTEM and self._request.protocol == "messages" else turn.role
        item: Wire = {"type": "message", "role": role.value, "content": content}
        if self._own:
            restore(item, turn.ext)
        yield item

    def _result(self, result: ToolResult) -> Wire:
        custom = result.custom or result.call_id in self._custom_calls
        item: Wire = {
            "type": "custom_tool_call_output" if custom else "function_call_output",
            "call_id": result.call_id,
            "output": self._output(result),
        }
        if self._own:
            restore(item, result.ext)
        return item

    def _output(self, result: ToolResult) -> Json:
        mark = ""
        if result.is_error:
            mark = _ERROR_MARK
            self._ledger.note_approximated(f"{result.at}/is_error", "responses has no error flag; the text says it")
        content = [part for part in result.content if self._own or not isinstance(part, Foreign)]
        if result.cache is None and all(isinstance(part, Text) and part.cache is None for part in content):
            texts = [part.text for part in content if isinstance(part, Text)]
            if len(texts) < 2:
                return mark + "".join(texts)
        output = self._parts.parts(content)
        if mark:
            output.insert(0, {"type": "input_text", "text": mark.strip()})
        last = output[-1] if output else None
        if result.cache is not None and isinstance(last, dict):
            last["prompt_cache_breakpoint"] = self._parts.breakpoint(result.cache)
        else:
            self._parts.no_breakpoint(result.cache)
        return output or ""

    # The assistant's side

    def _assistant(self, parts: Iterable[Part]) -> Iterable[Wire]:
        spoken: list[Text | Refusal] = []
        for part in parts:
            if isinstance(part, Text | Refusal):
                if spoken and self._item_of(part) != self._item_of(spoken[-1]):
                    yield self._said(spoken)
                    spoken = []
                spoken.append(part)
                continue
            if spoken:
                yield self._said(spoken)
                spoken = []
            yield from self._acted(part)
        if spoken:
            yield self._said(spoken)

    def _item_of(self, part: Text | Refusal) -> str:
        """Which item of this same protocol a part stood in; other protocols have one message per turn."""
        return part.at.partition("/content")[0] if self._own else ""

    def _said(self, parts: Sequence[Text | Refusal]) -> Wire:
        item: Wire = {"type": "message", "role": "assistant", "content": [self._output_part(part) for part in parts]}
        restore(item, self._unread.get(self._item_of(parts[0])[1:], {}))
        return item

    def _output_part(self, part: Text | Refusal) -> Wire:
        if isinstance(part, Refusal):
            wire: Wire = {"type": "refusal", "refusal": part.text}
        else:
            wire = {"type": "output_text", "text": part.text, "annotations": self._annotations(part)}
            self._parts.no_breakpoint(part.cache)
        if self._own:
            restore(wire, part.ext)
        return wire

    def _annotations(self, text: Text) -> list[Json]:
        if self._own:
            return [citation.raw for citation in text.citations]
        if text.citations:
            self._ledger.note_dropped(f"{text.at}/citations", "responses does not read the citations of earlier turns")
        return []

    def _acted(self, part: Part) -> Iterable[Wire]:
        match part:
            case ToolCall():
                yield self._call(part)
            case Thinking():
                yield from self._thought(part)
            case Foreign() if self._own:
                yield from _raw(part)
            case Image() | Document() | Audio():
                self._ledger.note_dropped(part.at, "responses takes no media from the assistant")
            case _:
                return

    def _call(self, call: ToolCall) -> Wire:
        item: Wire = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        if call.custom:
            item = {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": call.arguments}
        if call.namespace is not None:
            item["namespace"] = call.namespace
        self._parts.no_breakpoint(call.cache)
        if self._own:
            restore(item, call.ext)
        return item

    def _thought(self, thought: Thinking) -> Iterable[Wire]:
        """Only the vendor that encrypted a thought can read it; no ids, for with `store: false` they name nothing."""
        opaque = thought.opaque
        readable = (
            opaque is not None
            and opaque.form is Form.ENCRYPTED
            and can_send_to(opaque, self._target.issuer, self._own)
            and not opaque.payload.startswith(ENVELOPE_PREFIX)
        )
        if not readable and not (self._own and opaque is None):
            why = "reasoning without its encrypted form" if opaque is None else "reasoning that another vendor issued"
            self._ledger.note_dropped(thought.at, f"{why} means nothing to this upstream")
            return
        kind = "reasoning_text" if thought.raw else "summary_text"
        parts: list[Json] = [{"type": kind, "text": thought.text}] if thought.text else []
        item: Wire = {"type": "reasoning", "summary": [] if thought.raw else parts}
        if thought.raw:
            item["content"] = parts
        if opaque is not None:
            item["encrypted_content"] = opaque.payload
        if self._own:
            restore(item, thought.ext)
        yield item


def _raw(part: Foreign) -> Iterable[Wire]:
    if isinstance(part.raw, dict):
        yield part.raw


def _by_item(ext: Ext) -> dict[str, Ext]:
    """The request's unread fields that belong to items: `input/3/phase` under `input/3`."""
    items: dict[str, Ext] = {}
    for pointer, value in ext.items():
        head, *rest = pointer.split("/", 2)
        if head == "input" and len(rest) == 2:
            items.setdefault(f"input/{rest[0]}", {})[rest[1]] = value
    return items


class _Slot(Struct):
    """A call under an id of its own, and the result that counts."""

    id: str
    result: ToolResult | None = None


def paired(turns: Sequence[Turn], ledger: Ledger) -> list[Turn]:
    """Call ids become unique; of several results the last counts; a missing one is made up; an orphan becomes text."""
    calls: dict[int, _Slot] = {}  # by the identity of the call
    results: dict[int, _Slot] = {}  # by the identity of the result
    _match(turns, calls, results, ledger)
    fitted: list[Turn] = []
    for turn in turns:
        parts = [fitting for part in turn.parts for fitting in _fit(part, calls, results, ledger)]
        fitted.append(replace(turn, parts=tuple(parts)))
        made_up = [_made_up(part, calls[id(part)], ledger) for part in turn.parts if _is_open(part, calls)]
        if made_up:
            fitted.append(Turn(Role.USER, tuple(made_up), turn.at))
    return fitted


def _match(turns: Sequence[Turn], calls: dict[int, _Slot], results: dict[int, _Slot], ledger: Ledger) -> None:
    known: dict[str, _Slot] = {}  # by the client's id: some servers use the same ones again in every step
    counts: dict[str, int] = {}
    for part in (part for turn in turns for part in turn.parts):
        if isinstance(part, ToolCall):
            count = counts[part.id] = counts.get(part.id, 0) + 1
            known[part.id] = calls[id(part)] = _Slot(part.id if count == 1 else f"{part.id}-{count}")
        elif isinstance(part, ToolResult) and part.call_id in known:
            slot = results[id(part)] = known[part.call_id]
            if slot.result is not None:
                ledger.note_dropped(slot.result.at, "a call has one result: the last one counts")
            slot.result = part


def _fit(part: Part, calls: dict[int, _Slot], results: dict[int, _Slot], ledger: Ledger) -> Sequence[Part]:
    if isinstance(part, ToolCall):
        slot = calls[id(part)]
        return [part if slot.id == part.id else replace(part, id=slot.id)]
    if not isinstance(part, ToolResult):
        return [part]
    if id(part) not in results:
        ledger.note_approximated(part.at, "a result whose call is missing is told as text")
        label = "error" if part.is_error else "result"
        return [Text(f"[{label} of tool call {part.call_id}]", part.at), *part.content]
    slot = results[id(part)]
    return [replace(part, call_id=slot.id)] if slot.result is part else []


def _is_open(part: Part, calls: dict[int, _Slot]) -> bool:
    return isinstance(part, ToolCall) and calls[id(part)].result is None


def _made_up(call: Part, slot: _Slot, ledger: Ledger) -> ToolResult:
    ledger.note_invented(call.at, "every call must have a result")
    return ToolResult(slot.id, (Text(_UNANSWERED, call.at),), call.at)
