"""Join several replies into one: those of several upstreams, and the rounds between which the gateway runs tools.

Replies of several upstreams become one as if the first had never been interrupted.
A reply can be continued if it has text and no tool was called. After `interrupt`, the next upstream's events continue
those of the first: its text is added to the open block. Its reasoning is left out: a reply that ends with reasoning
cannot be sent back to its vendor, and reasoning would split the sentence. Text is left out only where it certainly is
a repetition (see `ContinuationStart`). What is left out is noted in the ledger of the upstream that wrote it. Usage is
summed over all upstreams.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.translate.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    OpaqueAdded,
    Opened,
    RefusalBlock,
    Started,
    TextBlock,
    ThinkingBlock,
    ToolReturned,
    UsageReported,
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.server_tools import SearchFound, WebPage
from dragoman.translate.hub.usage import Usage

FINAL = (CallBlock, HostedBlock, RefusalBlock)  # a reply with one of these, or several answers, is not continued


class JoinReplies:
    """Connects the stages of each upstream in turn to the stages of the client, which stay the same."""

    def __init__(self) -> None:
        self.used_before: Usage | None = None  # of the upstreams whose replies were continued
        self._interrupted: Usage | None = None  # the same, plus the upstream that is to be continued
        self._pieces: list[str] = []
        self._final = False
        self._open: dict[int, bool] = {}  # blocks that were passed on -> whether they contain text
        self._numbers: dict[int, int] = {}  # this upstream's blocks -> those that were passed on
        self._unopened: set[int] = set()  # its text blocks that have no text yet
        self._reasoning: set[int] = set()  # its blocks of reasoning, which are left out
        self._answers: dict[int, int] = {}  # its text blocks of further answers -> which answer
        self._next = 0
        self._inherited: list[int] = []  # blocks that were open when the reply was interrupted
        self._stale: list[int] = []  # those of them without text that are not closed yet
        self._first = True
        self._start: ContinuationStart | None = None
        self._ledger = Ledger()  # until the first token, when `accept_continuation` supplies the upstream's own

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def can_be_continued(self) -> bool:
        return bool(self._pieces) and not self._final

    def interrupt(self, used: Usage) -> None:
        """Prepare for another upstream. `used` is the usage of the one that was interrupted."""
        self._interrupted = used if self.used_before is None else self.used_before + used
        self._first = False
        self._inherited = list(self._open)
        self._stale = [number for number, has_text in self._open.items() if not has_text]

    def begin_continuation(self, marker: str) -> None:
        """Prepare for the events of an upstream whose instructions are to write `marker` first.

        Events of an upstream that failed before its first token are forgotten.
        """
        self._numbers.clear()
        self._unopened.clear()
        self._reasoning.clear()
        self._start = ContinuationStart(self.text, marker)
        self._ledger = Ledger()

    def accept_continuation(self, ledger: Ledger) -> None:
        """Note the first token of a continuing upstream, and its ledger for what is left out of its reply."""
        self.used_before = self._interrupted
        for loss in self._ledger:
            ledger.record_dropped(loss.path, loss.why)
        self._ledger = ledger

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case Started():
                return (event,) if self._first else ()
            case Opened(block=block, what=TextBlock(), answer=answer):
                self._unopened.add(block)
                if answer:
                    self._record_answer(block, answer)
                return ()
            case Opened(block=block, what=ThinkingBlock()) if not self._first:
                self._reasoning.add(block)
                self._ledger.record_dropped("/thinking", "reasoning of an upstream that continues another's reply")
                return ()
            case Delta(block=block) | OpaqueAdded(block=block) | Closed(block=block) if block in self._reasoning:
                return ()
            case Opened(block=block, what=what, answer=answer):
                self._final |= isinstance(what, FINAL) or answer > 0
                return [*self._close_unjoined(), Opened(self._assign_number(block, has_text=False), what, answer)]
            case Delta(block=block, text=text) if self._holds_text(block):
                return self._feed_text(block, text, event)
            case Closed(block=block) if self._holds_text(block):
                return self._close(block)
            case Closed(block=block):
                self._open.pop(self._numbers.get(block, block), None)
                return (_renumber(event, self._numbers.get(block, block)),)
            case Delta(block=block) | OpaqueAdded(block=block) | CitationAdded(block=block):
                return (_renumber(event, self._numbers.get(block, block)),)
            case UsageReported(usage=usage) if self._interrupted is not None:
                return (UsageReported(self._interrupted + usage),)
            case Ended() if not self._first:
                return [*self._release_held(), *map(Closed, self._open), event]
            case Failed() if self._start is not None:
                return [*self._release_held(), event]
            case _:
                return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def _record_answer(self, block: int, answer: int) -> None:
        self._answers[block] = answer
        self._final = True

    def _holds_text(self, block: int) -> bool:
        return block in self._unopened or self._open.get(self._numbers.get(block, -1), False)

    def _feed_text(self, block: int, text: str, event: Delta) -> list[Event]:
        """Pass on text, except what may precede the marker, which is held back."""
        if self._start is not None:
            fresh = self._start.feed(text)
            self._record_repetition()
            if fresh != text:
                if event.logprobs:
                    self._ledger.record_dropped(
                        "/logprobs", "of text that was held back at the start of the continuation"
                    )
                event = Delta(block, fresh)
        return self._pass_text(block, event)

    def _record_repetition(self) -> None:
        if self._start is not None and (size := self._start.dropped):
            self._ledger.record_dropped(
                "/text", f"{size} characters in front of the marker that repeat the reply so far"
            )

    def _pass_text(self, block: int, event: Delta) -> list[Event]:
        if not event.text:
            return []
        self._pieces.append(event.text)
        opening: list[Event] = []
        if block in self._unopened:
            self._unopened.discard(block)
            joined = (
                None if self._first else next((number for number, has_text in self._open.items() if has_text), None)
            )
            if joined is None:
                number = self._assign_number(block, has_text=True)
                opening.append(Opened(number, TextBlock(), self._answers.get(block, 0)))
            else:
                self._numbers[block] = joined
        return [*self._close_stale(), *opening, _renumber(event, self._numbers[block])]

    def _close(self, block: int) -> list[Event]:
        released = self._release_held(block)
        if block in self._unopened:  # it had no text
            self._unopened.discard(block)
            return []
        number = self._numbers[block]
        self._open.pop(number)
        return [*released, Closed(number)]

    def _release_held(self, block: int | None = None) -> list[Event]:
        """Pass on text that was held back; by default as part of the last block that may contain text."""
        start, self._start = self._start, None
        if block is None:
            block = next(
                (number for number in [*self._unopened, *reversed(self._numbers)] if self._holds_text(number)), None
            )
        if start is None or block is None:
            return []
        return self._pass_text(block, Delta(block, start.finish()))

    def _close_stale(self) -> list[Event]:
        """Close the blocks that are not continued, once other events follow."""
        stale, self._stale = self._stale, []
        for number in stale:
            self._open.pop(number, None)
        return [Closed(number) for number in stale]

    def _close_unjoined(self) -> list[Event]:
        """Close the blocks of earlier upstreams that this one has not continued: it goes on with another."""
        if not self._inherited:
            return []
        joined = set(self._numbers.values())
        unjoined = [number for number in self._inherited if number in self._open and number not in joined]
        self._stale, self._inherited = [], []
        for number in unjoined:
            del self._open[number]
        return [Closed(number) for number in unjoined]

    def _assign_number(self, block: int, *, has_text: bool) -> int:
        number = self._numbers[block] = self._next
        self._next += 1
        self._open[number] = has_text
        return number


class ContinuationStart:
    """Find the start of the continuation in the text of the next upstream.

    Its instructions are to write `marker` and to continue directly after it. The marker is always removed. Text in
    front of it is a repetition, and is left out, if the reply so far ends with exactly that text and more text follows.
    Anything else is kept: an exact continuation of a repetitive reply looks the same as a repetition, and a visible
    repetition does less harm than a silent loss.
    """

    LOOK_BACK = 1000  # characters; a longer repetition is kept

    def __init__(self, text_so_far: str, marker: str) -> None:
        self._end = text_so_far[-self.LOOK_BACK :]
        self._marker = marker
        self._held = ""
        self._repetition = ""  # in front of the marker, until text follows the marker
        self._at_start = True
        self._found = not marker
        self.dropped = 0  # characters

    def feed(self, text: str) -> str:
        """Return what may be passed on now."""
        if self._found:
            return self._after_marker(text)
        self._held += text
        before, marker, after = self._held.partition(self._marker)
        if marker:
            self._found, self._held = True, ""
            if not (self._at_start and self._end.endswith(before)):
                return before + after
            self._repetition = before
            return self._after_marker(after)
        if self._at_start and self._may_be_repetition():
            return ""
        self._at_start = False
        return self._release(keep=_overlap(self._held, self._marker))

    def finish(self) -> str:
        """Return the text that is still held: the text has ended, so no marker follows."""
        return self._repetition + self._release(keep=0)

    def _after_marker(self, text: str) -> str:
        if text and self._repetition:
            self.dropped, self._repetition = len(self._repetition), ""
        return text

    def _may_be_repetition(self) -> bool:
        """Return whether the held text may be the end of the reply so far, followed by the marker."""
        if self._held in self._end:
            return True
        size = len(self._held) - _overlap(self._held, self._marker)
        return size < len(self._held) and self._end.endswith(self._held[:size])

    def _release(self, keep: int) -> str:
        place = len(self._held) - keep
        released, self._held = self._held[:place], self._held[place:]
        return released


def _overlap(text: str, marker: str) -> int:
    """Return how many of the last characters of a text may be the beginning of the marker."""
    sizes = range(min(len(text), len(marker) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)


def _renumber(event: Delta | OpaqueAdded | CitationAdded | Closed, block: int) -> Event:
    if event.block == block:
        return event
    match event:
        case Delta(text=text, logprobs=logprobs):
            return Delta(block, text, logprobs)
        case OpaqueAdded(opaque=opaque):
            return OpaqueAdded(block, opaque)
        case CitationAdded(citation=citation):
            return CitationAdded(block, citation)
        case Closed():
            return Closed(block)


class JoinRounds:
    """Numbers the blocks of all rounds in one sequence, keeps the first start, and sums usage and tool runs."""

    def __init__(self) -> None:
        self._first = 0  # the number of this round's block 0
        self._next = 0
        self._has_started = False
        self._round = Usage()  # what this round has used so far
        self._searches = self._fetches = 0  # since this round began
        self.used_before: Usage | None = None  # by earlier rounds

    @classmethod
    def after(cls, blocks: int, used: Usage) -> "JoinRounds":
        """Return the state after a first round that was not joined to others."""
        joined = cls()
        joined._next, joined._has_started, joined._round = blocks, True, used
        return joined

    def begin_round(self) -> None:
        """Expect the events of another round."""
        self._first = self._next
        self.used_before = self._total()
        self._round = Usage()
        self._searches = self._fetches = 0

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case Started():
                if self._has_started:
                    return ()
                self._has_started = True
                return (event,)
            case Opened(block=block):
                self._next = max(self._next, self._first + block + 1)
                return (replace(event, block=self._first + block),)
            case ToolReturned(block=block, outcome=outcome):
                self._searches += isinstance(outcome, SearchFound)
                self._fetches += isinstance(outcome, WebPage)  # a run that failed is not counted
                return (replace(event, block=self._first + block),)
            case Delta() | OpaqueAdded() | CitationAdded() | Closed():
                return (replace(event, block=self._first + event.block),) if self._first else (event,)
            case UsageReported(usage=usage):
                self._round = usage
                return (UsageReported(self._total()),)
            case Ended() if self._searches or self._fetches:  # tools have run after the usage was reported
                return UsageReported(self._total()), event
            case _:
                return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def _total(self) -> Usage:
        searches, fetches = self._round.web_searches + self._searches, self._round.web_fetches + self._fetches
        total = replace(self._round, web_searches=searches, web_fetches=fetches)
        if self.used_before is None:
            return total
        return self.used_before + replace(total, later_input=total.input)
