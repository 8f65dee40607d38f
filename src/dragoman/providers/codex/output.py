"""The data of stream events comes in; the same goes out, the last snapshot with the output that the stream has told."""

import msgspec
from msgspec import Raw, Struct

from dragoman.framing.jsonspan import replace_value
from dragoman.framing.sse import DataRewriter

DONE = b'"response.output_item.done"'
ENDS = (b'"response.completed"', b'"response.incomplete"')
NOTHING = Raw(b"null")


class _Event(Struct):
    type: str = ""
    output_index: int = 0
    item: Raw = NOTHING
    response: Raw = NOTHING


class _Snapshot(Struct):
    output: list[Raw] | None = None


_event = msgspec.json.Decoder(_Event)
_snapshot = msgspec.json.Decoder(_Snapshot)


class FilledOutput:
    """This backend may end with an empty output; whoever reads only the end would take it for an empty reply."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, Raw] = {}

    def rewrite(self, data: bytes) -> bytes:
        if DONE not in data and not any(end in data for end in ENDS):
            return data
        try:
            event = _event.decode(data)
            if event.type == "response.output_item.done":
                self._items[event.output_index] = event.item.copy()
            elif event.type in ("response.completed", "response.incomplete"):
                return self._filled(data, event)
        except (ValueError, RecursionError):
            return data
        return data

    def _filled(self, data: bytes, event: _Event) -> bytes:
        if not self._items or _snapshot.decode(event.response).output:
            return data
        output = msgspec.json.encode([self._items[index] for index in sorted(self._items)])
        self._items.clear()  # a stream has one end; a second one is not worth another copy of everything
        response = bytes(event.response)
        filled = replace_value(response, "output", output)
        if filled == response:  # it had no such field at all
            filled = response.rstrip()[:-1] + b',"output":' + output + b"}"
        return replace_value(data, "response", filled)


def filling_output() -> DataRewriter:
    return DataRewriter(FilledOutput().rewrite)
