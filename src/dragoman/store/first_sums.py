"""The SQL that adds up the usage rows which a store had before it kept sums: one migration of both databases.

It describes the tables as they were then, so it never changes.
"""

# ruff: noqa: S608 - all names in the statements are our own

QUARTER_MS, HOUR_MS, DAY_MS = 900_000, 3_600_000, 86_400_000
ROUTE = "provider || '/' || model"
GROUPS = (  # dimension, owner, group
    ("all", "'*'", "''"),
    ("key", "'*'", "key"),
    ("model", "'*'", ROUTE),
    ("client", "'*'", "client"),
    ("model", "key", ROUTE),
    ("client", "key", "client"),
)
SUMS_OF_ROWS = """
        count(*), count(*) FILTER (WHERE outcome NOT IN ('ok', 'client_gone')),
        count(*) FILTER (WHERE outcome = 'client_gone'), coalesce(sum(input_tokens), 0),
        coalesce(sum(cache_read_tokens), 0), coalesce(sum(cache_write_tokens), 0), coalesce(sum(output_tokens), 0),
        coalesce(sum(reasoning_tokens), 0), coalesce(sum(credits), 0), coalesce(sum(cost_nano_usd), 0),
        count(cost_nano_usd), count(*) FILTER (WHERE usage_source IS NOT NULL OR cost_nano_usd IS NOT NULL),
        count(*) FILTER (WHERE usage_source = 'derived'),
        count(*) FILTER (WHERE usage_source = 'estimated'),
        coalesce(sum(input_tokens + output_tokens) FILTER (WHERE usage_source = 'estimated'), 0),
        coalesce(sum(duration_ms), 0), coalesce(sum(web_searches), 0), coalesce(sum(web_fetches), 0),
        coalesce(sum(output_tokens) FILTER (WHERE duration_ms > ttft_ms), 0),
        coalesce(sum(duration_ms - ttft_ms) FILTER (WHERE duration_ms > ttft_ms AND output_tokens IS NOT NULL), 0)
"""
SUMS_OF_SUMS = """
        sum(requests), sum(failed), sum(client_gone), sum(input_tokens), sum(cache_read_tokens),
        sum(cache_write_tokens), sum(output_tokens), sum(reasoning_tokens), sum(credits), sum(cost_nano_usd),
        sum(priced), sum(counted), sum(derived), sum(estimated), sum(estimated_tokens), sum(duration_ms),
        sum(web_searches), sum(web_fetches), sum(generated_tokens), sum(generating_ms)
"""


def add_up_rows(schema: str, bucket: str) -> str:
    """Return the statements. `schema` stands before each table; `bucket` is the expression of a row's ttft bucket."""
    statements = [
        f"INSERT INTO {schema}usage_sums SELECT '{dimension}', {owner}, {QUARTER_MS}, time_ms / {QUARTER_MS}, {group},"
        f"{SUMS_OF_ROWS} FROM {schema}usage GROUP BY 2, 4, 5;"
        for dimension, owner, group in GROUPS
    ]
    statements += [
        f"INSERT INTO {schema}usage_sums SELECT dimension, owner, {level}, slot / {level // QUARTER_MS}, grouped,"
        f"{SUMS_OF_SUMS} FROM {schema}usage_sums WHERE level = {QUARTER_MS} GROUP BY 1, 2, 4, 5;"
        for level in (HOUR_MS, DAY_MS)
    ]
    statements += [
        f"INSERT INTO {schema}usage_ttft SELECT {owner}, {level}, time_ms / {level}, {ROUTE}, {bucket}, count(*)"
        f" FROM {schema}usage WHERE ttft_ms IS NOT NULL GROUP BY 1, 3, 4, 5;"
        for level in (QUARTER_MS, HOUR_MS, DAY_MS)
        for owner in ("'*'", "key")
    ]
    return "\n".join(statements)
