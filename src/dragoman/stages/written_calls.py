"""A reply comes in whose text holds calls, as `[Called f with args: {…}]` or as tags; calls go out in their place.

Only tools that were offered are called, only from text outside of code, and only with arguments that are whole.
The same call told natively as well is made once.
"""

from collections.abc import Sequence
from hashlib import sha256

from msgspec.structs import replace

from dragoman.framing.jsonscan import compact, validate_object
from dragoman.hub.events import CallBlock, Closed, Delta, Ended, Event, Failed, Opened, Started, Stop
from dragoman.stages.call_form import Tools
from dragoman.stages.call_splitter import CallSplitter
from dragoman.stages.rewrite_text import TextRewriter


class TextCalls:
    __slots__ = ("_count", "_found", "_held", "_made", "_native", "_reply", "_rewriter", "_seed", "_tools")

    def __init__(self, tools: Tools, seed: str = "") -> None:
        """`seed` sets the ids of this reply apart from those of others."""
        self._tools = tools
        self._seed = seed
        self._reply = ""
        self._count = 0
        self._made: set[tuple[str, str]] = set()  # every call so far
        self._found: set[str] = set()  # names of those that were found in text
        self._native: dict[int, tuple[str, list[str]]] = {}  # the name and the arguments of open native calls
        self._held: dict[int, list[Event]] = {}  # native calls that may repeat one found in text
        self._rewriter = TextRewriter(lambda: CallSplitter(self._tools, self._mint))

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            if event.block not in self._native:
                return self._rewriter.feed(event)
            self._native[event.block][1].append(event.text)
            return self._pass(event.block, event)
        match event:
            case Opened(block=block, what=CallBlock(name=name)):
                self._native[block] = (name, [])
                if name in self._found:
                    self._held[block] = []
                return self._pass(block, event)
            case Closed(block=block) if block in self._native:
                return self._end_native(event)
            case Started(id=id):
                self._reply = id
                return (event,)
            case Ended():
                return [*self.finish(), self._ending(event)]
            case Failed():
                return [*self.finish(), event]
            case _:
                return self._rewriter.feed(event)

    def finish(self) -> list[Event]:
        held = [event for events in self._held.values() for event in events]
        self._held.clear()
        return [*self._rewriter.finish(), *(told for event in held for told in self._rewriter.feed(event))]

    def _pass(self, block: int, event: Event) -> Sequence[Event]:
        held = self._held.get(block)
        if held is None:
            return self._rewriter.feed(event)
        held.append(event)
        return ()

    def _end_native(self, event: Closed) -> Sequence[Event]:
        name, pieces = self._native.pop(event.block)
        held = self._held.pop(event.block, None)
        arguments = validate_object("".join(pieces) or "{}")
        key = (name, compact(arguments)) if arguments is not None else None
        if held is not None and key in self._made:
            return ()
        if key is not None:
            self._made.add(key)
        return [told for passed in (*(held or ()), event) for told in self._rewriter.feed(passed)]

    def _mint(self, name: str, arguments: str) -> str | None:
        key = (name, compact(arguments))
        if key in self._made:
            return None
        self._made.add(key)
        self._found.add(name)
        self._count += 1
        parts = (self._seed, self._reply, str(self._count), name, arguments)
        return "tooluse_" + sha256("\0".join(parts).encode()).hexdigest()[:24]

    def _ending(self, event: Ended) -> Ended:
        """A client runs calls only if the reply ended for them."""
        made = self._found and event.stop in (Stop.END, Stop.LENGTH) and not event.cut
        return replace(event, stop=Stop.TOOL) if made else event
