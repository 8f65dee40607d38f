"""Usage rows that differ by a number."""

from msgspec.structs import replace

from dragoman.store.usage_rows import UsageRow, UsageSpan, make_id

EVER = UsageSpan(0, 2**62)
NOON_MS = 1_800_000_000_000


def row(number: int) -> UsageRow:
    return UsageRow(
        id=make_id(NOON_MS + number, number),
        time_ms=NOON_MS + number,
        request_id=f"req_{number}",
        key="key_1",
        client="curl",
        client_protocol="chat",
        upstream_protocol="messages",
        provider="up",
        model="claude-fake",
        requested_model="claude",
        stream=False,
        input_tokens=100 + number,
        cache_read_tokens=10,
        cache_write_tokens=5,
        output_tokens=20,
        reasoning_tokens=3,
        credits=0.125,
        usage_source="reported",
        cost_nano_usd=1_234_567,
        ttft_ms=12,
        duration_ms=340,
        outcome="ok",
        error_code=None,
        losses=2,
        attempts=1,
        rounds=2,
        web_searches=1,
        web_fetches=3,
        run=f"run_{number}",
    )


def row_at(time_ms: int, number: int) -> UsageRow:
    return replace(row(number), id=make_id(time_ms, number), time_ms=time_ms)
