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
from dragoman.protocols.responses.build_content import PartBuilder
from dragoman.protocols.responses.wire import NAME, Wire

_ERROR_MARK = "[tool error] "
_NO_RESULT = "[no result]"


class InputBuilder:
    """Build the conversation of one request."""

    def __init__(self, request: Request, target: Target, ledger: Ledger) -> None:
        self._request = request
        self._target = target
        self._ledger = ledger
        self._same_protocol = request.protocol == NAME
        self._parts = PartBuilder(request, ledger)
        self._unread_by_item = _group_by_item(request.ext) if self._same_protocol else {}
        parts = (part for turn in request.turns for part in turn.parts)
        self._custom_calls = {part.id for part in parts if isinstance(part, ToolCall) and part.custom}

    def instructions(self) -> tuple[str | None, Sequence[Turn]]:
        """Return the leading system text, if it is only text, and the remaining turns."""
        turns = self._request.turns if self._same_protocol else pair_calls(self._request.turns, self._ledger)
        leading = list(takewhile(self._is_instruction, turns))
        parts = [part for turn in leading for part in turn.parts]
        texts = [part.text for part in parts if isinstance(part, Text) and part.cache is None]
        if not parts or len(texts) < len(parts):  # a cache breakpoint needs a part
            return None, turns
        return "\n\n".join(texts) or None, turns[len(leading) :]

    def items(self, turns: Sequence[Turn]) -> list[Json]:
        items: list[Json] = []
        for turn in turns:
            if turn.role is Role.ASSISTANT:
                items += self._build_assistant(turn.parts)
            else:
                items += self._build_user(turn)
        last = turns[-1] if turns else None
        if last is not None and last.role is Role.ASSISTANT and self._request.protocol == "messages":
            self._ledger.note_approximated(
                last.at, "Responses reads a last assistant turn as history, not as a prefill"
            )
        return items

    def _is_instruction(self, turn: Turn) -> bool:
        return turn.at == "/instructions" if self._same_protocol else turn.role in (Role.SYSTEM, Role.DEVELOPER)

    def _build_user(self, turn: Turn) -> Iterable[Wire]:
        texts: list[Part] = []
        for part in turn.parts:
            match part:
                case ToolResult():
                    yield from self._build_message(turn, texts)
                    texts = []
                    yield self._build_result(part)
                case Foreign() if self._is_item(part):
                    yield from self._build_message(turn, texts)
                    texts = []
                    yield from _restore_raw(part)
                case _:
                    texts.append(part)
        yield from self._build_message(turn, texts)

    def _is_item(self, part: Foreign) -> bool:
        """Return whether it was an item of its own, not a part of a message."""
        return self._same_protocol and part.at.count("/") == 2

    def _build_message(self, turn: Turn, parts: Sequence[Part]) -> Iterable[Wire]:
        content = self._parts.build_parts(parts)
        if not content:
            return
        # Later system text of MessageItems has the role developer here.
        role = Role.DEVELOPER if turn.role is Role.SYSTEM and self._request.protocol == "messages" else turn.role
        item: Wire = {"type": "message", "role": role.value, "content": content}
        if self._same_protocol:
            restore(item, turn.ext)
        yield item

    def _build_result(self, result: ToolResult) -> Wire:
        custom = result.custom or result.call_id in self._custom_calls
        item: Wire = {
            "type": "custom_tool_call_output" if custom else "function_call_output",
            "call_id": result.call_id,
            "output": self._build_output(result),
        }
        if self._same_protocol:
            restore(item, result.ext)
        return item

    def _build_output(self, result: ToolResult) -> Json:
        mark = ""
        if result.is_error:
            mark = _ERROR_MARK
            self._ledger.note_approximated(
                result.error_pointer, "Responses has no error flag; the text begins with [tool error]"
            )
        content = [part for part in result.content if self._same_protocol or not isinstance(part, Foreign)]
        if result.cache is None and all(isinstance(part, Text) and part.cache is None for part in content):
            texts = [part.text for part in content if isinstance(part, Text)]
            if len(texts) < 2:
                return mark + "".join(texts)
        output = self._parts.build_parts(content)
        if mark:
            output.insert(0, {"type": "input_text", "text": mark.strip()})
        last = output[-1] if output else None
        if result.cache is not None and isinstance(last, dict):
            last["prompt_cache_breakpoint"] = self._parts.build_breakpoint(result.cache)
        else:
            self._parts.drop_breakpoint(result.cache)
        return output or ""

    # The assistant's side

    def _build_assistant(self, parts: Iterable[Part]) -> Iterable[Wire]:
        texts: list[Text | Refusal] = []
        for part in parts:
            if isinstance(part, Text | Refusal):
                if texts and self._item_pointer(part) != self._item_pointer(texts[-1]):
                    yield self._build_reply_message(texts)
                    texts = []
                texts.append(part)
                continue
            if texts:
                yield self._build_reply_message(texts)
                texts = []
            yield from self._build_other_item(part)
        if texts:
            yield self._build_reply_message(texts)

    def _item_pointer(self, part: Text | Refusal) -> str:
        """Return the pointer of the item that held a part; other protocols have one message per turn."""
        return part.at.partition("/content")[0] if self._same_protocol else ""

    def _build_reply_message(self, parts: Sequence[Text | Refusal]) -> Wire:
        content: list[Json] = [self._build_output_part(part) for part in parts]
        item: Wire = {"type": "message", "role": "assistant", "content": content}
        restore(item, self._unread_by_item.get(self._item_pointer(parts[0])[1:], {}))
        return item

    def _build_output_part(self, part: Text | Refusal) -> Wire:
        if isinstance(part, Refusal):
            wire: Wire = {"type": "refusal", "refusal": part.text}
        else:
            wire = {"type": "output_text", "text": part.text, "annotations": self._build_annotations(part)}
            self._parts.drop_breakpoint(part.cache)
        if self._same_protocol:
            restore(wire, part.ext)
        return wire

    def _build_annotations(self, text: Text) -> list[Json]:
        if self._same_protocol:
            return [citation.raw for citation in text.citations]
        if text.citations:
            self._ledger.note_dropped(f"{text.at}/citations", "Responses does not read the citations of earlier turns")
        return []

    def _build_other_item(self, part: Part) -> Iterable[Wire]:
        match part:
            case ToolCall():
                yield self._build_call(part)
            case Thinking():
                yield from self._build_reasoning(part)
            case Foreign() if self._same_protocol:
                yield from _restore_raw(part)
            case Image() | Document() | Audio():
                self._ledger.note_dropped(part.at, "Responses takes no media from the assistant")
            case _:
                return

    def _build_call(self, call: ToolCall) -> Wire:
        item: Wire = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        if call.custom:
            item = {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": call.arguments}
        if call.namespace is not None:
            item["namespace"] = call.namespace
        self._parts.drop_breakpoint(call.cache)
        if self._same_protocol:
            restore(item, call.ext)
        return item

    def _build_reasoning(self, thought: Thinking) -> Iterable[Wire]:
        """Build a reasoning item for the vendor that encrypted it; without ids, which need `store: true`."""
        opaque = thought.opaque
        readable = (
            opaque is not None
            and opaque.form is Form.ENCRYPTED
            and can_send_to(opaque, self._target.issuer, self._same_protocol)
            and not opaque.payload.startswith(ENVELOPE_PREFIX)
        )
        if not readable and not (self._same_protocol and opaque is None):
            why = "reasoning without its encrypted form" if opaque is None else "reasoning that another vendor issued"
            self._ledger.note_dropped(thought.at, f"{why} cannot be read by this upstream")
            return
        kind = "reasoning_text" if thought.raw else "summary_text"
        parts: list[Json] = [{"type": kind, "text": thought.text}] if thought.text else []
        item: Wire = {"type": "reasoning", "summary": [] if thought.raw else parts}
        if thought.raw:
            item["content"] = parts
        if opaque is not None:
            item["encrypted_content"] = opaque.payload
        if self._same_protocol:
            restore(item, thought.ext)
        yield item


def _restore_raw(part: Foreign) -> Iterable[Wire]:
    if isinstance(part.raw, dict):
        yield part.raw


def _group_by_item(ext: Ext) -> dict[str, Ext]:
    """Group the request's unread fields by item: `input/3/phase` under `input/3`."""
    items: dict[str, Ext] = {}
    for pointer, value in ext.items():
        head, *rest = pointer.split("/", 2)
        if head == "input" and len(rest) == 2:
            items.setdefault(f"input/{rest[0]}", {})[rest[1]] = value
    return items


class _PairedCall(Struct):
    """A call's unique id, and its result."""

    id: str
    result: ToolResult | None = None


_Pairs = dict[int, _PairedCall]  # by the identity of a call or a result


def pair_calls(turns: Sequence[Turn], ledger: Ledger) -> list[Turn]:
    """Return the turns with unique call ids and one result for each call.

    Of several results the last is kept, a missing one is invented, and one without a call becomes text.
    """
    calls: _Pairs = {}  # by the identity of the call
    results: _Pairs = {}  # by the identity of the result
    _match_results(turns, calls, results, ledger)
    fitted: list[Turn] = []
    for turn in turns:
        parts = [fitting for part in turn.parts for fitting in _fit_part(part, calls, results, ledger)]
        fitted.append(replace(turn, parts=tuple(parts)))
        invented = [_invent_result(part, calls[id(part)], ledger) for part in turn.parts if _lacks_result(part, calls)]
        if invented:
            fitted.append(Turn(Role.USER, tuple(invented), turn.at))
    return fitted


def _match_results(turns: Sequence[Turn], calls: _Pairs, results: _Pairs, ledger: Ledger) -> None:
    known: dict[str, _PairedCall] = {}  # by the client's id; some servers use the same ids in every step
    counts: dict[str, int] = {}
    for part in (part for turn in turns for part in turn.parts):
        if isinstance(part, ToolCall):
            count = counts[part.id] = counts.get(part.id, 0) + 1
            known[part.id] = calls[id(part)] = _PairedCall(part.id if count == 1 else f"{part.id}-{count}")
        elif isinstance(part, ToolResult) and part.call_id in known:
            pair = results[id(part)] = known[part.call_id]
            if pair.result is not None:
                ledger.note_dropped(pair.result.at, "a call has one result: the last one counts")
            pair.result = part


def _fit_part(part: Part, calls: _Pairs, results: _Pairs, ledger: Ledger) -> Sequence[Part]:
    if isinstance(part, ToolCall):
        pair = calls[id(part)]
        return [part if pair.id == part.id else replace(part, id=pair.id)]
    if not isinstance(part, ToolResult):
        return [part]
    if id(part) not in results:
        ledger.note_approximated(part.at, "a result without a call is sent as text")
        label = "error" if part.is_error else "result"
        return [Text(f"[{label} of tool call {part.call_id}]", part.at), *part.content]
    pair = results[id(part)]
    return [replace(part, call_id=pair.id)] if pair.result is part else []


def _lacks_result(part: Part, calls: _Pairs) -> bool:
    return isinstance(part, ToolCall) and calls[id(part)].result is None


def _invent_result(call: Part, pair: _PairedCall, ledger: Ledger) -> ToolResult:
    ledger.note_invented(call.at, "every call must have a result")
    return ToolResult(pair.id, (Text(_NO_RESULT, call.at),), call.at)
