"""Turn a call that no client could run into a failure, and pass everything else.

Such a call has no name, or arguments that are not a JSON object. Whether broken arguments are the model's mistake, or
were merely cut by a limit or a filter, is known when the reply goes on: until then the end of such a call is held.
A reply of more blocks, calls or citations than `hub/reply.py` allows is a failure, too.
Custom tools take free text, which is never broken. No arguments at all are those of a tool without parameters.
"""

from collections.abc import Sequence

import msgspec

from dragoman.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    Opened,
    Stop,
    UsageReported,
)
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.reply import ReplySize

CUTS = (Stop.LENGTH, Stop.CONTEXT_FULL, Stop.FILTERED)


class PendingCallEnd:
    """Takes the events that follow a broken call: other ends may, and a cut excuses it; anything else does not."""

    __slots__ = ("_held", "_tool", "_what", "released")

    def __init__(self, tool: str, closed: Closed, what: str) -> None:
        """`what` says what is wrong with the call, after the words "the model called TOOL with"."""
        self._tool = tool
        self._what = what
        self._held: list[Event] = [closed]
        self.released = False  # the reply was cut: all that was held has gone out

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case Closed() | UsageReported():
                self._held.append(event)
                return ()
            case Ended(stop=stop) if stop in CUTS:
                self.released = True
                return (*self._held, event)
            case Failed():
                return (event,)
            case _:
                return (Failed(Failure(Kind.CORRUPT, f"the model called {self._tool!r} with {self._what}")),)


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class CheckCalls:
    __slots__ = ("_arguments", "_broken", "_idle", "_names", "_size")

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # of the tools that open calls are for
        self._arguments: dict[int, list[str]] = {}
        self._broken: PendingCallEnd | None = None  # of a call that turned out broken
        self._idle = True  # no call is open or broken, so that a Delta costs one look
        self._size = ReplySize()

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta and self._idle:
            return (event,)
        if self._broken is not None:
            return self._go_on(self._broken, event)
        if type(event) is Delta:
            return self._argue(event) if event.block in self._arguments else (event,)
        if isinstance(event, Opened | CitationAdded) and (failure := self._size.count(event)) is not None:
            return (Failed(failure),)
        match event:
            case Opened(what=CallBlock(name=name)) if not name.strip():
                return (Failed(Failure(Kind.CORRUPT, "the model called a tool without naming it")),)
            case Opened(block=block, what=CallBlock(name=name, custom=False)):
                self._names[block] = name
                self._arguments[block] = []
                self._idle = False
            case Closed(block=block) if block in self._arguments:
                if not _is_object("".join(self._arguments.pop(block))):
                    self._broken = PendingCallEnd(self._names[block], event, "input that is not a JSON object")
                    return ()
                self._idle = not self._arguments
            case _:
                pass
        return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def _argue(self, event: Delta) -> Sequence[Event]:
        """More arguments; blanks before the first of them would be no JSON if nothing followed."""
        arguments = self._arguments[event.block]
        if arguments:
            arguments.append(event.text)
            return (event,)
        text = event.text.lstrip()
        if not text:
            return ()
        arguments.append(text)
        return (Delta(event.block, text),)

    def _go_on(self, broken: PendingCallEnd, event: Event) -> Sequence[Event]:
        told = broken.feed(event)
        if broken.released:
            self._broken = None
            self._idle = not self._arguments
        return told


def _is_object(arguments: str) -> bool:
    if not arguments:
        return True  # no arguments are an empty one
    try:
        _object.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True
