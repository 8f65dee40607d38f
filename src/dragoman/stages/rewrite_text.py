"""Split blocks of text into separate blocks of text, reasoning and calls, with a splitter for each block."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Protocol

import msgspec
from msgspec import Struct

from dragoman.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    TextBlock,
    ThinkingBlock,
)
from dragoman.hub.request import Citation


class Thought(Struct, frozen=True):
    text: str


class FoundCall(Struct, frozen=True):
    id: str
    name: str
    arguments: str


Segment = str | Thought | FoundCall

_get_text = attrgetter("text")
_TEXT = TextBlock()
_THINKING = ThinkingBlock()


class Splitter(Protocol):
    """Splits the text of one block. It may hold text back until `finish`."""

    def feed(self, text: str) -> Sequence[Segment]: ...

    def try_pass(self, text: str) -> bool:
        """Return whether `feed` would return just this text, however it were cut; if so, the text counts as fed."""
        ...

    def finish(self) -> Sequence[Segment]: ...


class _Run:
    """The state of one incoming block of text."""

    __slots__ = ("answer", "block", "cited", "passed", "received", "splitter", "what")

    def __init__(self, splitter: Splitter, answer: int) -> None:
        self.splitter = splitter
        self.answer = answer  # that the block belongs to
        self.block = -1  # the outgoing block that is open for it; -1: none
        self.what: TextBlock | ThinkingBlock = _TEXT
        self.cited: list[Citation] = []  # held until an outgoing block of text is open
        self.received = 0  # incoming characters of text
        self.passed = 0  # outgoing characters of text


class TextRewriter:
    """Apply a splitter to each block of text. Outgoing blocks are numbered in the order in which they open."""

    __slots__ = ("_next", "_numbers", "_runs", "_splitter")

    def __init__(self, splitter: Callable[[], Splitter | None]) -> None:
        self._splitter = splitter  # called for each block of text; None: the block is passed unchanged
        self._runs: dict[int, _Run] = {}
        self._numbers: dict[int, int] = {}
        self._next = 0

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            run = self._runs.get(event.block)
            return (self._renumber(event),) if run is None else self._split(run, event)
        match event:
            case Opened(block=block, what=what):
                return self._open(event, self._splitter() if isinstance(what, TextBlock) else None)
            case Closed(block=block) if block in self._runs:
                return self._close(self._runs.pop(block))
            case CitationAdded(block=block, citation=citation) if block in self._runs:
                return self._cite(self._runs[block], citation)
            case Closed() | CitationAdded() | OpaqueAdded():
                return (self._renumber(event),)
            case Ended() | Failed():
                return [*self.finish(), event]
            case _:
                return (event,)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        """Feed deltas of one block; return `run` itself if it passes unchanged."""
        if self._passes(run, text):
            return run
        first, rest = run[0], run[1:]
        events = list(self.feed(first))
        if not rest:
            return events
        if self._passes(rest, text[len(first.text) :]):
            return [*events, *rest]
        return events + [out for event in rest for out in self.feed(event)]

    def _passes(self, run: Sequence[Delta], text: str) -> bool:
        block = run[0].block
        state = self._runs.get(block)
        if state is None:
            return self._numbers.get(block, block) == block
        if state.block != block or state.what is not _TEXT or not all(map(_get_text, run)):
            return False
        if not state.splitter.try_pass(text):
            return False
        state.received += len(text)
        state.passed += len(text)
        return True

    def finish(self) -> list[Event]:
        """Return the events that are still held back. Blocks that were left open stay open."""
        return [event for run in self._runs.values() for event in self._emit(run, run.splitter.finish())]

    def _open(self, event: Opened, splitter: Splitter | None) -> Sequence[Event]:
        if splitter is not None:
            self._runs[event.block] = _Run(splitter, event.answer)
            return ()
        number = self._numbers[event.block] = self._take_number()
        return (event if number == event.block else msgspec.structs.replace(event, block=number),)

    def _split(self, run: _Run, event: Delta) -> Sequence[Event]:
        if not event.text:
            return ()
        segments = run.splitter.feed(event.text)
        run.received += len(event.text)
        if run.what is _TEXT and run.block >= 0 and len(segments) == 1 and segments[0] == event.text:
            run.passed += len(event.text)
            return (event if run.block == event.block else msgspec.structs.replace(event, block=run.block),)
        return self._emit(run, segments)

    def _close(self, run: _Run) -> Sequence[Event]:
        events = self._emit(run, run.splitter.finish())
        if not run.received:
            events += self._begin(run, _TEXT)
        return events + self._end(run)

    def _cite(self, run: _Run, citation: Citation) -> Sequence[Event]:
        if run.passed != run.received:  # removed text shifts the offsets: cite the block as a whole
            citation = msgspec.structs.replace(citation, start=None, end=None)
        if run.block >= 0 and run.what is _TEXT:
            return (CitationAdded(run.block, citation),)
        run.cited.append(citation)
        return ()

    def _emit(self, run: _Run, segments: Iterable[Segment]) -> list[Event]:
        events: list[Event] = []
        for segment in segments:
            match segment:
                case str():
                    events += self._begin(run, _TEXT)
                    events.append(Delta(run.block, segment))
                    run.passed += len(segment)
                    events += [CitationAdded(run.block, citation) for citation in run.cited]
                    run.cited.clear()
                case Thought(text=text):
                    events += self._begin(run, _THINKING)
                    events.append(Delta(run.block, text))
                case FoundCall(id=id, name=name, arguments=arguments):
                    events += self._end(run)
                    number = self._take_number()
                    call = Opened(number, CallBlock(id, name), run.answer)
                    events += (call, Delta(number, arguments), Closed(number))
        return events

    def _begin(self, run: _Run, what: TextBlock | ThinkingBlock) -> list[Event]:
        if run.block >= 0 and run.what is what:
            return []
        ended = self._end(run)
        run.block, run.what = self._take_number(), what
        return [*ended, Opened(run.block, what, run.answer)]

    def _end(self, run: _Run) -> list[Event]:
        if run.block < 0:
            return []
        block, run.block = run.block, -1
        return [Closed(block)]

    def _renumber(self, event: Delta | Closed | CitationAdded | OpaqueAdded) -> Event:
        number = self._numbers.get(event.block, event.block)
        return event if number == event.block else msgspec.structs.replace(event, block=number)

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1
