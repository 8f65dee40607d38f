"""The table of client keys on SQLite."""

import apsw

from dragoman.store.client_keys import KeyId, KeyRow, NameTaken


def add(connection: apsw.Connection, row: KeyRow, digest: bytes) -> None:
    try:
        connection.execute(
            "INSERT INTO client_keys (id, name, digest, prefix, last4, created_at) VALUES (?, ?, ?, ?, ?, ?)",
            (row.id, row.name, digest, row.prefix, row.last4, row.created_at),
        )
    except apsw.ConstraintError as error:
        raise NameTaken(row.name) from error


def add_first(connection: apsw.Connection, row: KeyRow, digest: bytes) -> bool:
    if connection.execute("SELECT 1 FROM client_keys LIMIT 1").fetchone():
        return False
    add(connection, row, digest)
    return True


def rows(connection: apsw.Connection) -> tuple[KeyRow, ...]:
    found = connection.execute(
        "SELECT id, name, prefix, last4, created_at, revoked_at, last_used_at FROM client_keys ORDER BY rowid"
    )
    return tuple(KeyRow(*columns) for columns in found)


def live_digests(connection: apsw.Connection) -> dict[bytes, KeyId]:
    return dict(connection.execute("SELECT digest, id FROM client_keys WHERE revoked_at IS NULL"))


def find(connection: apsw.Connection, digest: bytes) -> KeyRow | None:
    found = connection.execute(
        "SELECT id, name, prefix, last4, created_at, revoked_at, last_used_at FROM client_keys WHERE digest = ?",
        (digest,),
    ).fetchone()
    return KeyRow(*found) if found else None


def revoke(connection: apsw.Connection, which: str, now: int) -> KeyRow | None:
    found = connection.execute(
        "UPDATE client_keys SET revoked_at = ? WHERE id = (SELECT id FROM client_keys"
        " WHERE revoked_at IS NULL AND (id = ? OR name = ?) ORDER BY id = ? DESC LIMIT 1)"
        " RETURNING id, name, prefix, last4, created_at, revoked_at, last_used_at",
        (now, which, which, which),
    )
    return next(iter([KeyRow(*columns) for columns in found]), None)


def touch(connection: apsw.Connection, used: frozenset[KeyId], now: int) -> None:
    connection.executemany("UPDATE client_keys SET last_used_at = ? WHERE id = ?", [(now, key) for key in used])
