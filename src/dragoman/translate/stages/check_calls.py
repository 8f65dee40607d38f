"""Replace a call that no client could run by a failure, and pass everything else.

Such a call has no name, or arguments that break off, or that are not a JSON object; the last is no failure for clients
that get arguments as text, and so can see a model's mistake themselves. Whether arguments were cut off by a limit or a
filter is known only from the following events: until then the end of the call is held. If they were, the call passes
as far as it was received, and the reply says that it is cut. A reply that breaks off within a call and claims to be
complete fails, for every client and in every mode. A reply with more blocks, calls or citations than
`translate/hub/events.py` allows fails as well. Custom tools take any text. A call without any arguments is
valid: the tool has no parameters.
"""

from collections.abc import Sequence

import msgspec

from dragoman.translate.framing.jsonscan import is_unclosed_object
from dragoman.translate.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    Opened,
    ReplySize,
    Stop,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import RunStage

CUTS = (Stop.LENGTH, Stop.CONTEXT_FULL, Stop.FILTERED)
BREAKS_OFF = "input that breaks off"
NO_OBJECT = "input that is not a JSON object"
MAX_WATCHED = 1024 * 1024  # characters of arguments that are kept of a reply that only passes


class PendingCallEnd:
    """Hold the end of an incomplete call until the following events show whether a limit or a filter cut it off.

    If so, the held events are released. Anything else that follows, except other ends of blocks, makes it a failure.
    """

    __slots__ = ("_defect", "_held", "_tool", "released")

    def __init__(self, tool: str, closed: Closed, defect: str) -> None:
        """`defect` completes the message "the model called TOOL with ..."."""
        self._tool = tool
        self._defect = defect
        self._held: list[Event] = [closed]
        self.released = False  # the reply was cut off: the held events were passed on

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
                return (Failed(_describe_defect(self._tool, self._defect)),)


def _describe_defect(tool: str, defect: str) -> Failure:
    return Failure(Kind.CORRUPT, f"the model called {tool!r} with {defect}")


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


_COUNTED = frozenset((Opened, CitationAdded))


class CheckCalls(RunStage):
    __slots__ = ("_any_arguments", "_arguments", "_idle", "_names", "_pending", "_size")

    def __init__(self, *, any_arguments: bool = False) -> None:
        self._any_arguments = any_arguments  # unless they break off, they are passed on, without leading blanks
        self._names: dict[int, str] = {}  # of the tools of open calls
        self._arguments: dict[int, list[str]] = {}
        self._pending: PendingCallEnd | None = None  # of a call with invalid arguments
        self._idle = True  # no call is open or held: makes the check of a Delta cheap
        self._size = ReplySize()

    def feed(self, event: Event) -> Sequence[Event]:
        if self._idle and type(event) not in _COUNTED:
            return (event,)
        if self._pending is not None:
            return self._feed_pending(self._pending, event)
        if type(event) is Delta:
            return self._add_arguments(event) if event.block in self._arguments else (event,)
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Opened or type(event) is CitationAdded:
            failure = self._size.count(event)
            if failure is not None:
                return (Failed(failure),)
        if type(event) is Opened and type(event.what) is CallBlock:
            return (self._open(event.block, event.what) or event,)
        if type(event) is Closed and event.block in self._arguments:
            arguments = self._arguments.pop(event.block)
            defect = _find_defect("".join(arguments))
            if defect == BREAKS_OFF or (defect and not self._any_arguments):
                self._pending = PendingCallEnd(self._names[event.block], event, defect)
                return ()
            self._idle = not self._arguments
        return (event,)

    def _open(self, block: int, call: CallBlock) -> Failed | None:
        """Begin to collect the arguments of a call; return the failure if it names no tool."""
        if not call.name.strip():
            return Failed(Failure(Kind.CORRUPT, "the model called a tool without naming it"))
        if not call.custom:
            self._names[block] = call.name
            self._arguments[block] = []
            self._idle = False
        return None

    def passes(self, block: int) -> bool:
        return self._idle

    def _add_arguments(self, event: Delta) -> Sequence[Event]:
        """Add arguments, without leading blanks: blanks alone would be invalid JSON."""
        arguments = self._arguments[event.block]
        if arguments:
            arguments.append(event.text)
            return (event,)
        text = event.text.lstrip()
        if not text:
            return ()
        arguments.append(text)
        return (Delta(event.block, text),)

    def _feed_pending(self, pending: PendingCallEnd, event: Event) -> Sequence[Event]:
        events = pending.feed(event)
        if pending.released:
            self._pending = None
            self._idle = not self._arguments
        return events


def _find_defect(arguments: str) -> str:
    """Return what is wrong with the arguments of a call; empty if nothing is."""
    if not arguments:
        return ""  # no arguments: an empty object
    try:
        _object.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return BREAKS_OFF if is_unclosed_object(arguments) else NO_OBJECT
    return ""


class CutCallMonitor:
    """Finds the call that breaks off in a reply which claims to be complete, where bytes pass unchanged.

    It keeps at most MAX_WATCHED characters; of a reply with longer arguments nothing is known.
    """

    __slots__ = ("_arguments", "_cut", "_names", "_room")

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._arguments: dict[int, list[str]] = {}  # of open calls
        self._cut = ""  # the tool of a call that breaks off
        self._room = MAX_WATCHED

    def observe_run(self, run: Sequence[Delta], text: str) -> None:
        arguments = self._arguments.get(run[0].block)
        if arguments is not None:
            self._room -= len(text)
            if self._room >= 0:
                arguments.append(text)

    def observe(self, event: Event) -> Failure | None:
        """Return the failure of a reply that ends now."""
        if type(event) is Opened and type(event.what) is CallBlock and not event.what.custom:
            self._names[event.block] = event.what.name
            self._arguments[event.block] = []
        elif type(event) is Closed and event.block in self._arguments:
            arguments = "".join(self._arguments.pop(event.block))
            if self._room >= 0 and _find_defect(arguments) == BREAKS_OFF:
                self._cut = self._names[event.block]
        elif type(event) is Ended and self._cut and event.stop not in CUTS:
            return _describe_defect(self._cut, BREAKS_OFF)
        return None
