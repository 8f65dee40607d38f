"""The replies of one upstream after another come in; one reply goes out, as if the first had never broken off.

A failure is held back while the reply is such that another upstream could go on with it: words have been said and no
tool was called. After `resume`, the next upstream's events continue the first one's: its words join the open block, and
words that it says again are said once. Its thoughts are left out: a reply that ends with one cannot be sent back to its
vendor, and a sentence that one interrupts is not the sentence that was begun. What all of them have used is added up.
"""

from collections.abc import Sequence

from dragoman.hub.events import (
    CallBlock,
    Cited,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    Opened,
    RefusalBlock,
    Sealed,
    Started,
    TextBlock,
    ThinkingBlock,
    Used,
)
from dragoman.hub.failure import Failure
from dragoman.hub.usage import Usage

FINAL = (CallBlock, HostedBlock, RefusalBlock)  # after which nobody else can go on


class CarryOn:
    """Stands between the stages of an upstream, which change with it, and those of the client, which stay."""

    def __init__(self) -> None:
        self.broken: Failure | None = None  # held back
        self.spent: Usage | None = None  # by those who broke off and were gone on with
        self._before: Usage | None = None  # the same, with the one that somebody is to go on with
        self._said: list[str] = []
        self._final = False
        self._open: dict[int, bool] = {}  # blocks that went out -> whether they hold words
        self._numbers: dict[int, int] = {}  # this upstream's blocks -> those that went out
        self._unopened: set[int] = set()  # its blocks of words that have none yet
        self._thoughts: set[int] = set()  # its blocks that are left out
        self._next = 0
        self._first = True
        self._repeated: Repeated | None = None

    @property
    def said(self) -> str:
        return "".join(self._said)

    def resume(self, spent: Usage) -> None:
        """What comes now is another upstream's; `spent` is what the last one has used."""
        self.broken = None
        self._before = spent if self.spent is None else self.spent + spent
        self._first = False
        self._numbers.clear()
        self._unopened.clear()
        self._thoughts.clear()
        self._repeated = Repeated(self.said)

    def gone_on(self) -> None:
        """There is another upstream indeed."""
        self.spent = self._before

    def seal(self) -> None:
        """Nobody goes on."""
        self.broken, self._final = None, True

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case Started():
                return (event,) if self._first else [Closed(block) for block in self._others()]
            case Opened(block=block, what=TextBlock()):
                self._unopened.add(block)
                return ()
            case Opened(block=block, what=ThinkingBlock()) if not self._first:
                self._thoughts.add(block)
                return ()
            case Delta(block=block) | Sealed(block=block) | Closed(block=block) if block in self._thoughts:
                return ()
            case Opened(block=block, what=what):
                self._final |= isinstance(what, FINAL)
                return (Opened(self._numbered(block, words=False), what),)
            case Delta(block=block, text=text) if self._holds_words(block):
                return self._words(block, text, event)
            case Closed(block=block) if self._holds_words(block):
                return self._closed(block)
            case Closed(block=block):
                self._open.pop(self._numbers.get(block, block), None)
                return (_moved(event, self._numbers.get(block, block)),)
            case Delta(block=block) | Sealed(block=block) | Cited(block=block):
                return (_moved(event, self._numbers.get(block, block)),)
            case Used(usage=usage) if self._before is not None:
                return (Used(self._before + usage),)
            case Ended() if self._repeated is not None:
                return [*(out for block in [*self._numbers, *self._unopened] for out in self._closed(block)), event]
            case Failed(failure=failure) if self._said and not self._final:
                self.broken = failure
                return ()
            case _:
                return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def _holds_words(self, block: int) -> bool:
        return block in self._unopened or self._open.get(self._numbers.get(block, -1), False)

    def _words(self, block: int, text: str, event: Delta) -> list[Event]:
        """Held back while they may be what was said already."""
        if self._repeated is not None:
            fresh = self._repeated.feed(text)
            if fresh is None:
                return []
            self._repeated = None
            event = event if fresh == text else Delta(block, fresh)
        return self._spoken(block, event)

    def _spoken(self, block: int, event: Delta) -> list[Event]:
        if not event.text:
            return []
        self._said.append(event.text)
        opening: list[Event] = []
        if block in self._unopened:
            self._unopened.discard(block)
            joined = next((number for number, words in self._open.items() if words and not self._first), None)
            if joined is None:
                opening.append(Opened(self._numbered(block, words=True), TextBlock()))
            else:
                self._numbers[block] = joined
        return [*opening, _moved(event, self._numbers[block])]

    def _closed(self, block: int) -> list[Event]:
        told: list[Event] = []
        if self._repeated is not None:
            rest, self._repeated = self._repeated.rest(), None
            told = self._spoken(block, Delta(block, rest))
        if block in self._unopened:  # it had no words
            self._unopened.discard(block)
            return []
        number = self._numbers[block]
        self._open.pop(number)
        return [*told, Closed(number)]

    def _others(self) -> list[int]:
        """The blocks that broke off in the middle and that nobody goes on with."""
        left = [number for number, words in self._open.items() if not words]
        for number in left:
            del self._open[number]
        return left

    def _numbered(self, block: int, *, words: bool) -> int:
        number = self._numbers[block] = self._next
        self._next += 1
        self._open[number] = words
        return number


class Repeated:
    """Words that may repeat the end of what was said: held while that is possible, then told without the repetition."""

    LOOK_BACK = 2000
    AT_LEAST = 16  # characters in common that are no coincidence

    def __init__(self, said: str) -> None:
        self._end = said[-self.LOOK_BACK :]
        self._held = ""

    def feed(self, text: str) -> str | None:
        """None: not to be told yet."""
        self._held += text
        longest = min(len(self._end), len(self._held))
        for size in range(longest, self.AT_LEAST - 1, -1):
            if self._end.endswith(self._held[:size]):
                return self._held[size:]
        return None if self._held in self._end else self._held

    def rest(self) -> str:
        """The words have ended before they had repeated all: they are told after all."""
        return self._held


def _moved(event: Delta | Sealed | Cited | Closed, block: int) -> Event:
    if event.block == block:
        return event
    match event:
        case Delta(text=text, logprobs=logprobs):
            return Delta(block, text, logprobs)
        case Sealed(opaque=opaque):
            return Sealed(block, opaque)
        case Cited(citation=citation):
            return Cited(block, citation)
        case Closed():
            return Closed(block)
