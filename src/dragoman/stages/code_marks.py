"""Markdown text comes in, in pieces; whether the place reached lies in code is known at any time."""

import re

_TOKEN = re.compile(r"`+|~+|\n|[^\S\n]+|[^\s`~]+")
_MARK = re.compile(r"[`~\n]")
_FENCE = 3  # marks at the beginning of a line


class CodeMarks:
    """Knows fenced blocks, and spans within a line. A span that its line does not close was none."""

    __slots__ = ("_closing", "_fence", "_line_begun", "_opening", "_run", "_span")

    def __init__(self) -> None:
        self._fence = ""  # the marks that opened the block we are in
        self._opening = False  # we are still on the line that opened it
        self._closing = False  # marks that would close it stand on this line, if nothing follows them
        self._span = 0  # length of the run of backticks that opened the span we are in
        self._run = ""  # marks at the end of what has come: there may be more of them
        self._line_begun = False

    @property
    def fenced(self) -> bool:
        self._settle()
        return bool(self._fence)

    @property
    def in_span(self) -> bool:
        """Whether backticks on this line are open; only what follows shows whether they make a span."""
        self._settle()
        return self._span > 0

    def advance(self, text: str) -> None:
        if not self._run and not _MARK.search(text):
            self._take_words(text)
            return
        for token in _TOKEN.findall(text):
            if token[0] in "`~":
                if self._run and self._run[0] != token[0]:
                    self._settle()
                self._run += token
                continue
            self._settle()
            if token == "\n":
                self._end_line()
            else:
                self._take_words(token)

    def _take_words(self, text: str) -> None:
        if (not self._line_begun or self._closing) and text and not text.isspace():
            self._line_begun = True
            self._closing = False

    def _end_line(self) -> None:
        if self._closing:
            self._fence = ""
        self._closing = self._opening = self._line_begun = False
        self._span = 0

    def _settle(self) -> None:
        """Nothing can be added to the last run of marks any more."""
        run, self._run = self._run, ""
        if not run:
            return
        at_line_start, self._line_begun = not self._line_begun, True
        if self._opening and self._fence[0] == run[0] == "`":  # a block's first line has no more of them
            self._span, self._fence, self._opening = len(self._fence), "", False
        if self._fence:
            self._closing = at_line_start and run.startswith(self._fence)
        elif at_line_start and len(run) >= _FENCE:
            self._fence = run
            self._opening = True
        elif run[0] == "`":
            self._span = len(run) if not self._span else 0 if self._span == len(run) else self._span
