"""Whole replies, their conversion from and to events, and the limits on their size."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.hub.events import (
    Block,
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
    Started,
    ToolReturned,
    UsageReported,
)
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.opaque import Opaque
from dragoman.hub.request import Citation
from dragoman.hub.usage import Usage


class Piece(Struct, frozen=True):
    """One finished block."""

    what: Block
    text: str = ""
    opaque: Opaque | None = None
    citations: tuple[Citation, ...] = ()
    logprobs: Raw | None = None


class Reply(Struct, frozen=True):
    id: str
    model: str
    pieces: tuple[Piece, ...]
    usage: Usage | None
    end: Ended | Failed


class _Open:
    __slots__ = ("citations", "logprobs", "opaque", "text", "what")

    def __init__(self, what: Block) -> None:
        self.what = what
        self.text: list[str] = []
        self.opaque: Opaque | None = None
        self.citations: list[Citation] = []
        self.logprobs: list[Raw] = []

    def piece(self) -> Piece:
        return Piece(self.what, "".join(self.text), self.opaque, tuple(self.citations), join_arrays(self.logprobs))


def join_arrays(arrays: Sequence[Raw]) -> Raw | None:
    """Return one JSON array of the items of all; None if there is none."""
    if not arrays:
        return None
    items: list[Raw] = []
    for array in arrays:
        items += msgspec.json.decode(array, type=list[Raw])
    return Raw(msgspec.json.encode(items))


def collect(events: Iterable[Event]) -> Reply:
    """Fold a legal sequence of events into a reply."""
    started = Started("", "")
    blocks: dict[int, _Open] = {}
    usage: Usage | None = None
    end: Ended | Failed | None = None
    for event in events:
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Closed:
            continue
        if type(event) is Delta:
            blocks[event.block].text.append(event.text)
            if event.logprobs is not None:
                blocks[event.block].logprobs.append(event.logprobs)
        elif type(event) is Opened:
            blocks[event.block] = _Open(event.what)
        elif type(event) is Started:
            started = event
            usage = event.usage
        elif type(event) is UsageReported:
            usage = event.usage
        elif type(event) is Ended or type(event) is Failed:
            end = event
        elif type(event) is OpaqueAdded:
            blocks[event.block].opaque = event.opaque
        elif type(event) is CitationAdded:
            blocks[event.block].citations.append(event.citation)
        elif type(event) is ToolReturned:
            what = blocks[event.block].what
            assert isinstance(what, HostedBlock)
            blocks[event.block].what = replace(what, outcome=event.outcome)
    pieces = tuple(map(_Open.piece, blocks.values()))
    ending = end or Failed(Failure(Kind.TRUNCATED, "the reply ended without its terminal event"))
    return Reply(started.id, started.model, pieces, usage, ending)


def explode(reply: Reply) -> Iterator[Event]:
    """Return a whole reply as a sequence of events."""
    yield Started(reply.id, reply.model, reply.usage)
    for index, piece in enumerate(reply.pieces):
        what, outcome = piece.what, None
        if type(what) is HostedBlock and what.outcome is not None:
            what, outcome = replace(what, outcome=None), what.outcome
        yield Opened(index, what)
        if outcome is not None:
            yield ToolReturned(index, outcome)
        if piece.text or piece.logprobs is not None:
            yield Delta(index, piece.text, piece.logprobs)
        for citation in piece.citations:
            yield CitationAdded(index, citation)
        if piece.opaque is not None:
            yield OpaqueAdded(index, piece.opaque)
        yield Closed(index)
    if reply.usage is not None:
        yield UsageReported(reply.usage)
    yield reply.end


MAX_CALLS = 1_000
MAX_BLOCKS = 10_000  # calls included
MAX_CITATIONS = 10_000  # search results included


class ReplySize:
    """Counts the calls, blocks and citations of one reply.

    The limits are far above what models send. A larger reply is an upstream's mistake or an attack, and would cost
    other clients time and memory, so it fails.
    """

    __slots__ = ("_blocks", "_calls", "_citations")

    def __init__(self) -> None:
        self._blocks = 0
        self._calls = 0
        self._citations = 0

    def count(self, event: Opened | CitationAdded) -> Failure | None:
        """Count the event. Return a failure if it exceeds a limit."""
        if type(event) is Opened:
            what = event.what
            self._blocks += 1
            if type(what) is CallBlock:
                self._calls += 1
            elif type(what) is HostedBlock:
                self._citations += len(what.results or ())
        else:
            self._citations += 1
        return find_excess(self._calls, self._blocks, self._citations)


def find_excess(calls: int = 0, blocks: int = 0, citations: int = 0) -> Failure | None:
    """Return the failure of a reply that exceeds a limit; None if it does not."""
    counts = (
        (calls, MAX_CALLS, "tool calls"),
        (blocks, MAX_BLOCKS, "content blocks"),
        (citations, MAX_CITATIONS, "citations"),
    )
    for count, most, name in counts:
        if count > most:
            message = f"the upstream's reply has more than {most} {name}, which is the limit for one reply"
            return Failure(Kind.CORRUPT, message, code="reply_too_large")
    return None
