"""Scan JSON without decoding it: find objects in text, count values, replace a top-level value, split a list.

Only braces, strings and escapes are recognised: what is between two braces may still be invalid JSON. The scan works on
bytes, so characters may be cut by a read: no byte of a multi-byte character looks like a brace or a quote.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import AnyStr, Generic, NamedTuple

import msgspec

from dragoman.translate.framing.jsonread import read_json, replace_invalid_utf8, replace_lone_surrogates
from dragoman.translate.framing.sse import Broken, Frame

MAX_OBJECT_BYTES = 16 * 1024 * 1024
CUT = "ended inside an object"

_OPENING = re.compile(rb"\{")
_NEXT = re.compile(rb"[^ \t\r\n]")

_object = msgspec.json.Decoder(dict[str, object])
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
_ZERO = msgspec.Raw(b"0")
_TRUNCATED = "Input data was truncated"  # msgspec's words
_NUMBER_TAIL = "+-.eE"  # a number that ends so is malformed to msgspec, not truncated


def validate_object(text: str) -> str | None:
    """Return the text, with lone surrogates replaced, if it is one whole JSON object; else None."""
    try:
        json = text.encode()
        try:
            _object.decode(json)
        except msgspec.DecodeError:
            repaired = replace_lone_surrogates(json)
            if repaired == json:
                return None
            _object.decode(repaired)
            return repaired.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return text


def is_cut_object(text: str) -> bool:
    """Return whether the text is the beginning of a JSON object, so that more text could complete it."""
    try:
        _object.decode(replace_lone_surrogates(text.rstrip(_NUMBER_TAIL).encode()))
    except msgspec.DecodeError as error:
        return str(error) == _TRUNCATED
    except (ValueError, RecursionError):
        pass
    return False


def compact(json: str) -> str:
    """Return JSON without whitespace between its tokens, so that two texts can be compared."""
    return msgspec.json.format(json, indent=-1)


class Marks(NamedTuple, Generic[AnyStr]):
    """The characters that matter to the scan, as bytes or as text."""

    structure: re.Pattern[AnyStr]  # outside of strings
    string: re.Pattern[AnyStr]  # inside
    quote: AnyStr
    backslash: AnyStr
    opening: AnyStr


IN_BYTES = Marks(re.compile(rb'["{}]'), re.compile(rb'["\\]'), b'"', b"\\", b"{")
IN_TEXT = Marks(re.compile(r'["{}]'), re.compile(r'["\\]'), '"', "\\", "{")


class BraceCounter(Generic[AnyStr]):
    """Follow one object from its opening brace to its closing brace."""

    __slots__ = ("_escaped", "_in_string", "_marks", "depth")

    def __init__(self, marks: Marks[AnyStr]) -> None:
        self._marks: Marks[AnyStr] = marks
        self._in_string = False
        self._escaped = False
        self.depth = 0

    def advance(self, chunk: AnyStr, at: int) -> int:
        """Read to the end of the object or of the chunk; return the offset after it."""
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


def is_unclosed_object(text: str) -> bool:
    """Return whether a text begins as a JSON object and ends before that is closed, valid or not."""
    if not text.lstrip().startswith("{"):
        return False
    braces = BraceCounter(IN_TEXT)
    braces.advance(text, 0)
    return braces.depth > 0


class ObjectScanner:
    """Find the outermost objects. A brace must be followed by a member or a closing brace."""

    __slots__ = ("_begun", "_braces", "_broken", "_held", "_held_bytes", "_max_object_bytes")

    def __init__(self, max_object_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._max_object_bytes = max_object_bytes
        self._held: list[bytes] = []  # pieces of the current object
        self._held_bytes = 0
        self._braces = BraceCounter(IN_BYTES)
        self._begun = False  # whether more than its opening brace has been seen
        self._broken = False

    def feed(self, chunk: bytes) -> list[bytes | Broken]:
        if self._broken:
            return []
        found: list[bytes | Broken] = []
        braces = self._braces
        start = at = 0  # where the current object begins in this chunk, and where to continue
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
                    found.append(self._take_object())
                    if self._broken:
                        return found
        if braces.depth:
            self._hold(chunk[start:])
            if self._held_bytes > self._max_object_bytes:
                found.append(self._take_object())
        return found

    def finish(self) -> list[bytes | Broken]:
        if self._broken or not self._braces.depth:
            return []
        self._broken = True
        self._drop()
        return [Broken(CUT)]

    def _begin(self, chunk: bytes, at: int) -> int:
        """Check that a member's name or a closing brace follows the opening brace."""
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

    def _take_object(self) -> bytes | Broken:
        if self._held_bytes > self._max_object_bytes:
            self._broken = True
            self._drop()
            return Broken(f"an object is larger than {self._max_object_bytes} bytes")
        found = b"".join(self._held)
        self._drop()
        return found

    def _drop(self) -> None:
        self._held.clear()
        self._held_bytes = 0
        self._begun = False
        self._braces.depth = 0


