"""The events of a reply while it is being generated, whole replies made of them, and the limits on their size.

`Started (Opened (Delta | OpaqueAdded | CitationAdded | ToolReturned)* Closed)* UsageReported* (Ended | Failed)`
Blocks may interleave.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.opaque import Opaque
from dragoman.translate.hub.request import Citation, Json
from dragoman.translate.hub.server_tools import CallPlace, ToolOutcome
from dragoman.translate.hub.usage import Usage


class Stop(Enum):
    END = "end"
    STOP_SEQUENCE = "stop_sequence"
    LENGTH = "length"
    CONTEXT_FULL = "context_full"
    TOOL = "tool"
    FILTERED = "filtered"  # refused or cut by a content policy
    PAUSE = "pause"  # the vendor expects another request to continue the reply

    __hash__ = object.__hash__  # Enum's own is a Python function


class TextBlock(Struct, frozen=True, tag="text"):
    pass


class RefusalBlock(Struct, frozen=True, tag="refusal"):
    pass


class ThinkingBlock(Struct, frozen=True, tag="thinking"):
    raw: bool = False


class CallBlock(Struct, frozen=True, tag="call"):
    id: str
    name: str
    custom: bool = False
    namespace: str | None = None


class HostedBlock(Struct, frozen=True, tag="hosted"):
    """A tool that ran on the server's side.

    One that the vendor ran is complete when it opens. For one that the gateway runs, `ToolReturned` follows.
    """

    id: str
    kind: str  # web_search, code_execution, mcp, image_generation, or the vendor's own name
    input: dict[str, Json] = {}  # search: query; execution: code; MCP call: server, name, arguments; image: media_type
    results: tuple[Citation, ...] | None = None
    raw: Json = None
    output: str | None = None  # what it printed or returned; of an image its bytes, in base64
    failed: bool = False
    outcome: ToolOutcome | None = None  # of a tool that the gateway ran; folded in from `ToolReturned`
    is_ours: bool = False  # the gateway runs it
    place: CallPlace | None = None  # of a call that the gateway runs
    is_resumed: bool = False  # its call stands in the client's history, and only its result is new


Block = TextBlock | RefusalBlock | ThinkingBlock | CallBlock | HostedBlock


@final
class Started(Struct, frozen=True, tag="started"):
    id: str  # the upstream's id of the reply; "" when it gave none
    model: str
    usage: Usage | None = None  # of the input, where the upstream reports it at the start


class Opened(Struct, frozen=True, tag="opened"):
    block: int
    what: Block
    answer: int = 0  # which of several answers to one request it belongs to


class Delta(Struct, frozen=True, gc=False, tag="delta"):
    """More text of a block: an answer, reasoning, a refusal, or the arguments of a tool call."""

    block: int
    text: str
    logprobs: Raw | None = None  # a JSON array of {token, logprob, bytes, top_logprobs}


class OpaqueAdded(Struct, frozen=True, tag="sealed"):
    """The complete opaque value of a thinking block; at most one per block."""

    block: int
    opaque: Opaque


class CitationAdded(Struct, frozen=True, tag="cited"):
    block: int
    citation: Citation


class ToolReturned(Struct, frozen=True, tag="returned"):
    """What a tool that the gateway runs has returned; at most once per block."""

    block: int
    outcome: ToolOutcome


class Closed(Struct, frozen=True, tag="closed"):
    block: int


@final
class UsageReported(Struct, frozen=True, tag="used"):
    """Usage so far. The last report counts; reports are never summed."""

    usage: Usage


class TruncatedCall(Struct, frozen=True):
    """A tool call whose arguments are incomplete. It must never be executed."""

    id: str
    name: str
    arguments: str  # as far as they were received


@final
class Ended(Struct, frozen=True, tag="ended"):
    stop: Stop
    sequence: str | None = None  # the stop sequence that was hit
    category: str | None = None  # of a refusal
    explanation: str | None = None
    continuation: str | None = None  # with PAUSE: the token that continues the same request
    cut: tuple[TruncatedCall, ...] = ()  # with LENGTH: calls that are not passed on because they are incomplete
    others: tuple["Ended", ...] = ()  # how further answers ended, from the second on


@final
class Failed(Struct, frozen=True, tag="failed"):
    failure: Failure


Event = Started | Opened | Delta | OpaqueAdded | CitationAdded | ToolReturned | Closed | UsageReported | Ended | Failed


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


class _Open(Struct, eq=False):
    what: Block
    text: list[str] = []
    opaque: Opaque | None = None
    citations: list[Citation] = []
    logprobs: list[Raw] = []

    def piece(self) -> Piece:
        logprobs = join_arrays(self.logprobs) if self.logprobs else None
        return Piece(self.what, "".join(self.text), self.opaque, tuple(self.citations), logprobs)


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
        if type(event) is Delta:
            block = blocks[event.block]
            block.text.append(event.text)
            if event.logprobs is not None:
                block.logprobs.append(event.logprobs)
        elif type(event) is Closed:
            continue
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


class ReplySize(Struct, eq=False):
    """Counts the calls, blocks and citations of one reply.

    The limits are far above what models send. A larger reply is an upstream's mistake or an attack, and would cost
    other clients time and memory, so it fails.
    """

    _blocks: int = 0
    _calls: int = 0
    _citations: int = 0

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
    if calls <= MAX_CALLS and blocks <= MAX_BLOCKS and citations <= MAX_CITATIONS:  # as of nearly every reply
        return None
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
