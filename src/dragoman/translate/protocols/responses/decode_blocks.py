"""Decode the output items of a Responses stream into hub events.

Everything is keyed by `output_index`: some servers give an item a new id in every event, and one reused an index for
items of two kinds. What a server leaves out of its deltas is taken, once, from the first later event that has it.
"""

from collections.abc import Iterator, KeysView, Sequence

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.hub.events import (
    Block,
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Event,
    OpaqueAdded,
    Opened,
    RefusalBlock,
    TextBlock,
    ThinkingBlock,
)
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.request import Citation
from dragoman.translate.protocols.responses.wire import (
    Annotation,
    CallItem,
    MessageItem,
    Part,
    ReasoningItem,
    StreamEvent,
)

Events = Sequence[Event]
_part = msgspec.json.Decoder(Part)
_annotation = msgspec.json.Decoder(Annotation)
_object = msgspec.json.Decoder(dict[str, object])


class _OpenBlock:
    """A text, refusal or call block of the reply."""

    __slots__ = ("block", "citable", "cited", "open", "sent")

    def __init__(self, block: int) -> None:
        self.block = block
        self.open = True
        self.sent = False  # some of its text has been sent
        self.citable = True  # false for a refusal
        self.cited = 0

    def close(self) -> Events:
        if not self.open:
            return ()
        self.open = False
        return (Closed(self.block),)


class MessageItems(Struct, eq=False):
    """Message items; each content part is a block, opened by its first text."""

    _block_numbers: Iterator[int]
    _items: dict[int, dict[int, _OpenBlock]] = {}  # output_index -> content_index

    def indexes(self) -> KeysView[int]:
        return self._items.keys()

    def text_delta(self, event: StreamEvent) -> Events:
        logprobs = _keep_logprobs(event.logprobs)
        try:
            part = self._items[event.output_index][event.content_index]
        except KeyError:
            return self._add_text(event, TextBlock(), event.delta, logprobs)
        if not part.open or not (event.delta or logprobs):
            return ()
        part.sent = True
        return (Delta(part.block, event.delta, logprobs),)

    def refusal_delta(self, event: StreamEvent) -> Events:
        return self._add_text(event, RefusalBlock(), event.delta, None)

    def text_done(self, event: StreamEvent) -> Events:
        return self._add_missing_text(event, Part(text=event.text, logprobs=event.logprobs))

    def refusal_done(self, event: StreamEvent) -> Events:
        return self._add_missing_text(event, Part(type="refusal", refusal=event.refusal))

    def add_annotation(self, event: StreamEvent) -> Events:
        return self._add_citation(event, event.annotation)

    def part_done(self, event: StreamEvent, done: Part) -> Events:
        events = [*self._add_missing_text(event, done)]
        part = self._find_part(event)
        for raw in (done.annotations or [])[part.cited if part else 0 :]:
            events += self._add_citation(event, raw)
        if part := self._find_part(event):
            events += part.close()
        return events

    def item_done(self, index: int, item: MessageItem) -> Events:
        events: list[Event] = []
        for content_index, part in enumerate(item.content or ()):
            events += self.part_done(StreamEvent(output_index=index, content_index=content_index), part)
        for left in self._items.setdefault(index, {}).values():
            events += left.close()
        return events

    def close(self) -> Iterator[Event]:
        for parts in self._items.values():
            for part in parts.values():
                yield from part.close()

    def _find_part(self, event: StreamEvent) -> _OpenBlock | None:
        return self._items.get(event.output_index, {}).get(event.content_index)

    def _add_text(self, event: StreamEvent, what: Block, text: str, logprobs: Raw | None) -> Events:
        if not text and logprobs is None:
            return ()
        part, opened = self._open_part(event, what)
        if not part.open:
            return ()
        part.sent = True
        return [*opened, Delta(part.block, text, logprobs)]

    def _add_missing_text(self, event: StreamEvent, done: Part) -> Events:
        part = self._find_part(event)
        if part is not None and part.sent:
            return ()
        what: Block = RefusalBlock() if done.type == "refusal" else TextBlock()
        return self._add_text(event, what, done.refusal or done.text or "", _keep_logprobs(done.logprobs))

    def _open_part(self, event: StreamEvent, what: Block) -> tuple[_OpenBlock, Events]:
        parts = self._items.setdefault(event.output_index, {})
        part = parts.get(event.content_index)
        if part is not None:
            return part, ()
        part = parts[event.content_index] = _OpenBlock(next(self._block_numbers))
        part.citable = isinstance(what, TextBlock)
        return part, (Opened(part.block, what),)

    def _add_citation(self, event: StreamEvent, raw: Raw) -> Events:
        part = self._find_part(event)
        if part is None or not part.open or not part.citable:
            return ()  # without text there is nothing to cite; the finished part repeats the annotation otherwise
        part.cited += 1
        done = _annotation.decode(raw)
        citation = Citation(
            url=done.url,
            title=done.title or done.filename,
            start=done.start_index,
            end=done.end_index,
            raw=_object.decode(raw),
        )
        return (CitationAdded(part.block, citation),)


class _OpenReasoning(Struct, eq=False):
    """A reasoning item. Summary and raw reasoning are one block each, which joins their parts."""

    blocks: dict[bool, int] = {}  # raw or not -> block
    current: dict[bool, int] = {}  # the part that is being added to it
    seen: set[tuple[bool, int]] = set()
    open: bool = True

    def close(self) -> Events:
        if not self.open:
            return ()
        self.open = False
        return [Closed(number) for number in self.blocks.values()]


