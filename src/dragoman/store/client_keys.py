"""What is known of a client key: digests and labels; the keys themselves are never here."""

from typing import NewType

from msgspec import Struct

KeyId = NewType("KeyId", str)


class KeyRow(Struct, frozen=True):
    """What is known of a key; the times are in Unix seconds."""

    id: KeyId
    name: str
    prefix: str
    last4: str
    created_at: int
    revoked_at: int | None
    last_used_at: int | None


class NameTaken(Exception):
    """A live key has this name already."""
