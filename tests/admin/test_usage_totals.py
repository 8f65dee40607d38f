"""Totals from the store's sums."""

from datetime import date, datetime
from decimal import Decimal

from dragoman.admin.usage_totals import Total, add_totals, as_record, fill_days, group_totals
from dragoman.store.usage_rows import SLOT_MS, UsageSpan, UsageSum


def usage(group: str, day: int, tokens: int, cost: int = 0) -> UsageSum:
    slot = int(datetime(2026, 11, day, 12).timestamp() * 1000) // SLOT_MS
    return UsageSum(
        group=group,
        slot=slot,
        requests=1,
        failed=0,
        client_gone=0,
        input_tokens=tokens,
        cache_read_tokens=1,
        cache_write_tokens=0,
        output_tokens=2,
        reasoning_tokens=0,
        credits=0.0,
        cost_nano_usd=cost,
        priced=1 if cost else 0,
        counted=1,
        derived=0,
        estimated=0,
        estimated_tokens=0,
        duration_ms=1,
        web_searches=3,
        web_fetches=0,
    )


def test_days_without_usage_are_part_of_the_report() -> None:
    totals = group_totals([usage("all", 3, 10), usage("all", 1, 10), usage("all", 3, 5)], "day", {})
    assert [(total.name, total.requests) for total in totals] == [
        ("2026-11-01", 1),
        ("2026-11-02", 0),
        ("2026-11-03", 2),
    ]
    assert fill_days([]) == []


def test_other_groups_are_sorted_by_size_and_keys_have_their_names() -> None:
    totals = group_totals([usage("key_1", 1, 10), usage("key_2", 1, 20), usage("", 1, 1)], "key", {"key_1": "laptop"})
    assert [total.label for total in totals] == ["key_2", "laptop (key_1)", "(none)"]


def test_what_is_derived_from_the_counts() -> None:
    whole = add_totals(group_totals([usage("m", 1, 10, cost=2_000_000_000), usage("m", 2, 10)], "model", {}))
    assert (whole.tokens, whole.fresh_input_tokens, whole.unpriced) == (24, 18, 1)
    assert whole.dollars == Decimal(2)
    assert whole.days == {date(2026, 11, 1): 12, date(2026, 11, 2): 12}


def test_a_record_has_the_names_of_the_store_and_no_cost_without_a_price() -> None:
    record = as_record([Total("m", requests=1)], "model", UsageSpan(0, 1000))
    assert record["by"] == "model"
    [row] = record["rows"] if isinstance(record["rows"], list) else []
    assert (row["model"], row["requests"], row["cost_nano_usd"], row["cost_usd"]) == ("m", 1, None, None)
