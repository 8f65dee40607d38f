"""Find the ids of a reply's items in the bytes of a reply that passes unchanged."""

import msgspec
from msgspec import Struct

from dragoman.framing.sse import Frame, SseFramer

_ITEM_DONE = b"response.output_item.done"
MAX_IDS = 10_000  # of one reply


class _Item(Struct, frozen=True):
    id: str = ""


class _Event(Struct):
    item: _Item = _Item()


class _Response(Struct):
    output: list[_Item] = []


_event = msgspec.json.Decoder(_Event)
_response = msgspec.json.Decoder(_Response)


def find_item_ids(body: bytes) -> list[str]:
    """Return the ids of the items of a whole reply."""
    try:
        return [item.id for item in _response.decode(body).output[:MAX_IDS] if item.id]
    except (msgspec.MsgspecError, RecursionError):
        return []


class ItemIdReader:
    """Reads the ids of the items of a stream; it is fed the stream's bytes."""

    def __init__(self) -> None:
        self._framer = SseFramer()
        self.ids: list[str] = []

    def feed(self, data: bytes) -> None:
        for frame in self._framer.feed(data):
            if type(frame) is Frame and frame.data.find(_ITEM_DONE) >= 0 and len(self.ids) < MAX_IDS:
                self._read(frame.data)

    def _read(self, data: bytes) -> None:
        try:
            id_ = _event.decode(data).item.id
        except (msgspec.MsgspecError, RecursionError):
            return
        if id_:
            self.ids.append(id_)