class ArrayFramer:
    """Split a stream that is one JSON array of objects into frames.

    An object that is cut off gives none: its decoder finds that the stream has not ended properly.
    """

    __slots__ = ("_objects",)

    def __init__(self, max_event_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._objects = ObjectScanner(max_event_bytes)

    def feed(self, chunk: bytes) -> list[Frame | Broken]:
        found = self._objects.feed(chunk)
        return [item if isinstance(item, Broken) else Frame("", replace_invalid_utf8(item)) for item in found]

    def finish(self) -> list[Frame | Broken]:
        return []


WINDOW = 256 * 1024  # small enough that other threads can run between two windows

_SEPARATORS = (b",", b"[", b"{")
_CONTENT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # of a string, after its opening quote
_QUOTE, _BACKSLASH = b'"\\'


def exceeds_value_count(json: bytes, most: int) -> bool:
    """Return whether the text has more than `most` values. The result is arbitrary if the text is not JSON."""
    if len(json) <= 2 * most:  # the shortest value and its separator are two bytes
        return False
    starts = range(0, len(json), WINDOW)
    if sum(_count_separators(json[start : start + WINDOW]) for start in starts) < most:
        return False
    values, strings, at = 1, 0, 0
    while values <= most and strings <= 2 * most:  # a value is at most two strings: its key, and itself
        quote = json.find(b'"', at)
        values += _count_separators(json[at:quote] if quote >= 0 else json[at:])
        if quote < 0:
            return values > most
        strings += 1
        at = _find_string_end(json, quote + 1)
    return True


def _find_string_end(json: bytes, at: int) -> int:
    """Return the offset after the closing quote of the string whose content begins at `at`."""
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


# Replacing the value of a top-level key while all other bytes stay unchanged: msgspec validates the whole body and
# measures each top-level value in C; only the top-level keys are visited here. This is more than ten times faster than
# a compiled scan of strings and brackets, and it rejects invalid JSON.

_Span = tuple[int, int]

_SHORT = 16 * 1024
_MODEL = re.compile(rb'("model"\s*+:\s*+)"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_KEY = re.compile(rb'\s*+[{,]\s*+"[^"\\]*+(?:\\.[^"\\]*+)*+"\s*+:\s*+')


class _Key:
    """A key that equals no other key, so that a dict keeps duplicates."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def _make_key(_: type, name: str) -> _Key:
    return _Key(name)


_values_by_key = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=_make_key)


def find_repeated_key(body: bytes) -> str | None:
    """Return a key that an object, or one inside it, has twice; None if there is none. Lists are not searched."""
    objects = [body]
    while objects:
        values = _values(objects.pop())
        names = Counter(key.name for key in values)
        repeated = next((name for name, count in names.items() if count > 1), None)
        if repeated is not None:
            return repeated
        objects += [text for value in values.values() if (text := bytes(value)).startswith(b"{")]
    return None


def replace_value(body: bytes, key: str, new: bytes) -> bytes:
    """Return the body with `new` as the value of a top-level key.

    All duplicates are replaced, because parsers differ in which one they use. Without the key the body is unchanged.
    """
    view = memoryview(body)
    pieces: list[bytes | memoryview] = []
    kept = 0
    for start, end in _spans(body, key):
        pieces += (view[kept:start], new)
        kept = end
    pieces.append(view[kept:])
    return b"".join(pieces)


def replace_model(body: bytes, model: str) -> bytes:
    """Return a JSON body, which has a string as its model, with another one and every other byte kept.

    Where the quoted name occurs once in all of it, and no key can be spelled with escapes, that must be the key: most
    bodies are short, and this takes a quarter of the time.
    """
    at = body.find(b'"model"') if len(body) <= _SHORT else -1
    if at >= 0 and body.rfind(b'"model"') == at and (body.find(b"\\") < 0 or body.find(b"\\u") < 0):
        found = _MODEL.match(body, at)
        if found is not None:
            return body[: found.end(1)] + _quote(model) + body[found.end() :]
    return replace_value(body, "model", _quote(model))


@lru_cache(maxsize=256)
def _quote(text: str) -> bytes:
    return msgspec.json.encode(text)


def _spans(body: bytes, name: str) -> Iterator[_Span]:
    """Return where the values of this key start and end."""
    values = _values(body)
    places = [place for place, key in enumerate(values) if key.name == name]
    at = body.find(b"{")
    for key, value in islice(values.items(), places[-1] + 1 if places else 0):
        found = _KEY.match(body, at)
        if found is None:
            raise ValueError(f"no key at byte {at}")
        start = found.end()
        at = start + len(memoryview(value))
        if key.name == name:
            yield start, at


def _values(body: bytes) -> dict[_Key, msgspec.Raw]:
    """Return the top-level values. Replacing lone surrogates keeps the length, so their spans stay the same."""
    try:
        return read_json(_values_by_key, body)
    except RecursionError as error:
        raise ValueError("JSON nests too deeply") from error


def split_by_index(json: bytes, field: str, count: int) -> list[bytes]:
    """Return `count` documents: each has one index of the list `field`, where it is number 0, and all other fields.

    A document that is a list is split item by item. One without such a field is returned for each index.
    """
    try:
        if json.lstrip()[:1] == b"[":
            split = [split_by_index(bytes(item), field, count) for item in _raw_list.decode(json)]
            return [b"[" + b",".join(parts) + b"]" for parts in zip(*split, strict=True)] if split else [json] * count
        whole = _raw_object.decode(json)
        items = _raw_objects.decode(whole[field])
        numbers = [int(bytes(item.get("index", _ZERO))) for item in items]
    except (KeyError, ValueError, RecursionError):
        return [json] * count
    parts: list[bytes] = []
    for number in range(count):
        own = [{**item, "index": _ZERO} for item, index in zip(items, numbers, strict=True) if index == number]
        parts.append(msgspec.json.encode({**whole, field: own}))
    return parts


def split_frame(item: object, field: str, count: int) -> list[object]:
    """Split the data of a frame in the same way; data that is no frame is returned for each index."""
    if type(item) is not Frame:
        return [item] * count
    return [Frame(item.event, part) for part in split_by_index(item.data, field, count)]
