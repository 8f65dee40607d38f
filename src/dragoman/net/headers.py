"""Header fields as they came off the wire, looked up by lower-case name."""

from collections.abc import Iterator

Header = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")


def names_in_connection(headers: "Headers") -> frozenset[bytes]:
    """Return the header names that `Connection` lists: they concern this hop only and are not forwarded."""
    if b"connection" not in headers:
        return frozenset()
    values = b",".join(value for name, value in headers if name == b"connection")
    return frozenset(name.strip().lower() for name in values.split(b","))


class Headers:
    """The fields of one message in their order; a name may occur more than once."""

    __slots__ = ("_fields", "_first")

    def __init__(self, fields: list[Header]) -> None:
        self._fields = fields
        self._first: dict[bytes, bytes] | None = None  # made by the first lookup; a request sees a dozen

    def get(self, name: bytes) -> bytes | None:
        """The first value of that name."""
        if self._first is None:
            self._first = dict(reversed(self._fields))
        return self._first.get(name)

    def __contains__(self, name: bytes) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[Header]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)
