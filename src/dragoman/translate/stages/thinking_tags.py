"""Handle reasoning that a model writes as `<thinking>…</thinking>` at the beginning of its text.

The opening tag counts only at the very beginning of the reply, the closing tag only outside of quotes and code. A tag
may be cut anywhere; only what could be the beginning of a tag is held back. The mode `remove` removes native reasoning
as well.
"""

from collections.abc import Sequence
from enum import Enum

from dragoman.translate.hub.events import Closed, Delta, Event, OpaqueAdded, Opened, ThinkingBlock
from dragoman.translate.hub.ports import RunStage
from dragoman.translate.stages.rewrite_text import CodeMarks, Segment, TextRewriter, ThoughtText

NAMES = ("thinking", "think", "reasoning", "thought")
OPENINGS = {f"<{name}>": f"</{name}>" for name in NAMES}

_FIRST = {"", *(opening[0] for opening in OPENINGS)}  # of a text that may become an opening tag, or begins with one
_MAX_LEAD = 256  # whitespace before an opening tag
_MAX_LOOK = 256  # characters on the same line that are searched for the end of a code span
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»"}
_BLANK_LINE = 2  # line ends that are removed after the closing tag


class Mode(Enum):
    AS_REASONING = "as_reasoning"
    REMOVE = "remove"
    PASS = "pass"
    STRIP_TAGS = "strip_tags"


_REMOVE, _PASS = Mode.REMOVE, Mode.PASS  # looked up once: on Python 3.11, each look-up of a member is slow


class ThinkingTags(RunStage):
    __slots__ = ("_mode", "_native", "_rewriter", "_splitter")

    def __init__(self, mode: Mode = Mode.AS_REASONING) -> None:
        self._mode = mode
        self._native: set[int] = set()  # blocks of reasoning that are removed
        self._splitter: TagSplitter | None = None
        self._rewriter = TextRewriter(self._next_splitter)

    def feed(self, event: Event) -> Sequence[Event]:
        if self._mode is _REMOVE and self._is_thought(event):
            return ()
        return self._rewriter.feed(event)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        if run[0].block in self._native:
            return ()
        return run if self._rewriter.try_pass(run, text) else self._rewriter.feed_run(run, text)

    def finish(self) -> Sequence[Event]:
        return self._rewriter.finish()

    def _is_thought(self, event: Event) -> bool:
        match event:
            case Opened(block=block, what=ThinkingBlock()):
                self._native.add(block)
                return True
            case Delta(block=block) | OpaqueAdded(block=block) | Closed(block=block):
                return block in self._native
            case _:
                return False

    def _next_splitter(self) -> "TagSplitter | None":
        """Return a splitter until a block of text with words has appeared: only the beginning of a reply is split."""
        if self._mode is _PASS or (self._splitter is not None and self._splitter.has_words):
            return None
        self._splitter = TagSplitter(self._mode)
        return self._splitter


class _Phase(Enum):
    START = "before the first word"
    THINKING = "inside the tags"
    GAP = "after the closing tag"
    PLAIN = "all the rest"


_START, _THINKING, _GAP, _PLAIN = _Phase


class TagSplitter:
    """Separates the reasoning from the text at the beginning of a reply."""

    __slots__ = ("_before", "_closing", "_code", "_ending", "_gap", "_held", "_mode", "_phase", "has_words")

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._phase = _START
        self._held = ""
        self._closing = ""
        self._code = CodeMarks()
        self._before = ""  # the last character before the held text
        self._gap = _BLANK_LINE
        self._ending = False
        self.has_words = False  # whether there were words, so that later text is not the beginning

    def feed(self, text: str) -> Sequence[Segment]:
        if self._phase is _PLAIN:
            return (text,)
        text, self._held = self._held + text, ""
        segments: list[Segment] = []
        while text:
            if self._phase is _START:
                text = self._start(text)
            elif self._phase is _THINKING:
                text = self._split_reasoning(text, segments)
            elif self._phase is _GAP:
                text = self._skip(text)
            else:
                segments.append(text)
                break
        return segments

    def try_pass(self, text: str) -> bool:
        return self._phase is _PLAIN

    def finish(self) -> Sequence[Segment]:
        self._ending = True
        segments = list(self.feed("")) if self._phase is _THINKING else []
        held, self._held = self._held, ""
        if not held or self._phase is _GAP:
            return segments
        return [*segments, *(self._make_segments(held) if self._phase is _THINKING else (held,))]

    def _start(self, text: str) -> str:
        words = text.lstrip()
        self.has_words = bool(words)
        if len(text) - len(words) <= _MAX_LEAD:
            for opening, closing in OPENINGS.items():
                if words.startswith(opening):
                    self._phase, self._closing = _Phase.THINKING, closing
                    return words[len(opening) :]
            if words[:1] in _FIRST and any(opening.startswith(words) for opening in OPENINGS):
                self._held = text
                return ""
        self._phase = _PLAIN
        return text

    def _split_reasoning(self, text: str, segments: list[Segment]) -> str:
        """Add the reasoning up to the closing tag to `segments`; return the text after the tag."""
        closing = self._closing
        at = 0  # the code marks are processed up to here
        while (found := text.find(closing, at)) >= 0:
            self._code.advance(text[at:found])
            after = found + len(closing)
            is_tag = self._is_closing_tag(text, found, after)
            if is_tag is None:
                self._keep(text, found, segments)
                return ""
            if is_tag:
                segments += self._make_segments(text[:found])
                self._phase = _Phase.PLAIN if self._mode is Mode.STRIP_TAGS else _Phase.GAP
                return text[after:]
            self._code.advance(closing)
            at = after
        end = len(text) - _prefix_at_end(text, closing)
        self._code.advance(text[at:end])
        self._keep(text, end, segments)
        return ""

    def _keep(self, text: str, end: int, segments: list[Segment]) -> None:
        segments += self._make_segments(text[:end])
        self._before = text[end - 1 : end] or self._before
        self._held = text[end:]

    def _is_closing_tag(self, text: str, found: int, after: int) -> bool | None:
        """Return whether the closing tag is neither quoted nor code; None if the following text decides."""
        if self._code.fenced:
            return False
        if self._code.in_span:
            line, more, _ = text[after : after + _MAX_LOOK].partition("\n")
            if "`" in line:
                return False
            return True if more or self._ending or len(line) == _MAX_LOOK else None
        quote = _QUOTES.get(text[found - 1] if found else self._before)
        if quote is None or self._ending:
            return quote is None or text[after : after + 1] != quote
        return text[after] != quote if after < len(text) else None

    def _skip(self, text: str) -> str:
        while self._gap and text:
            if text == "\r":
                self._held = text
                return ""
            rest = text[2:] if text.startswith("\r\n") else text[1:] if text[0] == "\n" else None
            if rest is None:
                break
            self._gap -= 1
            text = rest
        if text or not self._gap:
            self._phase = _PLAIN
        return text

    def _make_segments(self, text: str) -> Sequence[Segment]:
        if not text or self._mode is _REMOVE:
            return ()
        return (text,) if self._mode is Mode.STRIP_TAGS else (ThoughtText(text),)


def _prefix_at_end(text: str, tag: str) -> int:
    """Return how many characters at the end of the text could be the beginning of the tag."""
    at = text.rfind("<", max(0, len(text) - len(tag) + 1))
    return len(text) - at if at >= 0 and tag.startswith(text[at:]) else 0