class ReasoningItems(Struct, eq=False):
    """Reasoning items."""

    _block_numbers: Iterator[int]
    _issuer: Issuer
    _items: dict[int, _OpenReasoning] = {}

    def indexes(self) -> KeysView[int]:
        return self._items.keys()

    def summary_delta(self, event: StreamEvent) -> Events:
        return self._add_reasoning(event.output_index, False, event.summary_index, event.delta)

    def raw_delta(self, event: StreamEvent) -> Events:
        return self._add_reasoning(event.output_index, True, event.content_index, event.delta)

    def summary_done(self, event: StreamEvent) -> Events:
        return self._add_missing_reasoning(event.output_index, False, event.summary_index, event.text)

    def summary_part_done(self, event: StreamEvent) -> Events:
        done = _part.decode(event.part)
        return self._add_missing_reasoning(event.output_index, False, event.summary_index, done.text)

    def raw_done(self, event: StreamEvent) -> Events:
        return self._add_missing_reasoning(event.output_index, True, event.content_index, event.text)

    def part_done(self, event: StreamEvent, done: Part) -> Events:
        return self._add_missing_reasoning(event.output_index, True, event.content_index, done.text)

    def item_done(self, index: int, item: ReasoningItem) -> Events:
        events: list[Event] = []
        for part, done in enumerate(item.summary or ()):
            events += self._add_missing_reasoning(index, False, part, done.text)
        for part, done in enumerate(item.content or ()):
            events += self._add_missing_reasoning(index, True, part, done.text)
        reasoning = self._items.setdefault(index, _OpenReasoning())
        if item.encrypted_content and reasoning.open:
            events += self._opaque_events(reasoning, item.encrypted_content)
        events += reasoning.close()
        return events

    def close(self) -> Iterator[Event]:
        for reasoning in self._items.values():
            yield from reasoning.close()

    def _add_reasoning(self, index: int, raw: bool, part: int, text: str) -> Events:
        reasoning = self._items.get(index)
        if reasoning is None:
            reasoning = self._items[index] = _OpenReasoning()
        if not text or not reasoning.open:
            return ()
        if reasoning.current.get(raw) == part:
            return (Delta(reasoning.blocks[raw], text),)
        reasoning.seen.add((raw, part))
        if raw in reasoning.current:
            reasoning.current[raw] = part
            return (Delta(reasoning.blocks[raw], "\n\n" + text),)
        opened = self._open_block(reasoning, raw)
        reasoning.current[raw] = part
        return opened, Delta(opened.block, text)

    def _add_missing_reasoning(self, index: int, raw: bool, part: int, text: str | None) -> Events:
        reasoning = self._items.get(index)
        if not text or (reasoning is not None and (raw, part) in reasoning.seen):
            return ()
        return self._add_reasoning(index, raw, part, text)

    def _open_block(self, reasoning: _OpenReasoning, raw: bool) -> Opened:
        number = reasoning.blocks[raw] = next(self._block_numbers)
        return Opened(number, ThinkingBlock(raw=raw))

    def _opaque_events(self, reasoning: _OpenReasoning, payload: str) -> Iterator[Event]:
        if not reasoning.blocks:
            yield self._open_block(reasoning, False)
        number = next(iter(reasoning.blocks.values()))
        yield OpaqueAdded(number, Opaque(self._issuer.name, OpaqueForm.ENCRYPTED, payload, self._issuer.model))


class Calls:
    """Function calls and custom tool calls."""

    __slots__ = ("_block_numbers", "_items", "_unnamed")

    def __init__(self, block_numbers: Iterator[int]) -> None:
        self._block_numbers = block_numbers
        self._items: dict[int, _OpenBlock] = {}
        self._unnamed: set[int] = set()  # announced without a name so far

    def indexes(self) -> KeysView[int]:
        return self._items.keys()

    def open_call(self, index: int, custom: bool, item: CallItem) -> Events:
        if index in self._items:
            return ()
        if not item.name:
            self._unnamed.add(index)
            return ()
        self._unnamed.discard(index)
        call = self._items[index] = _OpenBlock(next(self._block_numbers))
        return (Opened(call.block, CallBlock(item.call_id or item.id or "", item.name, custom, item.namespace)),)

    def delta(self, event: StreamEvent) -> Events:
        call = self._items.get(event.output_index)
        if call is None or not call.open or not event.delta:
            return ()  # a call opens with its name; the finished item has all arguments
        call.sent = True
        return (Delta(call.block, event.delta),)

    def arguments_done(self, event: StreamEvent) -> Events:
        return self._add_missing_arguments(event.output_index, _arguments_as_text(event.arguments))

    def input_done(self, event: StreamEvent) -> Events:
        return self._add_missing_arguments(event.output_index, event.input or "")

    def item_done(self, index: int, custom: bool, item: CallItem) -> Events:
        events = [*self.open_call(index, custom, item)]
        events += self._add_missing_arguments(index, item.input or _arguments_as_text(item.arguments))
        if call := self._items.get(index):
            events += call.close()
        return events

    def has_unfinished(self) -> bool:
        """Return whether a call has no name, or neither arguments nor an end: `{}` would be invented."""
        return bool(self._unnamed) or any(call.open and not call.sent for call in self._items.values())

    def close(self) -> Iterator[Event]:
        for call in self._items.values():
            yield from call.close()

    def _add_missing_arguments(self, index: int, text: str) -> Events:
        call = self._items.get(index)
        if call is None or call.sent or not call.open or not text:
            return ()
        call.sent = True
        return (Delta(call.block, text),)


def _keep_logprobs(logprobs: Raw) -> Raw | None:
    text = bytes(logprobs)
    return logprobs.copy() if text.startswith(b"[") and text != b"[]" else None


def _arguments_as_text(raw: Raw) -> str:
    """Return arguments as JSON text; some servers send an object."""
    text = bytes(raw)
    if text.startswith(b'"'):
        return msgspec.json.decode(text, type=str)
    return "" if text in (b"", b"null") else text.decode()
