"""Header fields as they came off the wire, looked up by lower-case name."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

Header = tuple[bytes, bytes]

_NOTHING: frozenset[bytes] = frozenset()
JSON: Header = (b"content-type", b"application/json")


def names_in_connection(headers: "Headers") -> frozenset[bytes]:
    """Return the header names that `Connection` lists: they concern this hop only and are not forwarded."""
    if headers.get(b"connection") is None:
        return _NOTHING
    values = b",".join(value for name, value in headers if name == b"connection")
    return frozenset(name.strip().lower() for name in values.split(b","))


def first_values(fields: Sequence[Header]) -> dict[bytes, bytes]:
    """Return the first value of each field."""
    return dict(reversed(fields))


# Fields with a client's own credential. They are for this gateway and never forwarded.
CREDENTIAL_FIELDS = frozenset(
    (
        *(b"authorization", b"proxy-authorization", b"cookie", b"x-dragoman-console"),
        *(b"x-api-key", b"api-key", b"x-goog-api-key"),
    )
)


class LastingFields(Struct, frozen=True, cache_hash=True):
    """The fields of many messages: a key for what is computed once for them.

    They have neither the value of content-length nor those of CREDENTIAL_FIELDS: what is remembered for later requests
    contains no secret.
    """

    fields: tuple[Header, ...]


class Headers:
    """The fields of one message in their order; a name may occur more than once. `get` returns its first value."""

    __slots__ = ("fields", "get", "lasting")

    def __init__(
        self, fields: list[Header], lasting: LastingFields | None = None, by_name: dict[bytes, bytes] | None = None
    ) -> None:
        self.fields = fields
        self.lasting = lasting  # None: there is no key for these fields
        # The dictionary's own method, not one of ours: a request looks up a dozen names.
        self.get: Callable[[bytes], bytes | None] = (by_name or first_values(fields)).get

    def __contains__(self, name: bytes) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[Header]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


def asks_for_websocket(headers: Headers) -> bool:
    """Return whether a request asks to change to the WebSocket protocol; `Upgrade: h2c` may be ignored."""
    return b"websocket" in (headers.get(b"upgrade") or b"").lower()
