"""The schema as migrations, applied once each and in order; dragoman.schema_version counts those applied."""

from dragoman.store.first_sums import add_up_rows
from dragoman.store.first_totals import count_conversations, select_totals

VERSION_TABLE = """
    CREATE SCHEMA IF NOT EXISTS dragoman;
    CREATE TABLE dragoman.schema_version (version INTEGER NOT NULL);
"""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE dragoman.client_keys (
        id           TEXT PRIMARY KEY,
        place        BIGINT GENERATED ALWAYS AS IDENTITY,
        name         TEXT NOT NULL,
        digest       BYTEA NOT NULL UNIQUE,
        prefix       TEXT NOT NULL,
        last4        TEXT NOT NULL,
        created_at   BIGINT NOT NULL,
        revoked_at   BIGINT,
        last_used_at BIGINT
    );
    CREATE UNIQUE INDEX client_keys_by_name ON dragoman.client_keys (name) WHERE revoked_at IS NULL;
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
    """
    CREATE TABLE dragoman.cut_calls (
        digest     BYTEA PRIMARY KEY,
        lost       BYTEA NOT NULL,
        expires_at BIGINT NOT NULL
    );
    """,
    """
    CREATE TABLE dragoman.usage (
        id             BYTEA PRIMARY KEY,
        began_ms       BIGINT NOT NULL,
        request        TEXT NOT NULL,
        key            TEXT NOT NULL,
        client         TEXT NOT NULL,
        asked          TEXT NOT NULL,
        spoken         TEXT NOT NULL,
        provider       TEXT NOT NULL,
        model          TEXT NOT NULL,
        wanted         TEXT NOT NULL,
        stream         BOOLEAN NOT NULL,
        input          BIGINT,
        cached         BIGINT,
        written        BIGINT,
        output         BIGINT,
        reasoning      BIGINT,
        credits        DOUBLE PRECISION,
        source         TEXT,
        cost_nano      BIGINT,
        first_token_ms BIGINT,
        duration_ms    BIGINT NOT NULL,
        result         TEXT NOT NULL,
        code           TEXT,
        losses         BIGINT NOT NULL,
        attempts       BIGINT NOT NULL
    );
    CREATE INDEX usage_by_time ON dragoman.usage (began_ms);
    """,
    # Cut tool calls belong to a client key. The old rows name none, so they are dropped: they would have expired within
    # an hour.
    """
    DROP TABLE dragoman.cut_calls;
    CREATE TABLE dragoman.cut_calls (
        tenant     TEXT NOT NULL,
        digest     BYTEA NOT NULL,
        lost       BYTEA NOT NULL,
        expires_at BIGINT NOT NULL,
        PRIMARY KEY (tenant, digest)
    );
    """,
    """
    ALTER TABLE dragoman.usage RENAME COLUMN began_ms TO time_ms;
    ALTER TABLE dragoman.usage RENAME COLUMN request TO request_id;
    ALTER TABLE dragoman.usage RENAME COLUMN asked TO client_protocol;
    ALTER TABLE dragoman.usage RENAME COLUMN spoken TO upstream_protocol;
    ALTER TABLE dragoman.usage RENAME COLUMN wanted TO requested_model;
    ALTER TABLE dragoman.usage RENAME COLUMN input TO input_tokens;
    ALTER TABLE dragoman.usage RENAME COLUMN cached TO cache_read_tokens;
    ALTER TABLE dragoman.usage RENAME COLUMN written TO cache_write_tokens;
    ALTER TABLE dragoman.usage RENAME COLUMN output TO output_tokens;
    ALTER TABLE dragoman.usage RENAME COLUMN reasoning TO reasoning_tokens;
    ALTER TABLE dragoman.usage RENAME COLUMN source TO usage_source;
    ALTER TABLE dragoman.usage RENAME COLUMN cost_nano TO cost_nano_usd;
    ALTER TABLE dragoman.usage RENAME COLUMN first_token_ms TO ttft_ms;
    ALTER TABLE dragoman.usage RENAME COLUMN result TO outcome;
    ALTER TABLE dragoman.usage RENAME COLUMN code TO error_code;
    """,
    """
    ALTER TABLE dragoman.usage ADD COLUMN rounds BIGINT NOT NULL DEFAULT 1;
    ALTER TABLE dragoman.usage ADD COLUMN web_searches BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE dragoman.usage ADD COLUMN web_fetches BIGINT NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE dragoman.audit (
        number  BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        time_ms BIGINT NOT NULL,
        actor   TEXT NOT NULL,
        action  TEXT NOT NULL,
        subject TEXT NOT NULL,
        address TEXT NOT NULL,
        detail  TEXT NOT NULL,
        previous BYTEA NOT NULL
    );
    """,
    # The key that the first start made is the owner's.
    """
    ALTER TABLE dragoman.client_keys ADD COLUMN role TEXT NOT NULL DEFAULT 'client';
    ALTER TABLE dragoman.client_keys ADD COLUMN scopes TEXT NOT NULL DEFAULT '';
    ALTER TABLE dragoman.client_keys ADD COLUMN expires_at BIGINT;
    ALTER TABLE dragoman.client_keys ADD COLUMN old_digest BYTEA;
    ALTER TABLE dragoman.client_keys ADD COLUMN old_secret_until BIGINT;
    ALTER TABLE dragoman.client_keys ADD COLUMN version BIGINT NOT NULL DEFAULT 1;
    UPDATE dragoman.client_keys SET role = 'owner'
        WHERE name = 'first' AND place = (SELECT min(place) FROM dragoman.client_keys);
    """,
    """
    DROP INDEX dragoman.usage_by_time;
    CREATE INDEX usage_by_time_and_id ON dragoman.usage (time_ms, id);
    CREATE INDEX usage_by_key ON dragoman.usage (key, time_ms, id);
    CREATE INDEX usage_by_request_id ON dragoman.usage (request_id);
    """,
    """
    CREATE TABLE dragoman.console_sessions (
        digest        BYTEA PRIMARY KEY,
        header_digest BYTEA NOT NULL,
        id            TEXT NOT NULL UNIQUE,
        key           TEXT NOT NULL,
        created_at    BIGINT NOT NULL,
        used_at       BIGINT NOT NULL,
        expires_at    BIGINT NOT NULL,
        address       TEXT NOT NULL,
        browser       TEXT NOT NULL
    );
    """,
    """
    CREATE TABLE dragoman.responses (
        owner        TEXT NOT NULL,
        id           TEXT NOT NULL,
        created_at   BIGINT NOT NULL,
        expires_at   BIGINT NOT NULL,
        status       TEXT NOT NULL,
        model        TEXT NOT NULL,
        route        TEXT NOT NULL,
        head         BYTEA NOT NULL,
        settings     BYTEA NOT NULL,
        context      BYTEA NOT NULL,
        input_start  BIGINT NOT NULL,
        output       BYTEA NOT NULL,
        conversation TEXT NOT NULL,
        keeper       TEXT NOT NULL,
        account      TEXT NOT NULL,
        bytes        BIGINT NOT NULL,
        place        BIGINT GENERATED ALWAYS AS IDENTITY,
        PRIMARY KEY (owner, id)
    );
    CREATE INDEX responses_by_time ON dragoman.responses (created_at);
    CREATE TABLE dragoman.response_items (
        owner  TEXT NOT NULL,
        digest BYTEA NOT NULL,
        id     TEXT NOT NULL,
        body   BYTEA NOT NULL,
        hidden BYTEA,
        place  BIGINT GENERATED ALWAYS AS IDENTITY,
        PRIMARY KEY (owner, digest)
    );
    CREATE INDEX response_items_by_id ON dragoman.response_items (owner, id) WHERE id <> '';
    CREATE TABLE dragoman.item_references (
        owner  TEXT NOT NULL,
        digest BYTEA NOT NULL,
        number BIGINT NOT NULL,
        PRIMARY KEY (owner, digest)
    );
    CREATE TABLE dragoman.conversations (
        owner      TEXT NOT NULL,
        id         TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        metadata   BYTEA NOT NULL,
        lock_token TEXT NOT NULL DEFAULT '',
        lock_until BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (owner, id)
    );
    CREATE TABLE dragoman.conversation_items (
        owner        TEXT NOT NULL,
        conversation TEXT NOT NULL,
        place        BIGINT NOT NULL,
        digest       BYTEA NOT NULL,
        PRIMARY KEY (owner, conversation, place)
    );
    """,
    # Sums of usage, for all keys together and for each key; those of the rows that there are already.
    """
    SET LOCAL work_mem = '128MB';
    SET LOCAL maintenance_work_mem = '256MB';
    CREATE TABLE dragoman.usage_sums (
        dimension          TEXT NOT NULL,
        owner              TEXT NOT NULL,
        level              BIGINT NOT NULL,
        slot               BIGINT NOT NULL,
        grouped            TEXT NOT NULL,
        requests           BIGINT NOT NULL,
        failed             BIGINT NOT NULL,
        client_gone        BIGINT NOT NULL,
        input_tokens       BIGINT NOT NULL,
        cache_read_tokens  BIGINT NOT NULL,
        cache_write_tokens BIGINT NOT NULL,
        output_tokens      BIGINT NOT NULL,
        reasoning_tokens   BIGINT NOT NULL,
        credits            DOUBLE PRECISION NOT NULL,
        cost_nano_usd      BIGINT NOT NULL,
        priced             BIGINT NOT NULL,
        counted            BIGINT NOT NULL,
        derived            BIGINT NOT NULL,
        estimated          BIGINT NOT NULL,
        estimated_tokens   BIGINT NOT NULL,
        duration_ms        BIGINT NOT NULL,
        web_searches       BIGINT NOT NULL,
        web_fetches        BIGINT NOT NULL,
        generated_tokens   BIGINT NOT NULL,
        generating_ms      BIGINT NOT NULL
    );
    CREATE TABLE dragoman.usage_ttft (
        owner    TEXT NOT NULL,
        level    BIGINT NOT NULL,
        slot     BIGINT NOT NULL,
        route    TEXT NOT NULL,
        bucket   BIGINT NOT NULL,
        requests BIGINT NOT NULL
    );
    """
    + add_up_rows(
        "dragoman.", "round(ln(greatest(1, ttft_ms)::double precision) / ln(2::double precision) * 8)::bigint"
    )
    + """
    ALTER TABLE dragoman.usage_sums ADD PRIMARY KEY (dimension, owner, level, slot, grouped);
    ALTER TABLE dragoman.usage_ttft ADD PRIMARY KEY (owner, level, slot, route, bucket);
    ANALYZE dragoman.usage_sums;
    ANALYZE dragoman.usage_ttft;
    """,
    # Ids of usage rows begin with their time, so that the primary key finds rows by time, too.
    """
    UPDATE dragoman.usage
    SET id = decode(lpad(to_hex(time_ms), 12, '0'), 'hex') || CASE length(id) WHEN 16 THEN substr(id, 7) ELSE id END
    WHERE substr(id, 1, 6) <> decode(lpad(to_hex(time_ms), 12, '0'), 'hex');
    DROP INDEX dragoman.usage_by_time_and_id;
    DROP INDEX dragoman.usage_by_key;
    CREATE INDEX usage_by_key ON dragoman.usage (key, id);
    """,
    # The resumable reply that the client of a request got.
    """
    ALTER TABLE dragoman.usage ADD COLUMN run TEXT NOT NULL DEFAULT '';
    """,
    # Background responses: those that have not ended, and the events of those that are streamed.
    """
    ALTER TABLE dragoman.responses ADD COLUMN mode TEXT NOT NULL DEFAULT '';
    CREATE TABLE dragoman.background_runs (
        owner        TEXT NOT NULL,
        id           TEXT NOT NULL,
        conversation TEXT NOT NULL,
        request      BYTEA NOT NULL,
        last_event   BIGINT NOT NULL,
        token        TEXT NOT NULL,
        lease_until  BIGINT NOT NULL,
        place        BIGINT GENERATED ALWAYS AS IDENTITY,
        PRIMARY KEY (owner, id)
    );
    CREATE INDEX background_runs_by_token ON dragoman.background_runs (token);
    CREATE TABLE dragoman.response_events (
        owner      TEXT NOT NULL,
        id         TEXT NOT NULL,
        first      BIGINT NOT NULL,
        last       BIGINT NOT NULL,
        body       BYTEA NOT NULL,
        created_at BIGINT NOT NULL,
        PRIMARY KEY (owner, id, first)
    );
    """,
    # What the client of a request calls it; `request_id` is the gateway's own.
    """
    ALTER TABLE dragoman.usage ADD COLUMN client_request_id TEXT NOT NULL DEFAULT '';
    """,
    # How much each owner has, counted beside the rows; of a response only what it adds to the one that it continues.
    """
    ALTER TABLE dragoman.responses RENAME COLUMN context TO input;
    ALTER TABLE dragoman.responses DROP COLUMN bytes;
    ALTER TABLE dragoman.responses ADD COLUMN base TEXT NOT NULL DEFAULT '';
    ALTER TABLE dragoman.responses ADD COLUMN children BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE dragoman.responses ADD COLUMN removed BIGINT NOT NULL DEFAULT 0;
    CREATE INDEX responses_by_expiry ON dragoman.responses (owner, expires_at, place) WHERE removed = 0;
    CREATE INDEX responses_that_end_chains ON dragoman.responses (owner, expires_at, place)
        WHERE removed = 0 AND children = 0 AND status NOT IN ('queued', 'in_progress');
    CREATE INDEX responses_that_nothing_needs ON dragoman.responses (owner) WHERE removed = 1 AND children = 0;
    CREATE INDEX response_events_by_time ON dragoman.response_events (created_at, owner, id);
    ALTER TABLE dragoman.conversations ADD COLUMN newest TEXT NOT NULL DEFAULT '';
    ALTER TABLE dragoman.conversations ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
    CREATE TABLE dragoman.stored_totals (
        owner              TEXT PRIMARY KEY,
        responses          BIGINT NOT NULL,
        conversations      BIGINT NOT NULL,
        items              BIGINT NOT NULL,
        bytes              BIGINT NOT NULL,
        conversation_bytes BIGINT NOT NULL
    );
    """
    + count_conversations("dragoman.")
    + "INSERT INTO dragoman.stored_totals"
    + select_totals("dragoman."),
    # What is requested of models that can think, in requests of this key that ask for nothing.
    """
    ALTER TABLE dragoman.client_keys ADD COLUMN default_thinking TEXT;
    """,
    # What upstreams have rejected. `rule_changes` tells processes to read the rules again.
    """
    CREATE TABLE dragoman.learned_rules (
        tenant    TEXT NOT NULL,
        provider  TEXT NOT NULL,
        rule      TEXT NOT NULL,
        path      TEXT NOT NULL,
        model     TEXT NOT NULL,
        section   TEXT NOT NULL,
        learnt_at BIGINT NOT NULL,
        PRIMARY KEY (tenant, provider, rule, path, model)
    );
    CREATE INDEX rules_by_age ON dragoman.learned_rules (learnt_at);
    CREATE TABLE dragoman.rule_changes (number BIGINT NOT NULL);
    INSERT INTO dragoman.rule_changes VALUES (1);
    """,
)
