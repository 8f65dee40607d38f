"""The migrations in PostgreSQL's words; dragoman.schema_version counts those applied."""

from dragoman.store.migrations import write_migrations
from dragoman.store.postgres_meter_schema import METER_SCHEMA

VERSION_TABLE = """
    CREATE SCHEMA IF NOT EXISTS dragoman;
    CREATE TABLE dragoman.schema_version (version INTEGER NOT NULL);
"""

MIGRATIONS = write_migrations(
    {
        "schema": "dragoman.",
        "int": "BIGINT",
        "bool": "BOOLEAN",
        "real": "DOUBLE PRECISION",
        "blob": "BYTEA",
        "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "no_rowid": "",
        "place": "place BIGINT GENERATED ALWAYS AS IDENTITY,",
        "then_place": ", place",
        "order": "place",
        "count_changes": """
    CREATE TABLE dragoman.key_changes (number BIGINT NOT NULL);
    INSERT INTO dragoman.key_changes VALUES (1);
    CREATE FUNCTION dragoman.count_key_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE dragoman.key_changes SET number = number + 1;
            RETURN NULL;
        END
    $$;
    CREATE TRIGGER count_key_change AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF digest, revoked_at
        ON dragoman.client_keys FOR EACH STATEMENT EXECUTE FUNCTION dragoman.count_key_change();
    """,
        "count_changes_later": "",
        "before_sums": "SET LOCAL work_mem = '128MB'; SET LOCAL maintenance_work_mem = '256MB';",
        "sums_key": "",  # made after the rows
        "ttft_key": "",
        "ttft_bucket": "round(ln(greatest(1, ttft_ms)::double precision) / ln(2::double precision) * 8)::bigint",
        "after_sums": """
    ALTER TABLE dragoman.usage_sums ADD PRIMARY KEY (dimension, owner, level, slot, grouped);
    ALTER TABLE dragoman.usage_ttft ADD PRIMARY KEY (owner, level, slot, route, bucket);
    ANALYZE dragoman.usage_sums;
    ANALYZE dragoman.usage_ttft;
    """,
        "meter": METER_SCHEMA,
        "put_time_first": """
    UPDATE dragoman.usage
    SET id = decode(lpad(to_hex(time_ms), 12, '0'), 'hex') || CASE length(id) WHEN 16 THEN substr(id, 7) ELSE id END
    WHERE substr(id, 1, 6) <> decode(lpad(to_hex(time_ms), 12, '0'), 'hex');
    """,
    }
)
