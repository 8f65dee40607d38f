"""A reply whose text holds `[Called f with args: {…}]` comes in; a call of `f` goes out in place of these words.

Only tools that were offered are called, only from text outside of code, and only with arguments that are whole.
The same call told natively as well is made once.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from hashlib import sha256

from msgspec.structs import replace

from dragoman.framing.jsonscan import IN_TEXT, Braces, compact, whole_object
from dragoman.hub.events import CallBlock, Closed, Delta, Ended, Event, Failed, Opened, Started, Stop
from dragoman.stages.code_marks import CodeMarks
from dragoman.stages.rewrite_text import FoundCall, Segment, TextRewriter

MAX_CALL_CHARS = 4 * 1024 * 1024

_SPACE = r"\s{1,4}"
_NAME = r"([^\s\[\]{}]{1,128})"
_HEAD = re.compile(rf"\[Called{_SPACE}{_NAME}{_SPACE}with{_SPACE}args:\s{{0,4}}(?=\{{)")
_TAIL = re.compile(r"\s{0,4}\]")
_TAIL_BEGUN = re.compile(r"\s{0,4}")


def _begun(*parts: str) -> re.Pattern[str]:
    """Matches every beginning of what the parts match one after the other."""
    pattern = ""
    for part in reversed(parts):
        pattern = f"{part}(?:{pattern})?" if pattern else part
    return re.compile(pattern)


_HEAD_BEGUN = _begun(r"\[", *"Called", _SPACE, _NAME, _SPACE, *"with", _SPACE, *"args:", r"\s{1,4}")

Mint = Callable[[str, str], str | None]  # name, arguments -> the call's id; None: it was made already


class BracketCalls:
    __slots__ = ("_count", "_found", "_held", "_made", "_names", "_native", "_reply", "_rewriter", "_seed")

    def __init__(self, names: Iterable[str], seed: str = "") -> None:
        """`names` are the tools offered; `seed` sets the ids of this reply apart from those of others."""
        self._names = frozenset(names)
        self._seed = seed
        self._reply = ""
        self._count = 0
        self._made: set[tuple[str, str]] = set()  # every call so far
        self._found: set[str] = set()  # names of those that were found in text
        self._native: dict[int, tuple[str, list[str]]] = {}  # the name and the arguments of open native calls
        self._held: dict[int, list[Event]] = {}  # native calls that may repeat one found in text
        self._rewriter = TextRewriter(lambda: CallSplitter(self._names, self._mint))

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
        arguments = whole_object("".join(pieces) or "{}")
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


class _Phase(Enum):
    TEXT = "no call, or its beginning"
    ARGUMENTS = "between the braces"
    TAIL = "after them"


class CallSplitter:
    """Takes the calls out of one block of text."""

    __slots__ = ("_braces", "_code", "_head", "_held", "_mint", "_name", "_names", "_phase", "_pieces", "_size")

    def __init__(self, names: frozenset[str], mint: Mint) -> None:
        self._names = names
        self._mint = mint
        self._code = CodeMarks()
        self._phase = _Phase.TEXT
        self._held = ""  # what may begin a call, or end one
        self._head = ""
        self._name = ""
        self._pieces: list[str] = []  # of the arguments
        self._size = 0
        self._braces = Braces(IN_TEXT)

    def feed(self, text: str) -> Sequence[Segment]:
        if self._phase is _Phase.TEXT and not self._held and "[" not in text:
            self._code.advance(text)
            return (text,)
        segments: list[Segment] = []
        while text:
            match self._phase:
                case _Phase.TEXT:
                    text = self._seek(text, segments)
                case _Phase.ARGUMENTS:
                    text = self._collect(text, segments)
                case _Phase.TAIL:
                    text = self._end(text, segments)
        return segments

    def finish(self) -> Sequence[Segment]:
        segments: list[Segment] = []
        self._give_up(segments, self._held)
        self._held = ""
        return segments

    def _seek(self, text: str, segments: list[Segment]) -> str:
        text, self._held = self._held + text, ""
        at = 0  # up to here the code marks are known
        while (found := text.find("[", at)) >= 0:
            self._code.advance(text[at:found])
            at = found
            if not (self._code.fenced or self._code.in_span):
                head = _HEAD.match(text, found)
                if head is not None and head[1] in self._names:
                    self._add(segments, text[:found])
                    self._phase, self._head, self._name = _Phase.ARGUMENTS, head[0], head[1]
                    return text[head.end() :]
                if head is None and _HEAD_BEGUN.fullmatch(text, found):
                    self._held = text[found:]
                    self._add(segments, text[:found])
                    return ""
            self._code.advance("[")
            at = found + 1
        self._code.advance(text[at:])
        self._add(segments, text)
        return ""

    def _collect(self, text: str, segments: list[Segment]) -> str:
        end = self._braces.advance(text[: MAX_CALL_CHARS + 1 - self._size], 0)
        self._pieces.append(text[:end])
        self._size += end
        if self._size > MAX_CALL_CHARS:
            self._give_up(segments)
        elif not self._braces.depth:
            self._phase = _Phase.TAIL
        return text[end:]

    def _end(self, text: str, segments: list[Segment]) -> str:
        text, self._held = self._held + text, ""
        tail = _TAIL.match(text)
        if tail is None:
            if _TAIL_BEGUN.fullmatch(text):
                self._held = text
                return ""
            self._give_up(segments)
            return text
        arguments = whole_object("".join(self._pieces))
        if arguments is None:
            self._give_up(segments, tail[0])
            return text[tail.end() :]
        id = self._mint(self._name, arguments)
        if id is not None:
            segments.append(FoundCall(id, self._name, arguments))
        self._reset()
        return text[tail.end() :]

    def _give_up(self, segments: list[Segment], tail: str = "") -> None:
        """What looked like a call stays text."""
        text = "".join((self._head, *self._pieces, tail))
        self._reset()
        self._code.advance(text)
        self._add(segments, text)

    def _reset(self) -> None:
        self._phase, self._head, self._name, self._size = _Phase.TEXT, "", "", 0
        self._pieces.clear()
        self._braces = Braces(IN_TEXT)

    @staticmethod
    def _add(segments: list[Segment], text: str) -> None:
        if text:
            segments.append(text)
