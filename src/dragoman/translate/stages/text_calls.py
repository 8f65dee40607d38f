"""Turn calls that a model has written into its text into tool calls.

Only tools of the request are called, only from text outside of code, and only with complete arguments. If the same
call is in the reply as a native tool call as well, it is made once.
"""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256

from msgspec.structs import replace

from dragoman.translate.framing.jsonscan import compact, validate_object
from dragoman.translate.hub.events import CallBlock, Closed, Delta, Ended, Event, Failed, Opened, Started, Stop
from dragoman.translate.hub.ports import RunStage
from dragoman.translate.stages.call_syntax import BRACKET, TAGS, CallReader, Tools
from dragoman.translate.stages.rewrite_text import CodeMarks, FoundCall, Segment, TextRewriter


class TextCalls(RunStage):
    __slots__ = ("_count", "_found", "_held", "_made", "_native", "_reply", "_rewriter", "_seed", "_tools")

    def __init__(self, tools: Tools, seed: str = "") -> None:
        """`seed` distinguishes the ids of this reply from those of others."""
        self._tools = tools
        self._seed = seed
        self._reply = ""
        self._count = 0
        self._made: set[tuple[str, str]] = set()  # every call so far
        self._found: set[str] = set()  # names of the tools whose calls were found in text
        self._native: dict[int, tuple[str, list[str]]] = {}  # the name and the arguments of open native calls
        self._held: dict[int, list[Event]] = {}  # native calls that may repeat one found in text
        self._rewriter = TextRewriter(lambda: CallSplitter(self._tools, self._new_id))

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            if event.block not in self._native:
                return self._rewriter.feed(event)
            self._native[event.block][1].append(event.text)
            return self._pass(event.block, event)
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Opened and type(event.what) is CallBlock:
            self._native[event.block] = (event.what.name, [])
            if event.what.name in self._found:
                self._held[event.block] = []
            return self._pass(event.block, event)
        if type(event) is Closed and event.block in self._native:
            return self._end_native(event)
        if type(event) is Started:
            self._reply = event.id
            return (event,)
        if type(event) is Ended:
            return [*self.finish(), self._fix_stop_reason(event)]
        if type(event) is Failed:
            return [*self.finish(), event]
        return self._rewriter.feed(event)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        if run[0].block in self._native:
            return self.feed_each(run)
        return run if self._rewriter.try_pass(run, text) else self._rewriter.feed_run(run, text)

    def finish(self) -> list[Event]:
        held = [event for events in self._held.values() for event in events]
        self._held.clear()
        return [*self._rewriter.finish(), *(out for event in held for out in self._rewriter.feed(event))]

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
        return [out for passed in (*(held or ()), event) for out in self._rewriter.feed(passed)]

    def _new_id(self, name: str, arguments: str) -> str | None:
        key = (name, compact(arguments))
        if key in self._made:
            return None
        self._made.add(key)
        self._found.add(name)
        self._count += 1
        parts = (self._seed, self._reply, str(self._count), name, arguments)
        return "tooluse_" + sha256("\0".join(parts).encode()).hexdigest()[:24]

    def _fix_stop_reason(self, event: Ended) -> Ended:
        """Return the end with TOOL as its reason: clients run calls only then."""
        made = self._found and event.stop in (Stop.END, Stop.LENGTH) and not event.cut
        return replace(event, stop=Stop.TOOL) if made else event


MAX_CALL_CHARS = 4 * 1024 * 1024
SLICE_CHARS = 4096  # the rest of a text is copied for each call in it, so a long text is read in slices

_SYNTAXES = {"[": BRACKET, "<": TAGS}  # by the first character of the head
_MARK = re.compile(r"\[(?=C|\Z)|<(?=f|\Z)")  # where a head may begin

NewCallId = Callable[[str, str], str | None]  # name, arguments -> the call's id; None if the call was already made


class CallSplitter:
    """Separate the calls in the text of one block from its other text. Calls within code are ignored."""

    __slots__ = ("_code", "_held", "_new_id", "_reader", "_remaining", "_tools")

    def __init__(self, tools: Tools, new_id: NewCallId) -> None:
        self._tools = tools
        self._new_id = new_id
        self._code = CodeMarks()
        self._held = ""  # what may be the beginning of a head
        self._reader: CallReader | None = None
        self._remaining = 0  # characters that the reader may still read

    def try_pass(self, text: str) -> bool:
        if self._reader is not None or self._held or "[" in text or "<" in text:
            return False
        self._code.advance(text)
        return True

    def feed(self, text: str) -> Sequence[Segment]:
        if self.try_pass(text):
            return (text,)
        segments: list[Segment] = []
        for start in range(0, len(text), SLICE_CHARS):
            rest = text[start : start + SLICE_CHARS]
            while rest:
                rest = self._seek(rest, segments) if self._reader is None else self._read(self._reader, rest, segments)
        return segments

    def finish(self) -> Sequence[Segment]:
        segments: list[Segment] = []
        if self._reader is not None:
            self._reader.finish()
            self._end(self._reader, segments)
        self._keep_as_text(segments, self._held)
        self._held = ""
        return segments

    def _seek(self, text: str, segments: list[Segment]) -> str:
        text, self._held = self._held + text, ""
        at = 0  # the code marks are processed up to here
        while (found := _MARK.search(text, at)) is not None:
            place = found.start()
            self._code.advance(text[at:place])
            at = place
            if not (self._code.fenced or self._code.in_span):
                syntax = _SYNTAXES[text[place]]
                head = syntax.head.match(text, place)
                if head is not None and head[1] in self._tools:
                    _add(segments, text[:place])
                    self._reader, self._remaining = syntax.read(head, self._tools), MAX_CALL_CHARS + 1
                    return text[head.end() :]
                if head is None and syntax.prefix.fullmatch(text, place):
                    self._held = text[place:]
                    _add(segments, text[:place])
                    return ""
            self._code.advance(text[place])
            at = place + 1
        self._code.advance(text[at:])
        _add(segments, text)
        return ""

    def _read(self, reader: CallReader, text: str, segments: list[Segment]) -> str:
        piece = text[: self._remaining]
        rest = reader.feed(piece)
        self._remaining -= len(piece)
        if rest is not None:
            self._end(reader, segments)
            return rest + text[len(piece) :]
        if not self._remaining:
            self._reader = None
            self._keep_as_text(segments, reader.consumed_text())
        return text[len(piece) :]

    def _end(self, reader: CallReader, segments: list[Segment]) -> None:
        self._reader = None
        calls = reader.calls()
        if calls is None:
            self._keep_as_text(segments, reader.consumed_text())
            return
        for name, arguments in calls:
            id = self._new_id(name, arguments)
            if id is not None:
                segments.append(FoundCall(id, name, arguments))

    def _keep_as_text(self, segments: list[Segment], text: str) -> None:
        """Pass on text that looked like a call but is not one."""
        self._code.advance(text)
        _add(segments, text)


def _add(segments: list[Segment], text: str) -> None:
    if text:
        segments.append(text)
