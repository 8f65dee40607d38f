"""Hold back the end of a reply, until the gateway has requested the rest of it, run tools or completed a call."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dragoman.translate.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    OpaqueAdded,
    Opened,
    Stop,
    TextBlock,
    ToolReturned,
)
from dragoman.translate.hub.ports import RunStage


class ServerCall(Struct, frozen=True):
    """A call of a tool that the gateway runs."""

    id: str
    kind: str  # web_search | web_fetch
    arguments: str  # JSON text, perhaps malformed


class HoldServerCalls:
    """Passes a reply on, without calls of the gateway's own tools.

    A block that opens after such a call is held too, so that the client can be sent everything in the order of the
    model's reply once the tool has run. The end is held if there is such a call: the reply continues. A reply that was
    cut off or filtered does not go on: the calls are dropped.
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds  # a function's name upstream -> what it stands for
        self._ids: dict[int, tuple[str, str]] = {}  # block of a held call -> its id and kind
        self._arguments: dict[int, list[str]] = {}
        self._later: set[int] = set()  # blocks that opened after a held call
        self._order: list[int | Event] = []  # what is held: a call by its block, or an event
        self.events: list[Event] = []  # the whole reply as it came, for the next request
        self.end: Ended | None = None

    @property
    def held(self) -> list[ServerCall | Event]:
        """Return what is held, in the order of the reply."""
        return [self._call(item) if isinstance(item, int) else item for item in self._order]

    @property
    def calls_client_tool(self) -> bool:
        """Whether the reply also calls a tool of the client."""
        calls = (event.what for event in self.events if isinstance(event, Opened))
        return any(isinstance(what, CallBlock) and what.name not in self._kinds for what in calls)

    def block_of(self, call_id: str) -> int:
        return next(block for block, (id, _) in self._ids.items() if id == call_id)

    def feed(self, event: Event) -> Sequence[Event]:
        self.events.append(event)
        match event:
            case Opened(block=block, what=CallBlock(id=id, name=name)) if name in self._kinds:
                self._ids[block] = (id, self._kinds[name])
                self._arguments[block] = []
                self._order.append(block)
                return ()
            case Delta(block=block, text=text) if block in self._ids:
                self._arguments[block].append(text)
                return ()
            case Closed(block=block) if block in self._ids:
                return ()
            case Opened(block=block) if self._ids:
                self._later.add(block)
                self._order.append(event)
                return ()
            case Delta() | OpaqueAdded() | CitationAdded() | ToolReturned() | Closed() if event.block in self._later:
                self._order.append(event)
                return ()
            case Ended(stop=stop) if self._ids and stop in (Stop.TOOL, Stop.END):
                self.end = event
                return ()
            case Ended() if self._later:  # the tools do not run, but what came after their calls is the client's
                return [*(item for item in self._order if not isinstance(item, int)), event]
            case _:
                return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def _call(self, block: int) -> ServerCall:
        id, kind = self._ids[block]
        return ServerCall(id, kind, "".join(self._arguments[block]))


class HoldTruncatedCall(RunStage):
    """Passes all events but such an end, and keeps the text of the reply for the request that completes the call."""

    __slots__ = ("_pieces", "_texts", "held", "next_block")

    def __init__(self) -> None:
        self.held: Ended | None = None
        self.next_block = 0
        self._texts: set[int] = set()
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            if event.block in self._texts:
                self._pieces.append(event.text)
            return (event,)
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Opened:
            self.next_block = max(self.next_block, event.block + 1)
            if type(event.what) is TextBlock:
                self._texts.add(event.block)
        elif type(event) is Ended and event.cut and self.held is None:
            self.held = event
            return ()
        return (event,)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        if run[0].block in self._texts:
            self._pieces.append(text)
        return run


class HoldPause:
    """Passes a reply on, without its end if that is a pause, and keeps the events for the request that continues it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.end: Ended | None = None

    def feed(self, event: Event) -> Sequence[Event]:
        self.events.append(event)
        if isinstance(event, Ended) and event.stop is Stop.PAUSE:
            self.end = event
            return ()
        return (event,)

    def finish(self) -> Sequence[Event]:
        return ()


class HoldContinuation(RunStage):
    """Passes a reply on, without its end if a token continues the same request."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end: Ended | None = None

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Ended and event.continuation is not None:
            self.end = event
            return ()
        return (event,)

    def passes(self, block: int) -> bool:
        return True
