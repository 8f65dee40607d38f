"""Any text comes in, in pieces; the JSON objects that stand in it go out, each whole, with all else left aside.

BraceCounter are counted, strings and escapes known, nothing more: what lies between two braces may still be no JSON.
Bytes are scanned, so characters cut in two by a read stay whole: no byte of one looks like a brace or a quote.
"""

import re
from typing import AnyStr, Generic, NamedTuple

import msgspec

from dragoman.framing.jsonread import replace_lone_surrogates
from dragoman.framing.sse import Broken

MAX_OBJECT_BYTES = 16 * 1024 * 1024
CUT = "ended inside an object"

_OPENING = re.compile(rb"\{")
_NEXT = re.compile(rb"[^ \t\r\n]")

_object = msgspec.json.Decoder(dict[str, object])


def validate_object(text: str) -> str | None:
    """The text, if it is one whole JSON object, with half surrogate pairs mended; None if it is not."""
    try:
        json = text.encode()
        try:
            _object.decode(json)
        except msgspec.DecodeError:
            mended = replace_lone_surrogates(json)
            if mended == json:
                return None
            _object.decode(mended)
            return mended.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return text


def compact(json: str) -> str:
    """A JSON text without the whitespace between its tokens, so that two can be compared."""
    return msgspec.json.format(json, indent=-1)


class Marks(NamedTuple, Generic[AnyStr]):
    """What an object is followed by, in bytes or in text."""

    structure: re.Pattern[AnyStr]  # outside of strings
    string: re.Pattern[AnyStr]  # inside
    quote: AnyStr
    backslash: AnyStr
    opening: AnyStr


IN_BYTES = Marks(re.compile(rb'["{}]'), re.compile(rb'["\\]'), b'"', b"\\", b"{")
IN_TEXT = Marks(re.compile(r'["{}]'), re.compile(r'["\\]'), '"', "\\", "{")


class BraceCounter(Generic[AnyStr]):
    """Follows one object from its opening brace to the brace that closes it."""

    __slots__ = ("_escaped", "_in_string", "_marks", "depth")

    def __init__(self, marks: Marks[AnyStr]) -> None:
        self._marks: Marks[AnyStr] = marks
        self._in_string = False
        self._escaped = False
        self.depth = 0

    def advance(self, chunk: AnyStr, at: int) -> int:
        """Reads on to the end of the object or of the chunk; gives the place after what was read."""
        structure, string, quote, backslash, opening = self._marks
        while at < len(chunk):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            mark = (string if self._in_string else structure).search(chunk, at)
            if mark is None:
                return len(chunk)
            at = mark.end()
            if mark[0] == quote:
                self._in_string = not self._in_string
            elif mark[0] == backslash:
                self._escaped = True
            elif mark[0] == opening:
                self.depth += 1
            else:
                self.depth -= 1
                if not self.depth:
                    return at
        return at


class ObjectScanner:
    """Finds the outermost objects; a brace that no member or end follows opens none."""

    __slots__ = ("_begun", "_braces", "_broken", "_held", "_held_bytes", "_max_object_bytes")

    def __init__(self, max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._max_object_bytes = max_object_bytes
        self._held: list[bytes] = []  # pieces of the object under way
        self._held_bytes = 0
        self._braces = BraceCounter(IN_BYTES)
        self._begun = False  # whether more than its opening brace has been seen
        self._broken = False

    def feed(self, chunk: bytes) -> list[bytes | Broken]:
        if self._broken:
            return []
        found: list[bytes | Broken] = []
        braces = self._braces
        start = at = 0  # where this chunk's part of the object under way begins, and where to read on
        while at < len(chunk):
            if not braces.depth:
                opening = _OPENING.search(chunk, at)
                if opening is None:
                    return found
                start, at = opening.start(), opening.end()
                braces.depth = 1
            elif not self._begun:
                at = self._begin(chunk, at)
            else:
                at = braces.advance(chunk, at)
                if not braces.depth:
                    self._hold(chunk[start:at])
                    found.append(self._taken())
                    if self._broken:
                        return found
        if braces.depth:
            self._hold(chunk[start:])
            if self._held_bytes > self._max_object_bytes:
                found.append(self._taken())
        return found

    def finish(self) -> list[bytes | Broken]:
        if self._broken or not self._braces.depth:
            return []
        self._broken = True
        self._drop()
        return [Broken(CUT)]

    def _begin(self, chunk: bytes, at: int) -> int:
        """After an opening brace only a member's name or the end can follow; anything else was no object."""
        following = _NEXT.search(chunk, at)
        if following is None:
            return len(chunk)
        if following[0] in (b'"', b"}"):
            self._begun = True
        else:
            self._drop()
        return following.start()

    def _hold(self, piece: bytes) -> None:
        self._held.append(piece)
        self._held_bytes += len(piece)

    def _taken(self) -> bytes | Broken:
        if self._held_bytes > self._max_object_bytes:
            self._broken = True
            self._drop()
            return Broken(f"an object is larger than {self._max_object_bytes} bytes")
        taken = b"".join(self._held)
        self._drop()
        return taken

    def _drop(self) -> None:
        self._held.clear()
        self._held_bytes = 0
        self._begun = False
        self._braces.depth = 0


WINDOW = 256 * 1024  # small enough that other threads get their turn between two

_SEPARATORS = (b",", b"[", b"{")
_CONTENT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # of a string, from behind its opening quote
_QUOTE, _BACKSLASH = b'"\\'


def exceeds_value_count(json: bytes, most: int) -> bool:
    """Whether the text holds more than `most` values; of a text that is no JSON, some answer."""
    if len(json) <= 2 * most:  # the shortest value and its separator are two bytes
        return False
    starts = range(0, len(json), WINDOW)
    if sum(_count_separators(json[start : start + WINDOW]) for start in starts) < most:
        return False
    return _exceeds_outside_strings(json, most)


def _exceeds_outside_strings(json: bytes, most: int) -> bool:
    values, strings, at = 1, 0, 0
    while values <= most and strings <= 2 * most:  # a value is at most two strings: its key, and itself
        quote = json.find(b'"', at)
        values += _count_separators(json[at:quote] if quote >= 0 else json[at:])
        if quote < 0:
            return values > most
        strings += 1
        at = _end_of_string(json, quote + 1)
    return True


def _end_of_string(json: bytes, at: int) -> int:
    """Where the string ends, its closing quote included, whose content begins at `at`."""
    while at < len(json):
        content = _CONTENT.match(json, at, at + WINDOW)
        assert content is not None  # it may be empty
        at = content.end()
        if at < len(json) and json[at] == _QUOTE:
            return at + 1
        if at < len(json) and json[at] == _BACKSLASH:  # the window ends in the middle of an escape
            at += 2
    return len(json)


def _count_separators(window: bytes) -> int:
    return sum(map(window.count, _SEPARATORS))
