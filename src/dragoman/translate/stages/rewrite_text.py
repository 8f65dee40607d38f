"""Split blocks of text into separate blocks of text, reasoning and calls, with a splitter for each block.

Splitters leave code as it is: `CodeMarks` tracks whether a position in the text is inside code.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Protocol

import msgspec
from msgspec import Struct

from dragoman.translate.hub.events import (
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
from dragoman.translate.hub.request import Citation


class ThoughtText(Struct, frozen=True):
    text: str


class FoundCall(Struct, frozen=True):
    id: str
    name: str
    arguments: str


Segment = str | ThoughtText | FoundCall

_get_text = attrgetter("text")
_TEXT = TextBlock()
_THINKING = ThinkingBlock()


class TextSplitter(Protocol):
    """Splits the text of one block. It may hold text back until `finish`."""

    def feed(self, text: str) -> Sequence[Segment]: ...

    def try_pass(self, text: str) -> bool:
        """Return whether `feed` would return just this text, however it were cut; if so, the text counts as fed."""
        ...

    def finish(self) -> Sequence[Segment]: ...


class _Run:
    """The state of one incoming block of text."""

    __slots__ = ("answer", "block", "cited", "passed", "received", "splitter", "what")

    def __init__(self, splitter: TextSplitter, answer: int) -> None:
        self.splitter = splitter
        self.answer = answer  # that the block belongs to
        self.block = -1  # the outgoing block that is open for it; -1: none
        self.what: TextBlock | ThinkingBlock = _TEXT
        self.cited: list[Citation] = []  # held until an outgoing block of text is open
        self.received = 0  # incoming characters of text
        self.passed = 0  # outgoing characters of text


class TextRewriter(Struct, eq=False):
    """Apply a splitter to each block of text. Outgoing blocks are numbered in the order in which they open."""

    _splitter: Callable[[], TextSplitter | None]  # called for each block of text; None: the block is passed unchanged
    _runs: dict[int, _Run] = {}
    _numbers: dict[int, int] = {}
    _next: int = 0

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            run = self._runs.get(event.block)
            return (self._renumber(event),) if run is None else self._split(run, event)
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Opened:
            return self._open(event, self._splitter() if type(event.what) is TextBlock else None)
        if type(event) is Closed:
            run = self._runs.pop(event.block, None)
            return (self._renumber(event),) if run is None else self._close(run)
        if type(event) is CitationAdded:
            run = self._runs.get(event.block)
            return (self._renumber(event),) if run is None else self._cite(run, event.citation)
        if type(event) is OpaqueAdded:
            return (self._renumber(event),)
        if type(event) is Ended or type(event) is Failed:
            return [*self.finish(), event]
        return (event,)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        """Feed deltas of one block that `try_pass` does not pass; often only the first one is changed."""
        first, rest = run[0], run[1:]
        events = list(self.feed(first))
        if not rest:
            return events
        if self.try_pass(rest, text[len(first.text) :]):
            return [*events, *rest]
        return events + [out for event in rest for out in self.feed(event)]

    def try_pass(self, run: Sequence[Delta], text: str) -> bool:
        """Pass deltas of one block if they stay unchanged; otherwise change nothing."""
        block = run[0].block
        state = self._runs.get(block)
        if state is None:
            return self._numbers.get(block, block) == block
        if state.block != block or state.what is not _TEXT or not (text if len(run) == 1 else all(map(_get_text, run))):
            return False
        if not state.splitter.try_pass(text):
            return False
        state.received += len(text)
        state.passed += len(text)
        return True

    def finish(self) -> list[Event]:
        """Return the events that are still held back. Blocks that were left open stay open."""
        return [event for run in self._runs.values() for event in self._emit(run, run.splitter.finish())]

    def _open(self, event: Opened, splitter: TextSplitter | None) -> Sequence[Event]:
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
                case ThoughtText(text=text):
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


_TOKEN = re.compile(r"`+|~+|\n|[^\S\n]+|[^\s`~]+")
_MARK = re.compile(r"[`~\n]")
_FENCE = 3  # marks at the beginning of a line


class CodeMarks(Struct, eq=False):
    """Recognises fenced blocks, and code spans within a line. A span that is not closed on its line is not code."""

    _fence: str = ""  # the marks that opened the current block
    _opening: bool = False  # still on the line that opened it
    _closing: bool = False  # this line has marks that close it if nothing follows them
    _span: int = 0  # length of the run of backticks that opened the current span
    _run: str = ""  # marks at the end of the text so far: more of them may follow
    _line_has_text: bool = False

    @property
    def fenced(self) -> bool:
        self._end_run()
        return bool(self._fence)

    @property
    def in_span(self) -> bool:
        """Whether backticks on this line are open. Only the following text decides whether they are a span."""
        self._end_run()
        return self._span > 0

    def advance(self, text: str) -> None:
        if not self._run and not _MARK.search(text):
            if not self._line_has_text or self._closing:
                self._add_words(text)
            return
        for token in _TOKEN.findall(text):
            if token[0] in "`~":
                if self._run and self._run[0] != token[0]:
                    self._end_run()
                self._run += token
                continue
            self._end_run()
            if token == "\n":
                if self._closing:
                    self._fence = ""
                self._closing = self._opening = self._line_has_text = False
                self._span = 0
            else:
                self._add_words(token)

    def _add_words(self, text: str) -> None:
        if (not self._line_has_text or self._closing) and text and not text.isspace():
            self._line_has_text = True
            self._closing = False

    def _end_run(self) -> None:
        """Interpret the last run of marks, which is complete now."""
        run, self._run = self._run, ""
        if not run:
            return
        at_line_start, self._line_has_text = not self._line_has_text, True
        if self._opening and self._fence[0] == run[0] == "`":  # the first line of a block contains no other backticks
            self._span, self._fence, self._opening = len(self._fence), "", False
        if self._fence:
            self._closing = at_line_start and run.startswith(self._fence)
        elif at_line_start and len(run) >= _FENCE:
            self._fence = run
            self._opening = True
        elif run[0] == "`":
            self._span = len(run) if not self._span else 0 if self._span == len(run) else self._span
