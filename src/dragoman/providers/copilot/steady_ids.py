"""The data of a Responses stream's events comes in; the same goes out, each item under one id from first to last.

Copilot gives an item a new id in every event; clients that put items together by id would see several.
"""

import msgspec

from dragoman.framing.sse import DataRewriter

Table = dict[str, object]

_event = msgspec.json.Decoder(dict[str, object])


class SteadyIds:
    """The first id that an output_index is seen with is its id."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}

    def rewrite(self, data: bytes) -> bytes:
        if b'"output_index"' not in data and b'"output"' not in data:
            return data
        try:
            event = _event.decode(data)
        except (ValueError, RecursionError):
            return data
        return msgspec.json.encode(event) if self._settle(event) else data

    def _settle(self, event: Table) -> bool:
        """Whether anything had to change."""
        index = event.get("output_index")
        if isinstance(index, int):
            item = event.get("item")
            changed = self._steady(event, "item_id", index)
            return (isinstance(item, dict) and self._steady(item, "id", index)) or changed
        response = event.get("response")
        output = response.get("output") if isinstance(response, dict) else None
        items = enumerate(output) if isinstance(output, list) else ()
        changes = [isinstance(item, dict) and self._steady(item, "id", place) for place, item in items]
        return True in changes

    def _steady(self, table: Table, key: str, index: int) -> bool:
        id_ = table.get(key)
        if not isinstance(id_, str):
            return False
        steady = self._ids.setdefault(index, id_)
        table[key] = steady
        return steady != id_


def steadying_ids() -> DataRewriter:
    return DataRewriter(SteadyIds().rewrite)
