"""The grammar of events as a table, the guard that enforces it, and the order of blocks for strict clients.

The guard runs in front of every encoder, in production too: a bug of the gateway becomes a counted, well-formed error
instead of a stream that breaks the client's SDK.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from dragoman.translate.hub.events import (
    MAX_BLOCKS,
    MAX_CALLS,
    MAX_CITATIONS,
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
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import RunStage


class ReplyPhase(Enum):
    """The state of the reply as a whole."""

    WAITING = "waiting"
    STREAMING = "streaming"
    OVER = "over"
    SILENT = "silent"  # over; further events are ignored, after one was reported

    __hash__ = object.__hash__  # the guard looks members up for every event; Enum's own is a Python function


class BlockState(Enum):
    """The state of one block. The events that may follow depend on its kind."""

    UNKNOWN = "not opened"
    OPENED = "its kind"  # the state after Opened, until the kind is looked up
    TEXT = "text"
    REFUSAL = "refusal"
    THINKING = "thinking"
    SEALED = "thinking, sealed"
    CALL = "call"
    HOSTED = "hosted"
    RETURNED = "hosted, returned"
    CLOSED = "closed"

    __hash__ = object.__hash__


REPLY_EVENTS: tuple[type[Event], ...] = (
    Started,
    Opened,
    Delta,
    OpaqueAdded,
    CitationAdded,
    ToolReturned,
    Closed,
    UsageReported,
    Ended,
    Failed,
)
BLOCK_EVENTS: tuple[type[Event], ...] = (Opened, Delta, OpaqueAdded, CitationAdded, ToolReturned, Closed)

# A str means that the event is illegal in this state. The text is used as a metric label, so it contains no data.
REPLY: dict[ReplyPhase, dict[type[Event], ReplyPhase | str]] = {
    ReplyPhase.WAITING: {
        Started: ReplyPhase.STREAMING,
        Failed: ReplyPhase.SILENT,  # an upstream may fail before it has sent anything
        **{event: f"{event.__name__} before Started" for event in REPLY_EVENTS[1:-1]},
    },
    ReplyPhase.STREAMING: {
        Started: "Started twice",
        **dict.fromkeys((*BLOCK_EVENTS, UsageReported), ReplyPhase.STREAMING),
        Ended: ReplyPhase.OVER,
        Failed: ReplyPhase.SILENT,
    },
    ReplyPhase.OVER: {event: f"{event.__name__} after Ended" for event in REPLY_EVENTS},
    ReplyPhase.SILENT: dict.fromkeys(REPLY_EVENTS, ReplyPhase.SILENT),
}

_Row = dict[type[Event], BlockState | str]


def _open_row(state: BlockState, **takes: BlockState) -> _Row:
    row: _Row = {Opened: "Opened twice", Closed: BlockState.CLOSED}
    for event in (Delta, OpaqueAdded, CitationAdded, ToolReturned):
        row[event] = takes.get(event.__name__, f"{event.__name__} in a block: {state.value}")
    return row


BLOCKS: dict[BlockState, _Row] = {
    BlockState.UNKNOWN: {
        Opened: BlockState.OPENED,
        **{event: f"{event.__name__} of a block not opened" for event in BLOCK_EVENTS[1:]},
    },
    BlockState.TEXT: _open_row(BlockState.TEXT, Delta=BlockState.TEXT, CitationAdded=BlockState.TEXT),
    BlockState.REFUSAL: _open_row(BlockState.REFUSAL, Delta=BlockState.REFUSAL),
    BlockState.THINKING: _open_row(BlockState.THINKING, Delta=BlockState.THINKING, OpaqueAdded=BlockState.SEALED),
    # Text may follow the opaque value: some vendors send that first.
    BlockState.SEALED: _open_row(BlockState.SEALED, Delta=BlockState.SEALED),
    BlockState.CALL: _open_row(BlockState.CALL, Delta=BlockState.CALL),
    BlockState.HOSTED: _open_row(BlockState.HOSTED, ToolReturned=BlockState.RETURNED),
    BlockState.RETURNED: _open_row(BlockState.RETURNED),
    BlockState.CLOSED: {
        Opened: "Opened twice",
        **{event: f"{event.__name__} of a closed block" for event in BLOCK_EVENTS[1:]},
    },
}

KINDS = {
    TextBlock: BlockState.TEXT,
    RefusalBlock: BlockState.REFUSAL,
    ThinkingBlock: BlockState.THINKING,
    CallBlock: BlockState.CALL,
    HostedBlock: BlockState.HOSTED,
}

UNFINISHED = "the input ended without Ended or Failed"
LEFT_OPEN = "Ended with a block open"

# Looked up once: on Python 3.11, each look-up of a member is slow.
_WAITING, _OVER, _SILENT = ReplyPhase.WAITING, ReplyPhase.OVER, ReplyPhase.SILENT
_UNKNOWN, _CLOSED = BlockState.UNKNOWN, BlockState.CLOSED


class Guard(RunStage):
    """Pass legal events. Replace the first illegal one by a failure, and drop everything after it.

    `UsageReported` may come at any time: the last one is kept and sent just before the end. `on_failure` is called with
    each failure that is passed on, whether the guard or the upstream caused it.
    """

    __slots__ = ("_blocks", "_on_failure", "_on_trip", "_open", "_phase", "_usage", "_writable")

    def __init__(
        self, on_trip: Callable[[str], None], on_failure: Callable[[Failure], None] = lambda failure: None
    ) -> None:
        self._on_trip = on_trip
        self._on_failure = on_failure
        self._phase = _WAITING
        self._blocks: dict[int, BlockState] = {}
        self._open = 0  # how many of them are not closed
        self._writable: set[int] = set()  # the blocks that accept text: one lookup for each Delta
        self._usage: UsageReported | None = None

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta and event.block in self._writable:
            return (event,) if event.text or event.logprobs is not None else ()
        if self._phase is _SILENT:
            return ()
        phase = REPLY[self._phase][type(event)]
        if not isinstance(phase, ReplyPhase):
            return self._report_violation(phase)
        self._phase = phase
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Started:
            return (event,)
        if type(event) is UsageReported:
            self._usage = event
            return ()
        if type(event) is Ended:
            return (*self._close_all(), *self._take_usage(), event)
        if type(event) is Failed:
            self._writable.clear()
            self._on_failure(event.failure)
            return (*self._take_usage(), event)
        return self._step(event)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        if run[0].block in self._writable and (text if len(run) == 1 else "" not in [event.text for event in run]):
            return run
        return self.feed_each(run)

    def finish(self) -> Sequence[Event]:
        if self._phase in (_OVER, _SILENT):
            return ()
        self._on_trip(UNFINISHED)
        return self._fail(Failure(Kind.TRUNCATED, "the reply ended without its terminal event"))

    def _step(self, event: Opened | Delta | OpaqueAdded | CitationAdded | ToolReturned | Closed) -> Sequence[Event]:
        state = BLOCKS[self._blocks.get(event.block, _UNKNOWN)][type(event)]
        if not isinstance(state, BlockState):
            return self._report_violation(state)
        if type(event) is Opened:
            state = KINDS[type(event.what)]
            self._open += 1
        elif type(event) is Closed:
            self._open -= 1
        if type(BLOCKS[state][Delta]) is str:
            self._writable.discard(event.block)
        else:
            self._writable.add(event.block)
        self._blocks[event.block] = state
        return (event,)

    def _report_violation(self, why: str) -> Sequence[Event]:
        self._on_trip(why)
        if self._phase is _OVER:  # the client has already received the end
            self._phase = _SILENT
            return ()
        return self._fail(Failure(Kind.BUG, f"the reply broke the order of events: {why}"))

    def _fail(self, failure: Failure) -> Sequence[Event]:
        self._phase = _SILENT
        self._writable.clear()
        self._on_failure(failure)
        return (*self._take_usage(), Failed(failure))

    def _close_all(self) -> Sequence[Event]:
        self._writable.clear()
        if not self._open:
            return ()
        left = [block for block, state in self._blocks.items() if state is not _CLOSED]
        self._on_trip(LEFT_OPEN)
        return [Closed(block) for block in left]

    def _take_usage(self) -> Sequence[Event]:
        usage, self._usage = self._usage, None
        return () if usage is None else (usage,)


def describe() -> str:
    """Return the page of the documentation about the grammar, made from the tables that the guard uses."""
    reply = _table("reply", REPLY_EVENTS, {phase.value: row for phase, row in REPLY.items()})
    blocks = _table("block", BLOCK_EVENTS, {state.value: row for state, row in BLOCKS.items()})
    return f"""# The order of events

