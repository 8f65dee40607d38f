"""Track whether the current position in a stream of Markdown text is inside code."""

import re

_TOKEN = re.compile(r"`+|~+|\n|[^\S\n]+|[^\s`~]+")
_MARK = re.compile(r"[`~\n]")
_FENCE = 3  # marks at the beginning of a line


class CodeMarks:
    """Recognises fenced blocks, and code spans within a line. A span that is not closed on its line is not code."""

    __slots__ = ("_closing", "_fence", "_line_has_text", "_opening", "_run", "_span")

    def __init__(self) -> None:
        self._fence = ""  # the marks that opened the current block
        self._opening = False  # still on the line that opened it
        self._closing = False  # this line has marks that close it if nothing follows them
        self._span = 0  # length of the run of backticks that opened the current span
        self._run = ""  # marks at the end of the text so far: more of them may follow
        self._line_has_text = False

    @property
    def fenced(self) -> bool:
        self._end_run()
        return bool(self._fence)

    @property
    def in_span(self) -> bool:
        """Whether backticks on this line are open. Only the following text decides whether they are a span."""
        self._end_run()
        return self._span > 0

    def advance(self, text: str) -> None:
        if not self._run and not _MARK.search(text):
            self._add_words(text)
            return
        for token in _TOKEN.findall(text):
            if token[0] in "`~":
                if self._run and self._run[0] != token[0]:
                    self._end_run()
                self._run += token
                continue
            self._end_run()
            if token == "\n":
                self._end_line()
            else:
                self._add_words(token)

    def _add_words(self, text: str) -> None:
        if (not self._line_has_text or self._closing) and text and not text.isspace():
            self._line_has_text = True
            self._closing = False

    def _end_line(self) -> None:
        if self._closing:
            self._fence = ""
        self._closing = self._opening = self._line_has_text = False
        self._span = 0

    def _end_run(self) -> None:
        """Interpret the last run of marks, which is complete now."""
        run, self._run = self._run, ""
        if not run:
            return
        at_line_start, self._line_has_text = not self._line_has_text, True
        if self._opening and self._fence[0] == run[0] == "`":  # the first line of a block contains no other backticks
            self._span, self._fence, self._opening = len(self._fence), "", False
        if self._fence:
            self._closing = at_line_start and run.startswith(self._fence)
        elif at_line_start and len(run) >= _FENCE:
            self._fence = run
            self._opening = True
        elif run[0] == "`":
            self._span = len(run) if not self._span else 0 if self._span == len(run) else self._span
