"""Blocks of text come in and a splitter takes them apart; text, thoughts and calls go out as blocks of their own."""

from collections.abc import Callable, Iterable, Sequence
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

_TEXT = TextBlock()
_THINKING = ThinkingBlock()


class Splitter(Protocol):
    """Takes the text of one block; what it holds back it gives at the latest when it is finished."""

    def feed(self, text: str) -> Sequence[Segment]: ...

    def finish(self) -> Sequence[Segment]: ...


class _Run:
    """One block of text on its way through its splitter."""

    __slots__ = ("block", "cited", "given", "splitter", "taken", "what")

    def __init__(self, splitter: Splitter) -> None:
        self.splitter = splitter
        self.block = -1  # the block that is open outside for it, if any
        self.what: TextBlock | ThinkingBlock = _TEXT
        self.cited: list[Citation] = []  # until text is open outside
        self.taken = 0  # characters of text that came
        self.given = 0  # characters that went out as text


class TextRewriter:
    """Gives every block a number of its own, in the order in which they open outside."""

    __slots__ = ("_next", "_numbers", "_runs", "_splitter")

    def __init__(self, splitter: Callable[[], Splitter | None]) -> None:
        self._splitter = splitter  # for the block of text that opens; None: it passes as it is
        self._runs: dict[int, _Run] = {}
        self._numbers: dict[int, int] = {}
        self._next = 0

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            run = self._runs.get(event.block)
            return (self._renumbered(event),) if run is None else self._split(run, event)
        match event:
            case Opened(block=block, what=what):
                return self._open(event, self._splitter() if isinstance(what, TextBlock) else None)
            case Closed(block=block) if block in self._runs:
                return self._close(self._runs.pop(block))
            case CitationAdded(block=block, citation=citation) if block in self._runs:
                return self._cite(self._runs[block], citation)
            case Closed() | CitationAdded() | OpaqueAdded():
                return (self._renumbered(event),)
            case Ended() | Failed():
                return [*self.finish(), event]
            case _:
                return (event,)

    def finish(self) -> list[Event]:
        """What is still held back; blocks that were left open stay open."""
        return [event for run in self._runs.values() for event in self._tell(run, run.splitter.finish())]

    def _open(self, event: Opened, splitter: Splitter | None) -> Sequence[Event]:
        if splitter is not None:
            self._runs[event.block] = _Run(splitter)
            return ()
        number = self._numbers[event.block] = self._take_number()
        return (event if number == event.block else Opened(number, event.what),)

    def _split(self, run: _Run, event: Delta) -> Sequence[Event]:
        if not event.text:
            return ()
        segments = run.splitter.feed(event.text)
        run.taken += len(event.text)
        if run.what is _TEXT and run.block >= 0 and len(segments) == 1 and segments[0] == event.text:
            run.given += len(event.text)
            return (event if run.block == event.block else msgspec.structs.replace(event, block=run.block),)
        return self._tell(run, segments)

    def _close(self, run: _Run) -> Sequence[Event]:
        told = self._tell(run, run.splitter.finish())
        if not run.taken:
            told += self._begin(run, _TEXT)
        return told + self._end(run)

    def _cite(self, run: _Run, citation: Citation) -> Sequence[Event]:
        if run.given != run.taken:  # what was taken out shifts the places: the block as a whole is meant then
            citation = msgspec.structs.replace(citation, start=None, end=None)
        if run.block >= 0 and run.what is _TEXT:
            return (CitationAdded(run.block, citation),)
        run.cited.append(citation)
        return ()

    def _tell(self, run: _Run, segments: Iterable[Segment]) -> list[Event]:
        told: list[Event] = []
        for segment in segments:
            match segment:
                case str():
                    told += self._begin(run, _TEXT)
                    told.append(Delta(run.block, segment))
                    run.given += len(segment)
                    told += [CitationAdded(run.block, citation) for citation in run.cited]
                    run.cited.clear()
                case Thought(text=text):
                    told += self._begin(run, _THINKING)
                    told.append(Delta(run.block, text))
                case FoundCall(id=id, name=name, arguments=arguments):
                    told += self._end(run)
                    number = self._take_number()
                    told += (Opened(number, CallBlock(id, name)), Delta(number, arguments), Closed(number))
        return told

    def _begin(self, run: _Run, what: TextBlock | ThinkingBlock) -> list[Event]:
        if run.block >= 0 and run.what is what:
            return []
        ended = self._end(run)
        run.block, run.what = self._take_number(), what
        return [*ended, Opened(run.block, what)]

    def _end(self, run: _Run) -> list[Event]:
        if run.block < 0:
            return []
        block, run.block = run.block, -1
        return [Closed(block)]

    def _renumbered(self, event: Delta | Closed | CitationAdded | OpaqueAdded) -> Event:
        number = self._numbers.get(event.block, event.block)
        return event if number == event.block else msgspec.structs.replace(event, block=number)

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1
