"""Several answers to one request: `n` of Chat, `candidateCount` of Gemini.

Each answer is decoded and encoded by itself, as if it were the only one. In between they are one sequence of events,
in which `Opened` names the answer of a block and `Ended` has the ends of all.
"""

import typing
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.hub.events import (
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    Started,
    Stop,
    ToolReturned,
    UsageReported,
)
from dragoman.translate.hub.ports import Decoder, Progress

_BLOCKS_APART = 1 << 32  # between the numbers of two answers' blocks


class AnswerMerger(Struct, eq=False):
    """Joins the events of several answers into one sequence."""

    _count: int
    _started: set[int] = set()
    _missing: set[int] = set()
    _ends: dict[int, Ended] = {}
    _usage: UsageReported | None = None
    _over: bool = False

    def add(self, answer: int, events: Iterable[Event]) -> list[Event]:
        """Return the events that follow from more events of one answer."""
        merged: list[Event] = []
        for event in events:
            if self._over:
                return merged
            match event:
                case Started():
                    merged += () if self._started else (event,)
                    self._started.add(answer)
                case UsageReported():
                    self._usage = event  # of all answers
                case Ended():
                    self._ends[answer] = event
                case Failed() if answer and answer not in self._started:
                    self._missing.add(answer)  # the upstream sent fewer answers
                case Failed():
                    self._over = True
                    merged.append(event)
                case Opened(block=block):
                    merged.append(replace(event, block=block + answer * _BLOCKS_APART, answer=answer))
                case _:
                    merged.append(replace(event, block=event.block + answer * _BLOCKS_APART))
        return merged

    def end(self) -> list[Event]:
        """Return usage and end of the reply, if every answer has ended."""
        if self._over or 0 not in self._ends or len(self._ends) + len(self._missing) < self._count:
            return []
        self._over = True
        others = tuple(self._ends.get(answer, Ended(Stop.END)) for answer in range(1, max(self._ends) + 1))
        usage = () if self._usage is None else (self._usage,)
        return [*usage, replace(self._ends[0], others=others)]


class AnswersDecoder:
    """Decodes a stream of several answers. `split` returns what each decoder reads of a frame."""

    __slots__ = ("_decoders", "_merger", "_split")

    def __init__(self, decoders: Sequence[Decoder], split: Callable[[object], Sequence[object]]) -> None:
        self._decoders = decoders
        self._split = split
        self._merger = AnswerMerger(len(decoders))

    @property
    def progress(self) -> Progress:
        is_complete = all(decoder.progress is Progress.COMPLETE for decoder in self._decoders)
        return Progress.COMPLETE if is_complete else Progress.READING

    def feed(self, item: object) -> list[Event]:
        pairs = zip(self._decoders, self._split(item), strict=True)
        return self._merge([decoder.feed(part) for decoder, part in pairs])

    def finish(self) -> list[Event]:
        return self._merge([decoder.finish() for decoder in self._decoders])

    def _merge(self, parts: Sequence[Iterable[Event]]) -> list[Event]:
        merged = [event for answer, events in enumerate(parts) for event in self._merger.add(answer, events)]
        return merged + self._merger.end()


def merge_answers(answers: Sequence[Iterable[Event]]) -> list[Event]:
    """Return the events of a whole reply from those of its answers."""
    merger = AnswerMerger(len(answers))
    merged = [event for answer, events in enumerate(answers) for event in merger.add(answer, events)]
    return merged + merger.end()


def split_answers(events: Iterable[Event]) -> list[list[Event]]:
    """Return the events of each answer of a whole reply. One that failed has only what came before."""
    shared: list[Event] = []
    answers: dict[int, list[Event]] = {0: []}
    answer_of: dict[int, int] = {}
    for event in events:
        match event:
            case Opened(block=block, answer=answer):
                answer_of[block] = answer
                answers.setdefault(answer, []).append(event)
            case Started() | UsageReported():
                shared.append(event)
            case Ended(others=others):
                for answer, end in enumerate((event, *others)):
                    answers.setdefault(answer, []).append(end)
            case Failed():
                answers[0].append(event)
            case _:
                answers[answer_of[event.block]].append(event)
    return [[*shared, *answers[answer]] for answer in sorted(answers)]


class AnswerEncoder(typing.Protocol):
    """Encodes one answer of a stream."""

    def feed(self, event: Event) -> Sequence[bytes]: ...
    def finish(self) -> Sequence[bytes]: ...
    def encode_end(self, ended: Ended, *, is_last: bool) -> Sequence[bytes]: ...  # the last one ends the stream


class AnswersEncoder:
    """Encodes a stream of several answers, each from its first block on; the first begins the stream."""

    __slots__ = ("_answer_of", "_begun", "_encoders", "_started")

    def __init__(self, encoders: Sequence[AnswerEncoder]) -> None:
        self._encoders = encoders
        self._answer_of: dict[int, int] = {}
        self._begun = {0}
        self._started: Started | None = None

    @property
    def first(self) -> AnswerEncoder:
        return self._encoders[0]

    def feed(self, event: Event) -> Sequence[bytes]:
        match event:
            case Opened(block=block, answer=answer):
                self._answer_of[block] = answer
                return [*self._begin(answer), *self._encoders[answer].feed(event)]
            case Delta(block=block) | OpaqueAdded(block=block) | CitationAdded(block=block) | ToolReturned(block=block):
                return self._encoders[self._answer_of[block]].feed(event)
            case Closed(block=block):
                return self._encoders[self._answer_of[block]].feed(event)
            case UsageReported():
                return [frame for encoder in self._encoders for frame in encoder.feed(event)]
            case Ended(others=others):
                return self._end((event, *others))
            case Started():
                self._started = event
        return self.first.feed(event)

    def finish(self) -> Sequence[bytes]:
        return self.first.finish()

    def _begin(self, answer: int) -> Sequence[bytes]:
        if answer in self._begun or self._started is None:
            return ()
        self._begun.add(answer)
        return self._encoders[answer].feed(self._started)

    def _end(self, ends: Sequence[Ended]) -> list[bytes]:
        frames: list[bytes] = []
        for answer, end in enumerate(ends):
            frames += self._begin(answer)
            frames += self._encoders[answer].encode_end(end, is_last=answer == len(ends) - 1)
        return frames
