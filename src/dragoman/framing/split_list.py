"""Split a JSON document with a list of numbered items into one document for each number."""

import msgspec

from dragoman.framing.sse import Frame

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_ZERO = msgspec.Raw(b"0")


def split_by_index(json: bytes, field: str, count: int) -> list[bytes]:
    """Return `count` documents: each has one index of the list `field`, where it is number 0, and all other fields.

    A document that is a list is split item by item. One without such a field is returned for each index.
    """
    try:
        if json.lstrip()[:1] == b"[":
            split = [split_by_index(bytes(item), field, count) for item in _list.decode(json)]
            return [b"[" + b",".join(parts) + b"]" for parts in zip(*split, strict=True)] if split else [json] * count
        whole = _object.decode(json)
        items = _objects.decode(whole[field])
        numbers = [int(bytes(item.get("index", _ZERO))) for item in items]
    except (KeyError, ValueError, RecursionError):
        return [json] * count
    parts: list[bytes] = []
    for number in range(count):
        own = [{**item, "index": _ZERO} for item, index in zip(items, numbers, strict=True) if index == number]
        parts.append(msgspec.json.encode({**whole, field: own}))
    return parts


def split_frame(item: object, field: str, count: int) -> list[object]:
    """Split the data of a frame likewise; what is no frame is returned for each index."""
    if type(item) is not Frame:
        return [item] * count
    return [Frame(item.event, part) for part in split_by_index(item.data, field, count)]
