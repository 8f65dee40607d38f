"""Usage rows that differ by a number."""

from dragoman.store.usage_rows import Span, UsageRow

EVER = Span(0, 2**62)
NOON_MS = 1_800_000_000_000


def row(number: int) -> UsageRow:
    return UsageRow(
        id=number.to_bytes(16, "big"),
        began_ms=NOON_MS + number,
        request=f"req_{number}",
        key="key_1",
        client="curl",
        asked="chat",
        spoken="messages",
        provider="up",
        model="claude-fake",
        wanted="claude",
        stream=False,
        input=100 + number,
        cached=10,
        written=5,
        output=20,
        reasoning=3,
        credits=0.125,
        source="reported",
        cost_nano=1_234_567,
        first_token_ms=12,
        duration_ms=340,
        result="ok",
        code=None,
        losses=2,
        attempts=1,
    )
