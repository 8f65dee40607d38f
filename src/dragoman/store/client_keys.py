"""The table of client keys: digests and labels come in and go out; the keys themselves are never here."""

from typing import NewType

import apsw
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


def add(connection: apsw.Connection, row: KeyRow, digest: bytes) -> None:
    try:
        connection.execute(
            "INSERT INTO client_keys (id, name, digest, prefix, last4, created_at) VALUES (?, ?, ?, ?, ?, ?)",
            (row.id, row.name, digest, row.prefix, row.last4, row.created_at),
        )
    except apsw.ConstraintError as error:
        raise NameTaken(row.name) from error


def rows(connection: apsw.Connection) -> tuple[KeyRow, ...]:
    """Every key ever made, the revoked ones too, oldest first."""
    found = connection.execute(
        "SELECT id, name, prefix, last4, created_at, revoked_at, last_used_at FROM client_keys ORDER BY rowid"
    )
    return tuple(KeyRow(*columns) for columns in found)


def live_digests(connection: apsw.Connection) -> dict[bytes, KeyId]:
    """The digests that open the door."""
    return dict(connection.execute("SELECT digest, id FROM client_keys WHERE revoked_at IS NULL"))


def revoke(connection: apsw.Connection, which: str, now: int) -> KeyRow | None:
    """Revoke the live key with this id or name, and return it; None if there is none."""
    found = connection.execute(
        "UPDATE client_keys SET revoked_at = ? WHERE id = (SELECT id FROM client_keys"
        " WHERE revoked_at IS NULL AND (id = ? OR name = ?) ORDER BY id = ? DESC LIMIT 1)"
        " RETURNING id, name, prefix, last4, created_at, revoked_at, last_used_at",
        (now, which, which, which),
    )
    return next(iter([KeyRow(*columns) for columns in found]), None)


def touch(connection: apsw.Connection, used: frozenset[KeyId], now: int) -> None:
    """Note when keys were last used."""
    connection.executemany("UPDATE client_keys SET last_used_at = ? WHERE id = ?", [(now, key) for key in used])
