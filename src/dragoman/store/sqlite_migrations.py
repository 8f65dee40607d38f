"""The migrations in SQLite's words; its user_version counts those applied."""

from dragoman.store.migrations import write_migrations

MIGRATIONS = write_migrations(
    {
        "schema": "",
        "int": "INTEGER",
        "bool": "INTEGER",
        "real": "REAL",
        "blob": "BLOB",
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "no_rowid": " WITHOUT ROWID",
        "place": "",  # rowid is one
        "then_place": "",
        "order": "rowid",
        "count_changes": "",
        # A counter tells other processes of changes to the keys.
        "count_changes_later": """
    CREATE TABLE key_changes (number INTEGER NOT NULL);
    INSERT INTO key_changes VALUES (1);
    CREATE TRIGGER key_added AFTER INSERT ON client_keys BEGIN UPDATE key_changes SET number = number + 1; END;
    CREATE TRIGGER key_removed AFTER DELETE ON client_keys BEGIN UPDATE key_changes SET number = number + 1; END;
    CREATE TRIGGER key_changed AFTER UPDATE OF digest, revoked_at, version ON client_keys
        BEGIN UPDATE key_changes SET number = number + 1; END;
    """,
        "before_sums": "",
        "sums_key": ", PRIMARY KEY (dimension, owner, level, slot, grouped)",
        "ttft_key": ", PRIMARY KEY (owner, level, slot, route, bucket)",
        "ttft_bucket": "CAST(round(log2(max(1, ttft_ms)) * 8) AS INTEGER)",
        "after_sums": "",
        "meter": "",  # in the memory of a process
        "put_time_first": """
    UPDATE usage
    SET id = unhex(printf('%012X', time_ms) || CASE length(id) WHEN 16 THEN substr(hex(id), 13) ELSE hex(id) END)
    WHERE substr(id, 1, 6) <> unhex(printf('%012X', time_ms));
    """,
    }
)
