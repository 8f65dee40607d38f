"""The text of one block comes in, in pieces; calls that are written into it go out as calls, all else as text.

Calls within code are no calls.
"""

import re
from collections.abc import Callable, Sequence

from dragoman.stages.bracket_calls import BRACKET
from dragoman.stages.call_form import CallReader, Tools
from dragoman.stages.code_marks import CodeMarks
from dragoman.stages.rewrite_text import FoundCall, Segment
from dragoman.stages.tag_calls import TAGS

MAX_CALL_CHARS = 4 * 1024 * 1024
SLICE_CHARS = 4096  # what is left of a text is copied for each call in it: a long text is read slice by slice

_FORMS = {"[": BRACKET, "<": TAGS}  # by the first character of their heads
_MARK = re.compile(r"\[(?=C|\Z)|<(?=f|\Z)")  # where a head may begin

Mint = Callable[[str, str], str | None]  # name, arguments -> the call's id; None: it was made already


class CallSplitter:
    __slots__ = ("_code", "_held", "_mint", "_reading", "_room", "_tools")

    def __init__(self, tools: Tools, mint: Mint) -> None:
        self._tools = tools
        self._mint = mint
        self._code = CodeMarks()
        self._held = ""  # what may begin a head
        self._reading: CallReader | None = None
        self._room = 0  # characters that it may still read

    def feed(self, text: str) -> Sequence[Segment]:
        if self._reading is None and not self._held and "[" not in text and "<" not in text:
            self._code.advance(text)
            return (text,)
        segments: list[Segment] = []
        for start in range(0, len(text), SLICE_CHARS):
            rest = text[start : start + SLICE_CHARS]
            while rest:
                if self._reading is None:
                    rest = self._seek(rest, segments)
                else:
                    rest = self._read(self._reading, rest, segments)
        return segments

    def finish(self) -> Sequence[Segment]:
        segments: list[Segment] = []
        if self._reading is not None:
            self._reading.finish()
            self._end(self._reading, segments)
        self._stay(segments, self._held)
        self._held = ""
        return segments

    def _seek(self, text: str, segments: list[Segment]) -> str:
        text, self._held = self._held + text, ""
        at = 0  # up to here the code marks are known
        while (found := _MARK.search(text, at)) is not None:
            place = found.start()
            self._code.advance(text[at:place])
            at = place
            if not (self._code.fenced or self._code.in_span):
                form = _FORMS[text[place]]
                head = form.head.match(text, place)
                if head is not None and head[1] in self._tools:
                    _add(segments, text[:place])
                    self._reading, self._room = form.read(head, self._tools), MAX_CALL_CHARS + 1
                    return text[head.end() :]
                if head is None and form.prefix.fullmatch(text, place):
                    self._held = text[place:]
                    _add(segments, text[:place])
                    return ""
            self._code.advance(text[place])
            at = place + 1
        self._code.advance(text[at:])
        _add(segments, text)
        return ""

    def _read(self, reading: CallReader, text: str, segments: list[Segment]) -> str:
        piece = text[: self._room]
        rest = reading.feed(piece)
        self._room -= len(piece)
        if rest is not None:
            self._end(reading, segments)
            return rest + text[len(piece) :]
        if not self._room:
            self._reading = None
            self._stay(segments, reading.taken())
        return text[len(piece) :]

    def _end(self, reading: CallReader, segments: list[Segment]) -> None:
        self._reading = None
        calls = reading.calls()
        if calls is None:
            self._stay(segments, reading.taken())
            return
        for name, arguments in calls:
            id = self._mint(name, arguments)
            if id is not None:
                segments.append(FoundCall(id, name, arguments))

    def _stay(self, segments: list[Segment], text: str) -> None:
        """What looked like a call is text."""
        self._code.advance(text)
        _add(segments, text)


def _add(segments: list[Segment], text: str) -> None:
    if text:
        segments.append(text)
