"""The schema as migrations, applied once each and in order. They are written once: what the databases write
differently stands in braces, and each database has its words for it.
"""

from collections.abc import Mapping

from dragoman.store.first_sums import add_up_rows
from dragoman.store.first_totals import count_conversations, select_totals

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE {schema}client_keys (
        id           TEXT PRIMARY KEY,
        {place}
        name         TEXT NOT NULL,
        digest       {blob} NOT NULL UNIQUE,
        prefix       TEXT NOT NULL,
        last4        TEXT NOT NULL,
        created_at   {int} NOT NULL,
        revoked_at   {int},
        last_used_at {int}
    );
    CREATE UNIQUE INDEX client_keys_by_name ON {schema}client_keys (name) WHERE revoked_at IS NULL;
    {count_changes}
    """,
    """
    CREATE TABLE {schema}cut_calls (
        digest     {blob} PRIMARY KEY,
        lost       {blob} NOT NULL,
        expires_at {int} NOT NULL
    );
    """,
    """
    CREATE TABLE {schema}usage (
        id             {blob} PRIMARY KEY,
        began_ms       {int} NOT NULL,
        request        TEXT NOT NULL,
        key            TEXT NOT NULL,
        client         TEXT NOT NULL,
        asked          TEXT NOT NULL,
        spoken         TEXT NOT NULL,
        provider       TEXT NOT NULL,
        model          TEXT NOT NULL,
        wanted         TEXT NOT NULL,
        stream         {bool} NOT NULL,
        input          {int},
        cached         {int},
        written        {int},
        output         {int},
        reasoning      {int},
        credits        {real},
        source         TEXT,
        cost_nano      {int},
        first_token_ms {int},
        duration_ms    {int} NOT NULL,
        result         TEXT NOT NULL,
        code           TEXT,
        losses         {int} NOT NULL,
        attempts       {int} NOT NULL
    );
    CREATE INDEX usage_by_time ON {schema}usage (began_ms);
    """,
    # Cut tool calls belong to a client key. The old rows name none, so they are dropped: they would have expired within
    # an hour.
    """
    DROP TABLE {schema}cut_calls;
    CREATE TABLE {schema}cut_calls (
        tenant     TEXT NOT NULL,
        digest     {blob} NOT NULL,
        lost       {blob} NOT NULL,
        expires_at {int} NOT NULL,
        PRIMARY KEY (tenant, digest)
    );
    """,
    """
    ALTER TABLE {schema}usage RENAME COLUMN began_ms TO time_ms;
    ALTER TABLE {schema}usage RENAME COLUMN request TO request_id;
    ALTER TABLE {schema}usage RENAME COLUMN asked TO client_protocol;
    ALTER TABLE {schema}usage RENAME COLUMN spoken TO upstream_protocol;
    ALTER TABLE {schema}usage RENAME COLUMN wanted TO requested_model;
    ALTER TABLE {schema}usage RENAME COLUMN input TO input_tokens;
    ALTER TABLE {schema}usage RENAME COLUMN cached TO cache_read_tokens;
    ALTER TABLE {schema}usage RENAME COLUMN written TO cache_write_tokens;
    ALTER TABLE {schema}usage RENAME COLUMN output TO output_tokens;
    ALTER TABLE {schema}usage RENAME COLUMN reasoning TO reasoning_tokens;
    ALTER TABLE {schema}usage RENAME COLUMN source TO usage_source;
    ALTER TABLE {schema}usage RENAME COLUMN cost_nano TO cost_nano_usd;
    ALTER TABLE {schema}usage RENAME COLUMN first_token_ms TO ttft_ms;
    ALTER TABLE {schema}usage RENAME COLUMN result TO outcome;
    ALTER TABLE {schema}usage RENAME COLUMN code TO error_code;
    """,
    """
    ALTER TABLE {schema}usage ADD COLUMN rounds {int} NOT NULL DEFAULT 1;
    ALTER TABLE {schema}usage ADD COLUMN web_searches {int} NOT NULL DEFAULT 0;
    ALTER TABLE {schema}usage ADD COLUMN web_fetches {int} NOT NULL DEFAULT 0;
    """,
    """
    CREATE TABLE {schema}audit (
        number  {serial},
        time_ms {int} NOT NULL,
        actor   TEXT NOT NULL,
        action  TEXT NOT NULL,
        subject TEXT NOT NULL,
        address TEXT NOT NULL,
        detail  TEXT NOT NULL,
        previous {blob} NOT NULL
    );
    """,
    # The key that the first start made is the owner's.
    """
    ALTER TABLE {schema}client_keys ADD COLUMN role TEXT NOT NULL DEFAULT 'client';
    ALTER TABLE {schema}client_keys ADD COLUMN scopes TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}client_keys ADD COLUMN expires_at {int};
    ALTER TABLE {schema}client_keys ADD COLUMN old_digest {blob};
    ALTER TABLE {schema}client_keys ADD COLUMN old_secret_until {int};
    ALTER TABLE {schema}client_keys ADD COLUMN version {int} NOT NULL DEFAULT 1;
    UPDATE {schema}client_keys SET role = 'owner'
        WHERE name = 'first' AND {order} = (SELECT min({order}) FROM {schema}client_keys);
    {count_changes_later}
    """,
    """
    DROP INDEX {schema}usage_by_time;
    CREATE INDEX usage_by_time_and_id ON {schema}usage (time_ms, id);
    CREATE INDEX usage_by_key ON {schema}usage (key, time_ms, id);
    CREATE INDEX usage_by_request_id ON {schema}usage (request_id);
    """,
    """
    CREATE TABLE {schema}console_sessions (
        digest        {blob} PRIMARY KEY,
        header_digest {blob} NOT NULL,
        id            TEXT NOT NULL UNIQUE,
        key           TEXT NOT NULL,
        created_at    {int} NOT NULL,
        used_at       {int} NOT NULL,
        expires_at    {int} NOT NULL,
        address       TEXT NOT NULL,
        browser       TEXT NOT NULL
    );
    """,
    """
    CREATE TABLE {schema}responses (
        owner        TEXT NOT NULL,
        id           TEXT NOT NULL,
        created_at   {int} NOT NULL,
        expires_at   {int} NOT NULL,
        status       TEXT NOT NULL,
        model        TEXT NOT NULL,
        route        TEXT NOT NULL,
        head         {blob} NOT NULL,
        settings     {blob} NOT NULL,
        context      {blob} NOT NULL,
        input_start  {int} NOT NULL,
        output       {blob} NOT NULL,
        conversation TEXT NOT NULL,
        keeper       TEXT NOT NULL,
        account      TEXT NOT NULL,
        bytes        {int} NOT NULL,
        {place}
        PRIMARY KEY (owner, id)
    );
    CREATE INDEX responses_by_time ON {schema}responses (created_at);
    CREATE TABLE {schema}response_items (
        owner  TEXT NOT NULL,
        digest {blob} NOT NULL,
        id     TEXT NOT NULL,
        body   {blob} NOT NULL,
        hidden {blob},
        {place}
        PRIMARY KEY (owner, digest)
    );
    CREATE INDEX response_items_by_id ON {schema}response_items (owner, id) WHERE id <> '';
    CREATE TABLE {schema}item_references (
        owner  TEXT NOT NULL,
        digest {blob} NOT NULL,
        number {int} NOT NULL,
        PRIMARY KEY (owner, digest)
    ){no_rowid};
    CREATE TABLE {schema}conversations (
        owner      TEXT NOT NULL,
        id         TEXT NOT NULL,
        created_at {int} NOT NULL,
        metadata   {blob} NOT NULL,
        lock_token TEXT NOT NULL DEFAULT '',
        lock_until {int} NOT NULL DEFAULT 0,
        PRIMARY KEY (owner, id)
    );
    CREATE TABLE {schema}conversation_items (
        owner        TEXT NOT NULL,
        conversation TEXT NOT NULL,
        place        {int} NOT NULL,
        digest       {blob} NOT NULL,
        PRIMARY KEY (owner, conversation, place)
    ){no_rowid};
    """,
    # Sums of usage, for all keys together and for each key; those of the rows that there are already.
    """
    {before_sums}
    CREATE TABLE {schema}usage_sums (
        dimension          TEXT NOT NULL,
        owner              TEXT NOT NULL,
        level              {int} NOT NULL,
        slot               {int} NOT NULL,
        grouped            TEXT NOT NULL,
        requests           {int} NOT NULL,
        failed             {int} NOT NULL,
        client_gone        {int} NOT NULL,
        input_tokens       {int} NOT NULL,
        cache_read_tokens  {int} NOT NULL,
        cache_write_tokens {int} NOT NULL,
        output_tokens      {int} NOT NULL,
        reasoning_tokens   {int} NOT NULL,
        credits            {real} NOT NULL,
        cost_nano_usd      {int} NOT NULL,
        priced             {int} NOT NULL,
        counted            {int} NOT NULL,
        derived            {int} NOT NULL,
        estimated          {int} NOT NULL,
        estimated_tokens   {int} NOT NULL,
        duration_ms        {int} NOT NULL,
        web_searches       {int} NOT NULL,
        web_fetches        {int} NOT NULL,
        generated_tokens   {int} NOT NULL,
        generating_ms      {int} NOT NULL
        {sums_key}
    ){no_rowid};
    CREATE TABLE {schema}usage_ttft (
        owner    TEXT NOT NULL,
        level    {int} NOT NULL,
        slot     {int} NOT NULL,
        route    TEXT NOT NULL,
        bucket   {int} NOT NULL,
        requests {int} NOT NULL
        {ttft_key}
    ){no_rowid};
    """
    + add_up_rows("{schema}", "{ttft_bucket}")
    + "{after_sums}",
    # Ids of usage rows begin with their time, so that the primary key finds rows by time, too.
    """
    {put_time_first}
    DROP INDEX {schema}usage_by_time_and_id;
    DROP INDEX {schema}usage_by_key;
    CREATE INDEX usage_by_key ON {schema}usage (key, id);
    """,
    # The resumable reply that the client of a request got.
    """
    ALTER TABLE {schema}usage ADD COLUMN run TEXT NOT NULL DEFAULT '';
    """,
    # Background responses: those that have not ended, and the events of those that are streamed.
    """
    ALTER TABLE {schema}responses ADD COLUMN mode TEXT NOT NULL DEFAULT '';
    CREATE TABLE {schema}background_runs (
        owner        TEXT NOT NULL,
        id           TEXT NOT NULL,
        conversation TEXT NOT NULL,
        request      {blob} NOT NULL,
        last_event   {int} NOT NULL,
        token        TEXT NOT NULL,
        lease_until  {int} NOT NULL,
        {place}
        PRIMARY KEY (owner, id)
    );
    CREATE INDEX background_runs_by_token ON {schema}background_runs (token);
    CREATE TABLE {schema}response_events (
        owner      TEXT NOT NULL,
        id         TEXT NOT NULL,
        first      {int} NOT NULL,
        last       {int} NOT NULL,
        body       {blob} NOT NULL,
        created_at {int} NOT NULL,
        PRIMARY KEY (owner, id, first)
    ){no_rowid};
    """,
    # What the client of a request calls it; `request_id` is the gateway's own.
    """
    ALTER TABLE {schema}usage ADD COLUMN client_request_id TEXT NOT NULL DEFAULT '';
    """,
    # How much each owner has, counted beside the rows; of a response only what it adds to the one that it continues.
    """
    ALTER TABLE {schema}responses RENAME COLUMN context TO input;
    ALTER TABLE {schema}responses DROP COLUMN bytes;
    ALTER TABLE {schema}responses ADD COLUMN base TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}responses ADD COLUMN children {int} NOT NULL DEFAULT 0;
    ALTER TABLE {schema}responses ADD COLUMN removed {int} NOT NULL DEFAULT 0;
    CREATE INDEX responses_by_expiry ON {schema}responses (owner, expires_at{then_place}) WHERE removed = 0;
    CREATE INDEX responses_that_end_chains ON {schema}responses (owner, expires_at{then_place})
        WHERE removed = 0 AND children = 0 AND status NOT IN ('queued', 'in_progress');
    CREATE INDEX responses_that_nothing_needs ON {schema}responses (owner) WHERE removed = 1 AND children = 0;
    CREATE INDEX response_events_by_time ON {schema}response_events (created_at, owner, id);
    ALTER TABLE {schema}conversations ADD COLUMN newest TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}conversations ADD COLUMN bytes {int} NOT NULL DEFAULT 0;
    CREATE TABLE {schema}stored_totals (
        owner              TEXT PRIMARY KEY,
        responses          {int} NOT NULL,
        conversations      {int} NOT NULL,
        items              {int} NOT NULL,
        bytes              {int} NOT NULL,
        conversation_bytes {int} NOT NULL
    ){no_rowid};
    """
    + count_conversations("{schema}")
    + "INSERT INTO {schema}stored_totals"
    + select_totals("{schema}"),
    # What is requested of models that can think, in requests of this key that ask for nothing.
    """
    ALTER TABLE {schema}client_keys ADD COLUMN default_thinking TEXT;
    """,
    # The protocol of echo has its name.
    """
    UPDATE {schema}usage SET upstream_protocol = 'echo' WHERE upstream_protocol = 'native';
    """,
    # What upstreams have rejected. `rule_changes` tells processes to read the rules again.
    """
    CREATE TABLE {schema}learned_rules (
        tenant    TEXT NOT NULL,
        provider  TEXT NOT NULL,
        rule      TEXT NOT NULL,
        path      TEXT NOT NULL,
        model     TEXT NOT NULL,
        section   TEXT NOT NULL,
        learnt_at {int} NOT NULL,
        PRIMARY KEY (tenant, provider, rule, path, model)
    ){no_rowid};
    CREATE INDEX rules_by_age ON {schema}learned_rules (learnt_at);
    CREATE TABLE {schema}rule_changes (number {int} NOT NULL);
    INSERT INTO {schema}rule_changes VALUES (1);
    """,
    # Who made a request, and what a prompt cache did for it. `compatible_from` is the oldest version of the
    # schema whose gateways can still use the database; a migration that they cannot live with raises it.
    """
    ALTER TABLE {schema}usage ADD COLUMN session TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}usage ADD COLUMN agent TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}usage ADD COLUMN parent_agent TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}usage ADD COLUMN user_name TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}usage ADD COLUMN team TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}usage ADD COLUMN tags TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}usage ADD COLUMN lease TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}usage ADD COLUMN cache_possible_tokens {int};
    ALTER TABLE {schema}usage ADD COLUMN cache_miss TEXT;
    ALTER TABLE {schema}usage ADD COLUMN cache_miss_path TEXT;
    ALTER TABLE {schema}usage ADD COLUMN cache_saved_nano_usd {int};
    CREATE TABLE {schema}compatibility (compatible_from {int} NOT NULL);
    INSERT INTO {schema}compatibility VALUES (21);
    """,
    # Teams, limits of any scope, what else is set for a key, and the answers to requests that may be repeated. A
    # gateway of an older version can use the database, but it enforces and counts nothing of this.
    """
    ALTER TABLE {schema}client_keys ADD COLUMN user_name TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}client_keys ADD COLUMN team TEXT NOT NULL DEFAULT '';
    ALTER TABLE {schema}client_keys ADD COLUMN settings TEXT NOT NULL DEFAULT '';
    CREATE TABLE {schema}teams (
        name       TEXT PRIMARY KEY,
        members    TEXT NOT NULL,
        models     TEXT NOT NULL,
        providers  TEXT NOT NULL,
        created_at {int} NOT NULL,
        version    {int} NOT NULL
    ){no_rowid};
    CREATE TABLE {schema}limits (
        scope   TEXT NOT NULL,
        name    TEXT NOT NULL,
        amounts TEXT NOT NULL,
        version {int} NOT NULL,
        PRIMARY KEY (scope, name)
    ){no_rowid};
    CREATE TABLE {schema}repeatable_requests (
        actor      TEXT NOT NULL,
        key        TEXT NOT NULL,
        request    {blob} NOT NULL,
        status     {int} NOT NULL,
        etag       TEXT NOT NULL,
        body       {blob} NOT NULL,
        created_at {int} NOT NULL,
        PRIMARY KEY (actor, key)
    ){no_rowid};
    """,
    # What meters need: the rows of a lease are one, rows of a user or a team are found, what removed rows had spent is
    # kept, and what was forgiven. In PostgreSQL the meter itself.
    """
    CREATE UNIQUE INDEX usage_by_lease ON {schema}usage (lease) WHERE lease <> '';
    CREATE INDEX usage_by_user ON {schema}usage (user_name, time_ms) WHERE user_name <> '';
    CREATE INDEX usage_by_team ON {schema}usage (team, time_ms) WHERE team <> '';
    CREATE TABLE {schema}removed_spending (
        kind    TEXT NOT NULL,
        name    TEXT NOT NULL,
        slot    {int} NOT NULL,
        usd     {int} NOT NULL,
        tokens  {int} NOT NULL,
        credits {int} NOT NULL,
        PRIMARY KEY (kind, name, slot)
    ){no_rowid};
    CREATE TABLE {schema}adjustments (
        number   {serial},
        time_ms  {int} NOT NULL,
        scope    TEXT NOT NULL,
        unit     TEXT NOT NULL,
        amount   {int} NOT NULL,
        until_ms {int} NOT NULL,
        reason   TEXT NOT NULL
    );
    CREATE INDEX adjustments_by_scope ON {schema}adjustments (scope);
    {meter}
    """,
    # Which limits have been warned of.
    """
    CREATE TABLE {schema}limit_warnings (
        counter  TEXT NOT NULL,
        percent  {int} NOT NULL,
        until_ms {int} NOT NULL,
        PRIMARY KEY (counter, percent)
    ){no_rowid};
    """,
    # What prompt caches could have had, had, and saved; rows of earlier gateways do not say it.
    """
    ALTER TABLE {schema}usage_sums ADD COLUMN cache_possible_tokens {int} NOT NULL DEFAULT 0;
    ALTER TABLE {schema}usage_sums ADD COLUMN cache_had_tokens {int} NOT NULL DEFAULT 0;
    ALTER TABLE {schema}usage_sums ADD COLUMN cache_saved_nano_usd {int} NOT NULL DEFAULT 0;
    """,
    # Credentials of upstream accounts that all gateways share, sealed.
    """
    CREATE TABLE {schema}sealed_credentials (
        name       TEXT PRIMARY KEY,
        kind       TEXT NOT NULL,
        version    {int} NOT NULL,
        sealed     {blob} NOT NULL,
        changed_at {int} NOT NULL
    ){no_rowid};
    """,
    # Cooldowns of credentials, which several gateways agree on.
    """
    CREATE TABLE {schema}cooldowns (
        member            TEXT NOT NULL,
        model             TEXT NOT NULL,
        until_ms          {int} NOT NULL,
        reason            TEXT NOT NULL,
        probe_at_ms       {int} NOT NULL,
        probe_interval_ms {int} NOT NULL,
        PRIMARY KEY (member, model)
    ){no_rowid};
    """,
    # The newest row of the audit log, so that it is noticed if it is changed or removed.
    """
    CREATE TABLE {schema}audit_head (
        number  {int} NOT NULL,
        time_ms {int} NOT NULL,
        hash    {blob} NOT NULL
    );
    """,
)


def write_migrations(words: Mapping[str, str]) -> tuple[str, ...]:
    """Return the migrations in the words of one database."""
    return tuple(step.format_map(words) for step in STEPS)
