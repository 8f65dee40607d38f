"""Header fields as they came off the wire, looked up by lower-case name."""

from collections.abc import Callable, Iterator

Header = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")


def names_in_connection(headers: "Headers") -> frozenset[bytes]:
    """Return the header names that `Connection` lists: they concern this hop only and are not forwarded."""
    if b"connection" not in headers:
        return frozenset()
    values = b",".join(value for name, value in headers if name == b"connection")
    return frozenset(name.strip().lower() for name in values.split(b","))


class Headers:
    """The fields of one message in their order; a name may occur more than once. `get` returns its first value."""

    __slots__ = ("_fields", "get", "lasting")

    def __init__(self, fields: list[Header], lasting: tuple[Header, ...] = ()) -> None:
        self._fields = fields
        # The same fields but for the value of content-length: a key for what is computed once for many requests.
        self.lasting = lasting or tuple(fields)
        # The dictionary's own method, not one of ours: a request looks up a dozen names.
        self.get: Callable[[bytes], bytes | None] = dict(reversed(fields)).get

    def __contains__(self, name: bytes) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[Header]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def asks_for_websocket(headers: Headers) -> bool:
    """Return whether a request asks to change to the WebSocket protocol; `Upgrade: h2c` may be ignored."""
    return b"websocket" in (headers.get(b"upgrade") or b"").lower()
