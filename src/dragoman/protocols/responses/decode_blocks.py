"""Decode the output items of a Responses stream into hub events.

Everything is keyed by `output_index`: some servers give an item a new id in every event, and one reused an index for
items of two kinds. What a server leaves out of its deltas is taken, once, from the first later event that has it.
"""

from collections.abc import Iterator, KeysView, Sequence

import msgspec
from msgspec import Raw

from dragoman.hub.events import (
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
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.ports import Issuer
from dragoman.hub.request import Citation
from dragoman.protocols.responses.wire import Annotation, CallItem, MessageItem, Notice, Part, ReasoningItem

Events = Sequence[Event]
_part = msgspec.json.Decoder(Part)
_annotation = msgspec.json.Decoder(Annotation)
_object = msgspec.json.Decoder(dict[str, object])


class _Open:
    """A text, refusal or call block of the reply."""

    __slots__ = ("block", "citable", "cited", "open", "sent")

    def __init__(self, block: int) -> None:
        self.block = block
        self.open = True
        self.sent = False  # whether any of its text has come
        self.citable = True  # unlike a refusal
        self.cited = 0

    def close(self) -> Events:
        if not self.open:
            return ()
        self.open = False
        return (Closed(self.block),)


class Messages:
    """Message items; each content part is a block, opened by its first words: an empty text is nothing said."""

    __slots__ = ("_items", "_numbers")

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._items: dict[int, dict[int, _Open]] = {}  # output_index -> content_index

    def indexes(self) -> KeysView[int]:
        return self._items.keys()

    def text_delta(self, notice: Notice) -> Events:
        logprobs = _worth_keeping(notice.logprobs)
        try:
            part = self._items[notice.output_index][notice.content_index]
        except KeyError:
            return self._say(notice, TextBlock(), notice.delta, logprobs)
        if not part.open or not (notice.delta or logprobs):
            return ()
        part.sent = True
        return (Delta(part.block, notice.delta, logprobs),)

    def refusal_delta(self, notice: Notice) -> Events:
        return self._say(notice, RefusalBlock(), notice.delta, None)

    def text_done(self, notice: Notice) -> Events:
        return self._say_unsaid(notice, Part(text=notice.text, logprobs=notice.logprobs))

    def refusal_done(self, notice: Notice) -> Events:
        return self._say_unsaid(notice, Part(type="refusal", refusal=notice.refusal))

    def annotated(self, notice: Notice) -> Events:
        return self._cite(notice, notice.annotation)

    def part_done(self, notice: Notice, told: Part) -> Events:
        events = [*self._say_unsaid(notice, told)]
        part = self._known(notice)
        for raw in (told.annotations or [])[part.cited if part else 0 :]:
            events += self._cite(notice, raw)
        if part := self._known(notice):
            events += part.close()
        return events

    def item_done(self, index: int, item: MessageItem) -> Events:
        events: list[Event] = []
        for content_index, part in enumerate(item.content or ()):
            events += self.part_done(Notice(output_index=index, content_index=content_index), part)
        for left in self._items.setdefault(index, {}).values():
            events += left.close()
        return events

    def close(self) -> Iterator[Event]:
        for parts in self._items.values():
            for part in parts.values():
                yield from part.close()

    def _known(self, notice: Notice) -> _Open | None:
        return self._items.get(notice.output_index, {}).get(notice.content_index)

    def _say(self, notice: Notice, what: Block, text: str, logprobs: Raw | None) -> Events:
        if not text and logprobs is None:
            return ()
        part, opened = self._part_at(notice, what)
        if not part.open:
            return ()
        part.sent = True
        return [*opened, Delta(part.block, text, logprobs)]

    def _say_unsaid(self, notice: Notice, told: Part) -> Events:
        part = self._known(notice)
        if part is not None and part.sent:
            return ()
        what: Block = RefusalBlock() if told.type == "refusal" else TextBlock()
        return self._say(notice, what, told.refusal or told.text or "", _worth_keeping(told.logprobs))

    def _part_at(self, notice: Notice, what: Block) -> tuple[_Open, Events]:
        parts = self._items.setdefault(notice.output_index, {})
        part = parts.get(notice.content_index)
        if part is not None:
            return part, ()
        part = parts[notice.content_index] = _Open(next(self._numbers))
        part.citable = isinstance(what, TextBlock)
        return part, (Opened(part.block, what),)

    def _cite(self, notice: Notice, raw: Raw) -> Events:
        part = self._known(notice)
        if part is None or not part.open or not part.citable:
            return ()  # nothing is cited where nothing is said; the finished part repeats it if something was
        part.cited += 1
        told = _annotation.decode(raw)
        citation = Citation(
            url=told.url,
            title=told.title or told.filename,
            start=told.start_index,
            end=told.end_index,
            raw=_object.decode(raw),
        )
        return (CitationAdded(part.block, citation),)


class _Thought:
    """A reasoning item: summary and raw thoughts are blocks of their own, the parts of either run on in one."""

    __slots__ = ("blocks", "current", "open", "seen")

    def __init__(self) -> None:
        self.blocks: dict[bool, int] = {}  # raw or not -> block
        self.current: dict[bool, int] = {}  # the part that runs in it
        self.seen: set[tuple[bool, int]] = set()
        self.open = True

    def close(self) -> Events:
        if not self.open:
            return ()
        self.open = False
        return [Closed(number) for number in self.blocks.values()]


class Thoughts:
    """Reasoning items."""

    __slots__ = ("_issuer", "_items", "_numbers")

    def __init__(self, numbers: Iterator[int], issuer: Issuer) -> None:
        self._numbers = numbers
        self._issuer = issuer
        self._items: dict[int, _Thought] = {}

    def indexes(self) -> KeysView[int]:
        return self._items.keys()

    def summary_delta(self, notice: Notice) -> Events:
        return self._think(notice.output_index, False, notice.summary_index, notice.delta)

    def raw_delta(self, notice: Notice) -> Events:
        return self._think(notice.output_index, True, notice.content_index, notice.delta)

    def summary_done(self, notice: Notice) -> Events:
        return self._think_unthought(notice.output_index, False, notice.summary_index, notice.text)

    def summary_part_done(self, notice: Notice) -> Events:
        told = _part.decode(notice.part)
        return self._think_unthought(notice.output_index, False, notice.summary_index, told.text)

    def raw_done(self, notice: Notice) -> Events:
        return self._think_unthought(notice.output_index, True, notice.content_index, notice.text)

    def part_done(self, notice: Notice, told: Part) -> Events:
        return self._think_unthought(notice.output_index, True, notice.content_index, told.text)

    def item_done(self, index: int, item: ReasoningItem) -> Events:
        events: list[Event] = []
        for part, told in enumerate(item.summary or ()):
            events += self._think_unthought(index, False, part, told.text)
        for part, told in enumerate(item.content or ()):
            events += self._think_unthought(index, True, part, told.text)
        thought = self._items.setdefault(index, _Thought())
        if item.encrypted_content and thought.open:
            events += self._sealed(thought, item.encrypted_content)
        events += thought.close()
        return events

    def close(self) -> Iterator[Event]:
        for thought in self._items.values():
            yield from thought.close()

    def _think(self, index: int, raw: bool, part: int, text: str) -> Events:
        thought = self._items.get(index)
        if thought is None:
            thought = self._items[index] = _Thought()
        if not text or not thought.open:
            return ()
        if thought.current.get(raw) == part:
            return (Delta(thought.blocks[raw], text),)
        thought.seen.add((raw, part))
        if raw in thought.current:
            thought.current[raw] = part
            return (Delta(thought.blocks[raw], "\n\n" + text),)
        opened = self._opened(thought, raw)
        thought.current[raw] = part
        return opened, Delta(opened.block, text)

    def _think_unthought(self, index: int, raw: bool, part: int, text: str | None) -> Events:
        thought = self._items.get(index)
        if not text or (thought is not None and (raw, part) in thought.seen):
            return ()
        return self._think(index, raw, part, text)

    def _opened(self, thought: _Thought, raw: bool) -> Opened:
        number = thought.blocks[raw] = next(self._numbers)
        return Opened(number, ThinkingBlock(raw=raw))

    def _sealed(self, thought: _Thought, payload: str) -> Iterator[Event]:
        if not thought.blocks:
            yield self._opened(thought, False)
        number = next(iter(thought.blocks.values()))
        yield OpaqueAdded(number, Opaque(self._issuer.name, Form.ENCRYPTED, payload, self._issuer.model))


class Calls:
    """Function calls and custom tool calls."""

    __slots__ = ("_items", "_numbers", "_unnamed")

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._items: dict[int, _Open] = {}
        self._unnamed: set[int] = set()  # announced without a name, and not named since

    def indexes(self) -> KeysView[int]:
        return self._items.keys()

    def opened(self, index: int, custom: bool, item: CallItem) -> Events:
        if index in self._items:
            return ()
        if not item.name:
            self._unnamed.add(index)
            return ()
        self._unnamed.discard(index)
        call = self._items[index] = _Open(next(self._numbers))
        return (Opened(call.block, CallBlock(item.call_id or item.id or "", item.name, custom, item.namespace)),)

    def delta(self, notice: Notice) -> Events:
        call = self._items.get(notice.output_index)
        if call is None or not call.open or not notice.delta:
            return ()  # without its name a call cannot be opened: the finished item will tell the whole
        call.sent = True
        return (Delta(call.block, notice.delta),)

    def arguments_done(self, notice: Notice) -> Events:
        return self._argue_unargued(notice.output_index, _json_text(notice.arguments))

    def input_done(self, notice: Notice) -> Events:
        return self._argue_unargued(notice.output_index, notice.input or "")

    def item_done(self, index: int, custom: bool, item: CallItem) -> Events:
        events = [*self.opened(index, custom, item)]
        events += self._argue_unargued(index, item.input or _json_text(item.arguments))
        if call := self._items.get(index):
            events += call.close()
        return events

    def has_unfinished(self) -> bool:
        """Whether a call was never named, or neither given arguments nor finished: `{}` would be invented."""
        return bool(self._unnamed) or any(call.open and not call.sent for call in self._items.values())

    def close(self) -> Iterator[Event]:
        for call in self._items.values():
            yield from call.close()

    def _argue_unargued(self, index: int, text: str) -> Events:
        call = self._items.get(index)
        if call is None or call.sent or not call.open or not text:
            return ()
        call.sent = True
        return (Delta(call.block, text),)


def _worth_keeping(logprobs: Raw) -> Raw | None:
    text = bytes(logprobs)
    return logprobs.copy() if text.startswith(b"[") and text != b"[]" else None


def _json_text(raw: Raw) -> str:
    """Arguments as text; a server that sends them as an object means its JSON."""
    text = bytes(raw)
    if text.startswith(b'"'):
        return msgspec.json.decode(text, type=str)
    return "" if text in (b"", b"null") else text.decode()
