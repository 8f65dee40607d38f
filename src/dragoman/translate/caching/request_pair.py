"""Two upstream requests of a session, side by side, as far as they are the same."""

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec
from msgspec import Struct

from dragoman.translate.caching.outlook import Miss
from dragoman.translate.caching.rendering import list_blocks
from dragoman.translate.hub.ports import PromptReader
from dragoman.translate.hub.request import Json

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class CapturedRequest(Struct, frozen=True, kw_only=True):
    """A request as its upstream got it, and where it went."""

    reader: PromptReader  # of the upstream's protocol
    provider: str
    model: str
    account: str = ""  # which of the provider's credentials; empty: not known
    key: str = ""  # the id of the client's
    started_at: float  # seconds since the epoch
    body: bytes
    client_body: bytes
    is_passed: bool  # these two are the same


class ComparedBlock(Struct, frozen=True):
    section: str
    kind: int
    pointer: str
    text: bytes  # without marks and white space

    def read(self) -> Json:
        return cast("Json", _decode(self.text))


class DifferentValues(Struct, frozen=True):
    """The innermost values that differ, and where; None: there is none on that side."""

    pointer: str
    earlier: Json
    later: Json


class RequestPair(Struct, frozen=True):
    """Both requests, and where they part."""

    earlier: CapturedRequest
    later: CapturedRequest
    first: list[ComparedBlock]
    second: list[ComparedBlock]
    common: int  # blocks
    place: DifferentValues | None  # None: the later one continues the earlier one

    @property
    def section(self) -> str:
        blocks = self.second if self.common < len(self.second) else self.first
        return blocks[self.common].section if self.common < len(blocks) else Miss.MESSAGES.value

    @property
    def texts(self) -> tuple[str, str]:
        """The texts of the values that differ."""
        return ("", "") if self.place is None else (_text_of(self.place.earlier), _text_of(self.place.later))


def pair_requests(earlier: CapturedRequest, later: CapturedRequest) -> RequestPair:
    first, second = list(_list_blocks(earlier)), list(_list_blocks(later))
    common = 0
    for own, other in zip(first, second, strict=False):
        if own.text != other.text or own.kind != other.kind:
            break
        common += 1
    place = None
    if common < len(first):
        old = first[common]
        place = DifferentValues(old.pointer, old.read(), None)
        if common < len(second):
            new = second[common]
            place = _find_place(old.read(), new.read(), new.pointer)
    return RequestPair(earlier, later, first, second, common, place)


def _list_blocks(request: CapturedRequest) -> Iterator[ComparedBlock]:
    for group in list_blocks(request.reader, request.body):
        for number, block in enumerate(group.blocks):
            yield ComparedBlock(group.section, group.kind, group.locate(number), _encode(_decode(block)))


def count_common_bytes(pair: RequestPair) -> int:
    """Return how many bytes of the first block that differs are the same."""
    if pair.place is None or pair.common >= min(len(pair.first), len(pair.second)):
        return 0
    return count_common(pair.first[pair.common].text, pair.second[pair.common].text)


def count_common(first: str | bytes, second: str | bytes) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _find_place(earlier: Json, later: Json, pointer: str) -> DifferentValues:
    """Return the innermost values that differ first, in the order of the later one."""
    while True:
        inner = _step(earlier, later)
        if inner is None:
            return DifferentValues(pointer, earlier, later)
        name, earlier, later = inner
        pointer = f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"


def _step(earlier: Json, later: Json) -> tuple[str | int, Json, Json] | None:
    if isinstance(earlier, dict) and isinstance(later, dict):
        for (old_name, old), (name, new) in zip(earlier.items(), later.items(), strict=False):
            if name != old_name:
                return None if name in earlier else (name, None, new)
            if _encode(old) != _encode(new):
                return name, old, new
        return _step_past_end(list(earlier.items()), list(later.items()))
    if isinstance(earlier, list) and isinstance(later, list):
        for index, (old, new) in enumerate(zip(earlier, later, strict=False)):
            if _encode(old) != _encode(new):
                return index, old, new
        return _step_past_end(list(enumerate(earlier)), list(enumerate(later)))
    return None


def _step_past_end(
    earlier: Sequence[tuple[str | int, Json]], later: Sequence[tuple[str | int, Json]]
) -> tuple[str | int, Json, Json] | None:
    """Return what only one of two has behind their common members."""
    if len(later) > len(earlier):
        name, value = later[len(earlier)]
        return name, None, value
    if len(earlier) > len(later):
        name, value = earlier[len(later)]
        return name, value, None
    return None


def _text_of(value: Json) -> str:
    return value if isinstance(value, str) else "" if value is None else _encode(value).decode(errors="replace")


def name_tool(tool: Json) -> str:
    """Return the name of a tool, else its type; empty if it has neither."""
    if not isinstance(tool, dict):
        return ""
    for inner in (tool, tool.get("function"), tool.get("toolSpecification")):
        name = inner.get("name") if isinstance(inner, dict) else None
        if isinstance(name, str):
            return name
    return str(tool.get("type", ""))