A reply is
`Started (Opened (Delta | OpaqueAdded | CitationAdded | ToolReturned)* Closed)* UsageReported* (Ended | Failed)`.
Blocks may interleave. A guard in front of every encoder enforces this order. A cell is the next state, or **refused**:
then the client gets its protocol's error event, the violation is counted and logged by name, and all later events are
dropped.

Three things are repaired instead: a block that is still open at `Ended` is closed (and counted), an empty `Delta` is
dropped, and `UsageReported` may come at any time after `Started`; the last one is sent just before the end.
An input that ends without `Ended` or `Failed` gets a `Failed` of kind `truncated`. A reply of more than
{MAX_BLOCKS:,} blocks, {MAX_CALLS:,} of them calls, or {MAX_CITATIONS:,} citations fails (`translate/hub/events.py`).

## The reply

{reply}

## Each block

{blocks}
"""


def _table(name: str, events: tuple[type[Event], ...], rows: Mapping[str, Mapping[type[Event], Enum | str]]) -> str:
    lines = [f"| {name} | " + " | ".join(event.__name__ for event in events) + " |", "|---" * (len(events) + 1) + "|"]
    for label, row in rows.items():
        follows = (row[event] for event in events)
        cells = ("**refused**" if isinstance(state, str) else str(state.value) for state in follows)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


class SerialiseBlocks(RunStage):
    """Puts interleaved blocks one after the other, for clients whose protocol does not allow interleaving.

    The first open block is passed on immediately. Events of other blocks wait until it closes; then the block opened
    next is passed on. Nothing is lost or reordered within a block, and blocks keep the order in which they were opened.
    The events that wait can grow to the size of the reply's other blocks, which is unavoidable.
    """

    __slots__ = ("_live", "_live_is_call", "_order", "_waiting")

    def __init__(self) -> None:
        self._live: int | None = None
        self._live_is_call = False
        self._waiting: dict[int, list[Event]] = {}  # in the order of opening
        self._order: deque[int] = deque()  # the same blocks: the front of a dict cannot be removed in constant time

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta and event.block == self._live:
            return (event,)
        match event:
            case Delta(block=block) | OpaqueAdded(block=block) | CitationAdded(block=block) | ToolReturned(block=block):
                return (event,) if block == self._live else self._wait(block, event)
            case Opened(block=block):
                return self._open(event) if self._live is None else self._wait(block, event)
            case Closed(block=block):
                return (event, *self._advance()) if block == self._live else self._wait(block, event)
            case Failed():
                return (*self._end_early(), event)
            case Ended():
                return (*self._drain(), event)
            case _:
                return (event,)

    def passes(self, block: int) -> bool:
        return block == self._live

    def finish(self) -> Sequence[Event]:
        return self._end_early()

    def _open(self, event: Opened) -> Sequence[Event]:
        self._live = event.block
        self._live_is_call = isinstance(event.what, CallBlock)
        return (event,)

    def _wait(self, block: int, event: Event) -> Sequence[Event]:
        held = self._waiting.get(block)
        if held is not None:
            held.append(event)
            return ()
        if isinstance(event, Opened):
            self._waiting[block] = [event]
            self._order.append(block)
            return ()
        return (event,)  # of a block that is not open: the guard reports it

    def _advance(self) -> list[Event]:
        """Pass on all complete blocks and the available part of the next one, after the live block has closed."""
        self._live = None
        passed: list[Event] = []
        while self._order and self._live is None:
            held = self._waiting.pop(self._order.popleft())
            passed += held
            opening = held[0]
            if not isinstance(held[-1], Closed) and isinstance(opening, Opened):
                self._open(opening)
        return passed

    def _end_early(self) -> list[Event]:
        """Return all events that can still be passed on after an early end.

        An incomplete block of text is closed, so that other blocks can follow. An incomplete call is never closed: it
        would look complete, and a client might run it. So complete blocks come first, and one incomplete block may
        follow them and stays open.
        """
        if not self._waiting or (self._live is not None and self._live_is_call):
            return []
        passed: list[Event] = [] if self._live is None else [Closed(self._live)]
        whole = [held for held in self._waiting.values() if isinstance(held[-1], Closed)]
        cut = [held for held in self._waiting.values() if not isinstance(held[-1], Closed)]
        self._waiting.clear()
        self._order.clear()
        for held in (*whole, *cut[:1]):
            passed += held
        return passed

    def _drain(self) -> list[Event]:
        """Pass on all waiting events of a malformed reply, and leave its last block open. A legal reply has none."""
        passed: list[Event] = []
        while self._live is not None and self._waiting:
            passed.append(Closed(self._live))
            passed += self._advance()
        return passed
