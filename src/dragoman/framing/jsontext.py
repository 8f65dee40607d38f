"""JSON text in pieces: the pieces of `{"input":"…"}` come in, and the raw text of that string goes out as it streams.

Custom tools take free text; towards a protocol without them that text travels as the one string property of an object.
"""

import re

import msgspec

_WHITESPACE = " \t\n\r"
_REPLACEMENT = "\ufffd"
_SIMPLE_ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_STOP = re.compile(r'["\\]')
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")
_LOW_ESCAPE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LOW_ESCAPE_BEGUN = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")


class StringProperty:
    """Unwraps `{"<name>": "…"}` while it streams.

    Text that has another shape is given back untouched by `finish`, and `fallback` is true then.
    Inside the string it is lenient, as models' JSON demands: an escape that JSON lacks is kept as written.
    """

    __slots__ = ("_due", "_open", "_pending", "_raw", "_rest", "complete", "fallback")

    def __init__(self, name: str) -> None:
        self.complete = False
        self.fallback = False
        self._due = ["{", msgspec.json.encode(name).decode(), ":", '"']  # what must come before the string's text
        self._open = False
        self._raw: list[str] = []  # all there was, until the shape is certain
        self._rest = ""  # of the head: what has come of the next due token
        self._pending = ""  # an escape that may go on

    def feed(self, text: str) -> str:
        if self._open:
            return self._unescape(text)
        if self.complete:  # what follows the string says nothing
            return ""
        self._raw.append(text)
        return "" if self.fallback else self._read_head(text)

    def finish(self) -> str:
        if self._open:
            self._open = False
            # Of an escape cut off by the end only a whole first half of a pair says anything.
            return _REPLACEMENT if len(self._pending) >= 6 else ""
        if self.complete:
            return ""
        self.fallback = True
        raw = "".join(self._raw)
        self._raw.clear()
        return raw

    def _read_head(self, text: str) -> str:
        rest = (self._rest + text).lstrip(_WHITESPACE)
        while rest.startswith(self._due[0]):
            rest = rest.removeprefix(self._due.pop(0))
            if not self._due:
                self._open = True
                self._raw.clear()
                return self._unescape(rest)
            rest = rest.lstrip(_WHITESPACE)
        self._rest = rest
        self.fallback = not self._due[0].startswith(rest)
        return ""

    def _unescape(self, text: str) -> str:
        text = self._pending + text
        self._pending = ""
        pieces: list[str] = []
        at = 0
        while stop := _STOP.search(text, at):
            pieces.append(text[at : stop.start()])
            if stop[0] == '"':
                self._open = False
                self.complete = True
                return "".join(pieces)
            escape = _read_escape(text, stop.start())
            if escape is None:
                self._pending = text[stop.start() :]
                return "".join(pieces)
            character, at = escape
            pieces.append(character)
        pieces.append(text[at:])
        return "".join(pieces)


def _read_escape(text: str, at: int) -> tuple[str, int] | None:
    """The character that the escape at `at` stands for and where the text goes on; None if more is needed."""
    kind = text[at + 1 : at + 2]
    if kind != "u":
        return (_SIMPLE_ESCAPES.get(kind, "\\" + kind), at + 2) if kind else None
    digits = text[at + 2 : at + 6]
    if not _HEX.fullmatch(digits):
        return "\\u", at + 2
    if len(digits) < 4:
        return None
    unit = int(digits, 16)
    if not 0xD800 <= unit < 0xE000:
        return chr(unit), at + 6
    if unit >= 0xDC00:
        return _REPLACEMENT, at + 6
    low = text[at + 6 : at + 12]
    if _LOW_ESCAPE.fullmatch(low):
        return chr(0x10000 + ((unit - 0xD800) << 10) + int(low[2:], 16) - 0xDC00), at + 12
    return None if _LOW_ESCAPE_BEGUN.fullmatch(low) else (_REPLACEMENT, at + 6)
