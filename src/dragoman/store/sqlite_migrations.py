"""The schema as migrations, applied once each and in order; SQLite's user_version counts those applied."""

from dragoman.store.first_sums import add_up_rows
from dragoman.store.first_totals import count_conversations, select_totals

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
    """
    CREATE TABLE usage (
        id             BLOB PRIMARY KEY,
        began_ms       INTEGER NOT NULL,
        request        TEXT NOT NULL,
        key            TEXT NOT NULL,
        client         TEXT NOT NULL,
        asked          TEXT NOT NULL,
        spoken         TEXT NOT NULL,
        provider       TEXT NOT NULL,
        model          TEXT NOT NULL,
        wanted         TEXT NOT NULL,
        stream         INTEGER NOT NULL,
        input          INTEGER,
        cached         INTEGER,
        written        INTEGER,
        output         INTEGER,
        reasoning      INTEGER,
        credits        REAL,
        source         TEXT,
        cost_nano      INTEGER,
        first_token_ms INTEGER,
        duration_ms    INTEGER NOT NULL,
        result         TEXT NOT NULL,
        code           TEXT,
        losses         INTEGER NOT NULL,
        attempts       INTEGER NOT NULL
    );
    CREATE INDEX usage_by_time ON usage (began_ms);
    """,
    # Cut tool calls belong to a client key. The old rows name none, so they are dropped: they would have expired within
    # an hour.
    """
    DROP TABLE cut_calls;
    CREATE TABLE cut_calls (
        tenant     TEXT NOT NULL,
        digest     BLOB NOT NULL,
        lost       BLOB NOT NULL,
        expires_at INTEGER NOT NULL,
        PRIMARY KEY (tenant, digest)
    );
    """,
    """
    ALTER TABLE usage RENAME COLUMN began_ms TO time_ms;
    ALTER TABLE usage RENAME COLUMN request TO request_id;
    ALTER TABLE usage RENAME COLUMN asked TO client_protocol;
    ALTER TABLE usage RENAME COLUMN spoken TO upstream_protocol;
    ALTER TABLE usage RENAME COLUMN wanted TO requested_model;
    ALTER TABLE usage RENAME COLUMN input TO input_tokens;
    ALTER TABLE usage RENAME COLUMN cached TO cache_read_tokens;
    ALTER TABLE usage RENAME COLUMN written TO cache_write_tokens;
    ALTER TABLE usage RENAME COLUMN output TO output_tokens;
    ALTER TABLE usage RENAME COLUMN reasoning TO reasoning_tokens;
    ALTER TABLE usage RENAME COLUMN source TO usage_source;
    ALTER TABLE usage RENAME COLUMN cost_nano TO cost_nano_usd;
    ALTER TABLE usage RENAME COLUMN first_token_ms TO ttft_ms;
    ALTER TABLE usage RENAME COLUMN result TO outcome;
    ALTER TABLE usage RENAME COLUMN code TO error_code;
    """,
    """
    ALTER TABLE usage ADD COLUMN rounds INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE usage ADD COLUMN web_searches INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE usage ADD COLUMN web_fetches INTEGER NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE audit (
        number  INTEGER PRIMARY KEY AUTOINCREMENT,
        time_ms INTEGER NOT NULL,
        actor   TEXT NOT NULL,
        action  TEXT NOT NULL,
        subject TEXT NOT NULL,
        address TEXT NOT NULL,
        detail  TEXT NOT NULL,
        previous BLOB NOT NULL
    );
    """,
    # The key that the first start made is the owner's. A counter tells other processes of changes to the keys.
    """
    ALTER TABLE client_keys ADD COLUMN role TEXT NOT NULL DEFAULT 'client';
    ALTER TABLE client_keys ADD COLUMN scopes TEXT NOT NULL DEFAULT '';
    ALTER TABLE client_keys ADD COLUMN expires_at INTEGER;
    ALTER TABLE client_keys ADD COLUMN old_digest BLOB;
    ALTER TABLE client_keys ADD COLUMN old_secret_until INTEGER;
    ALTER TABLE client_keys ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
    UPDATE client_keys SET role = 'owner' WHERE name = 'first' AND rowid = (SELECT min(rowid) FROM client_keys);
    CREATE TABLE key_changes (number INTEGER NOT NULL);
    INSERT INTO key_changes VALUES (1);
    CREATE TRIGGER key_added AFTER INSERT ON client_keys BEGIN UPDATE key_changes SET number = number + 1; END;
    CREATE TRIGGER key_removed AFTER DELETE ON client_keys BEGIN UPDATE key_changes SET number = number + 1; END;
    CREATE TRIGGER key_changed AFTER UPDATE OF digest, revoked_at, version ON client_keys
        BEGIN UPDATE key_changes SET number = number + 1; END;
    """,
    """
    DROP INDEX usage_by_time;
    CREATE INDEX usage_by_time_and_id ON usage (time_ms, id);
    CREATE INDEX usage_by_key ON usage (key, time_ms, id);
    CREATE INDEX usage_by_request_id ON usage (request_id);
    """,
    """
    CREATE TABLE console_sessions (
        digest        BLOB PRIMARY KEY,
        header_digest BLOB NOT NULL,
        id            TEXT NOT NULL UNIQUE,
        key           TEXT NOT NULL,
        created_at    INTEGER NOT NULL,
        used_at       INTEGER NOT NULL,
        expires_at    INTEGER NOT NULL,
        address       TEXT NOT NULL,
        browser       TEXT NOT NULL
    );
    """,
    """
    CREATE TABLE responses (
        owner        TEXT NOT NULL,
        id           TEXT NOT NULL,
        created_at   INTEGER NOT NULL,
        expires_at   INTEGER NOT NULL,
        status       TEXT NOT NULL,
        model        TEXT NOT NULL,
        route        TEXT NOT NULL,
        head         BLOB NOT NULL,
        settings     BLOB NOT NULL,
        context      BLOB NOT NULL,
        input_start  INTEGER NOT NULL,
        output       BLOB NOT NULL,
        conversation TEXT NOT NULL,
        keeper       TEXT NOT NULL,
        account      TEXT NOT NULL,
        bytes        INTEGER NOT NULL,
        PRIMARY KEY (owner, id)
    );
    CREATE INDEX responses_by_time ON responses (created_at);
    CREATE TABLE response_items (
        owner  TEXT NOT NULL,
        digest BLOB NOT NULL,
        id     TEXT NOT NULL,
        body   BLOB NOT NULL,
        hidden BLOB,
        PRIMARY KEY (owner, digest)
    );
    CREATE INDEX response_items_by_id ON response_items (owner, id) WHERE id <> '';
    CREATE TABLE item_references (
        owner  TEXT NOT NULL,
        digest BLOB NOT NULL,
        number INTEGER NOT NULL,
        PRIMARY KEY (owner, digest)
    ) WITHOUT ROWID;
    CREATE TABLE conversations (
        owner      TEXT NOT NULL,
        id         TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        metadata   BLOB NOT NULL,
        lock_token TEXT NOT NULL DEFAULT '',
        lock_until INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (owner, id)
    );
    CREATE TABLE conversation_items (
        owner        TEXT NOT NULL,
        conversation TEXT NOT NULL,
        place        INTEGER NOT NULL,
        digest       BLOB NOT NULL,
        PRIMARY KEY (owner, conversation, place)
    ) WITHOUT ROWID;
    """,
    # Sums of usage, for all keys together and for each key; those of the rows that there are already.
    """
    CREATE TABLE usage_sums (
        dimension          TEXT NOT NULL,
        owner              TEXT NOT NULL,
        level              INTEGER NOT NULL,
        slot               INTEGER NOT NULL,
        grouped            TEXT NOT NULL,
        requests           INTEGER NOT NULL,
        failed             INTEGER NOT NULL,
        client_gone        INTEGER NOT NULL,
        input_tokens       INTEGER NOT NULL,
        cache_read_tokens  INTEGER NOT NULL,
        cache_write_tokens INTEGER NOT NULL,
        output_tokens      INTEGER NOT NULL,
        reasoning_tokens   INTEGER NOT NULL,
        credits            REAL NOT NULL,
        cost_nano_usd      INTEGER NOT NULL,
        priced             INTEGER NOT NULL,
        counted            INTEGER NOT NULL,
        derived            INTEGER NOT NULL,
        estimated          INTEGER NOT NULL,
        estimated_tokens   INTEGER NOT NULL,
        duration_ms        INTEGER NOT NULL,
        web_searches       INTEGER NOT NULL,
        web_fetches        INTEGER NOT NULL,
        generated_tokens   INTEGER NOT NULL,
        generating_ms      INTEGER NOT NULL,
        PRIMARY KEY (dimension, owner, level, slot, grouped)
    ) WITHOUT ROWID;
    CREATE TABLE usage_ttft (
        owner    TEXT NOT NULL,
        level    INTEGER NOT NULL,
        slot     INTEGER NOT NULL,
        route    TEXT NOT NULL,
        bucket   INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        PRIMARY KEY (owner, level, slot, route, bucket)
    ) WITHOUT ROWID;
    """
    + add_up_rows("", "CAST(round(log2(max(1, ttft_ms)) * 8) AS INTEGER)"),
    # Ids of usage rows begin with their time, so that the primary key finds rows by time, too.
    """
    UPDATE usage
    SET id = unhex(printf('%012X', time_ms) || CASE length(id) WHEN 16 THEN substr(hex(id), 13) ELSE hex(id) END)
    WHERE substr(id, 1, 6) <> unhex(printf('%012X', time_ms));
    DROP INDEX usage_by_time_and_id;
    DROP INDEX usage_by_key;
    CREATE INDEX usage_by_key ON usage (key, id);
    """,
    # The resumable reply that the client of a request got.
    """
    ALTER TABLE usage ADD COLUMN run TEXT NOT NULL DEFAULT '';
    """,
    # Background responses: those that have not ended, and the events of those that are streamed.
    """
    ALTER TABLE responses ADD COLUMN mode TEXT NOT NULL DEFAULT '';
    CREATE TABLE background_runs (
        owner        TEXT NOT NULL,
        id           TEXT NOT NULL,
        conversation TEXT NOT NULL,
        request      BLOB NOT NULL,
        last_event   INTEGER NOT NULL,
        token        TEXT NOT NULL,
        lease_until  INTEGER NOT NULL,
        PRIMARY KEY (owner, id)
    );
    CREATE INDEX background_runs_by_token ON background_runs (token);
    CREATE TABLE response_events (
        owner      TEXT NOT NULL,
        id         TEXT NOT NULL,
        first      INTEGER NOT NULL,
        last       INTEGER NOT NULL,
        body       BLOB NOT NULL,
        created_at INTEGER NOT NULL,
        PRIMARY KEY (owner, id, first)
    ) WITHOUT ROWID;
    """,
    # What the client of a request calls it; `request_id` is the gateway's own.
    """
    ALTER TABLE usage ADD COLUMN client_request_id TEXT NOT NULL DEFAULT '';
    """,
    # How much each owner has, counted beside the rows; of a response only what it adds to the one that it continues.
    """
    ALTER TABLE responses RENAME COLUMN context TO input;
    ALTER TABLE responses DROP COLUMN bytes;
    ALTER TABLE responses ADD COLUMN base TEXT NOT NULL DEFAULT '';
    ALTER TABLE responses ADD COLUMN children INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE responses ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX responses_by_expiry ON responses (owner, expires_at) WHERE removed = 0;
    CREATE INDEX responses_that_end_chains ON responses (owner, expires_at)
        WHERE removed = 0 AND children = 0 AND status NOT IN ('queued', 'in_progress');
    CREATE INDEX responses_that_nothing_needs ON responses (owner) WHERE removed = 1 AND children = 0;
    CREATE INDEX response_events_by_time ON response_events (created_at, owner, id);
    ALTER TABLE conversations ADD COLUMN newest TEXT NOT NULL DEFAULT '';
    ALTER TABLE conversations ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE stored_totals (
        owner              TEXT PRIMARY KEY,
        responses          INTEGER NOT NULL,
        conversations      INTEGER NOT NULL,
        items              INTEGER NOT NULL,
        bytes              INTEGER NOT NULL,
        conversation_bytes INTEGER NOT NULL
    ) WITHOUT ROWID;
    """
    + count_conversations("")
    + "INSERT INTO stored_totals"
    + select_totals(""),
    # What is requested of models that can think, in requests of this key that ask for nothing.
    """
    ALTER TABLE client_keys ADD COLUMN default_thinking TEXT;
    """,
    # What upstreams have rejected. `rule_changes` tells processes to read the rules again.
    """
    CREATE TABLE learned_rules (
        tenant    TEXT NOT NULL,
        provider  TEXT NOT NULL,
        rule      TEXT NOT NULL,
        path      TEXT NOT NULL,
        model     TEXT NOT NULL,
        section   TEXT NOT NULL,
        learnt_at INTEGER NOT NULL,
        PRIMARY KEY (tenant, provider, rule, path, model)
    ) WITHOUT ROWID;
    CREATE INDEX rules_by_age ON learned_rules (learnt_at);
    CREATE TABLE rule_changes (number INTEGER NOT NULL);
    INSERT INTO rule_changes VALUES (1);
    """,
)
