"""The schema: numbered steps, each applied once and in order; the number reached is SQLite's user_version."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE client_keys (
        id           TEXT PRIMARY KEY,
        name         TEXT NOT NULL,
        digest       BLOB NOT NULL UNIQUE,
        prefix       TEXT NOT NULL,
        last4        TEXT NOT NULL,
        created_at   INTEGER NOT NULL,
        revoked_at   INTEGER,
        last_used_at INTEGER
    );
    CREATE UNIQUE INDEX client_keys_by_name ON client_keys (name) WHERE revoked_at IS NULL;
    """,
    """
    CREATE TABLE cut_calls (
        digest     BLOB PRIMARY KEY,
        lost       BLOB NOT NULL,
        expires_at INTEGER NOT NULL
    );
    """,
)
