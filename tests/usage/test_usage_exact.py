"""Ten thousand mixed requests: every row holds exactly what the upstream reported, on both stores."""

import asyncio
import signal
from pathlib import Path

import pytest

from dragoman.store import open_store
from dragoman.store.usage_rows import Span, UsageRow, UsageSum
from usage.asking import Question, ask_all, mixed
from usage.counted import CUT, LIMITED, MODELS, REFUSED, STUMBLES, counts_of
from usage.serving import rigged

COUNT = 10_000
EVER = Span(0, 2**62)
CLIENTS = ("curl", "claude-cli", "OpenAI/Python")


async def stored(url: str) -> tuple[tuple[UsageRow, ...], tuple[UsageSum, ...]]:
    store = await open_store(url)
    try:
        return await store.usage_rows(EVER), await store.usage_sums(EVER, "provider")
    finally:
        await store.close()


def result_of(question: Question) -> str:
    wrong = question.number % 20
    if wrong == REFUSED:
        return "bad_request"
    if wrong == LIMITED and question.spoken != "kiro":
        return "rate_limited"
    if wrong == CUT and question.stream and question.spoken != "kiro":
        return "truncated"
    return "ok"


def is_told(question: Question) -> bool:
    """Whether the upstream says what it has used: one that speaks Chat does so in a stream only if it is asked to."""
    if result_of(question) != "ok":
        return False
    unasked = question.asked == "chat" and question.stream and not question.wants_counts
    return not (unasked and question.spoken == "chat")


def check(question: Question, row: UsageRow) -> None:
    assert (row.client_protocol, row.requested_model) == (
        question.asked,
        f"{question.spoken}/{MODELS[question.spoken]}",
    )
    assert (row.provider, row.model, row.stream) == (question.spoken, MODELS[question.spoken], question.stream)
    assert (row.outcome, row.key, row.client) == (result_of(question), "environment", CLIENTS[question.number % 3])
    if row.outcome == "ok":
        again = question.number % 20 == STUMBLES and question.spoken != "kiro"
        assert (row.upstream_protocol, row.attempts) == (question.spoken, 2 if again else 1)
        assert row.duration_ms >= (row.ttft_ms or 0) >= 0
    counts = counts_of(question.number)
    if not is_told(question):
        assert row.usage_source in (None, "estimated")
        if row.outcome == "truncated" and question.spoken == "messages":  # which tell the input at the beginning
            assert (row.input_tokens, row.cache_read_tokens) == (
                counts.fresh + counts.cached + counts.written,
                counts.cached,
            )
        return
    assert row.usage_source == "reported"
    assert row.input_tokens == counts.fresh + counts.cached + counts.written
    assert (row.cache_read_tokens, row.output_tokens) == (counts.cached, counts.output)
    # Not every protocol tells everything.
    assert row.cache_write_tokens == (counts.written if question.spoken in ("messages", "kiro") else 0)
    assert row.reasoning_tokens == (counts.reasoning if question.spoken in ("chat", "responses") else 0)
    assert row.credits == (counts.credits if question.spoken == "kiro" else None)
    assert row.cost_nano_usd is not None
    assert row.cost_nano_usd > 0


@pytest.mark.slow
def test_ten_thousand_rows_are_what_the_upstreams_reported(store_url: str, tmp_path: Path) -> None:
    questions = list(mixed(COUNT))
    with rigged(tmp_path) as rig, rig.serve(store_url) as served:
        statuses = asyncio.run(ask_all(served.port, questions))
        served.end(signal.SIGINT)
        assert "Traceback" not in served.log
    assert len(statuses) == COUNT
    rows, sums = asyncio.run(stored(store_url))
    by_request = {row.request_id: row for row in rows}
    assert len(rows) == len(by_request) == COUNT
    for question in questions:
        check(question, by_request[question.id])
        refused = result_of(question) in ("bad_request", "rate_limited")
        assert (statuses[question.number] == 200) != refused
    for spoken in MODELS:
        mine = [question for question in questions if question.spoken == spoken]
        told = [counts_of(question.number) for question in mine if is_told(question)]
        untold = [by_request[question.id] for question in mine if not is_told(question)]
        parts = [part for part in sums if part.group == spoken]
        assert sum(part.requests for part in parts) == len(mine)
        assert sum(part.output_tokens for part in parts) == sum(one.output for one in told) + sum(
            row.output_tokens or 0 for row in untold
        )
        assert sum(part.cache_read_tokens for part in parts) == sum(one.cached for one in told) + sum(
            row.cache_read_tokens or 0 for row in untold
        )
        assert sum(part.counted for part in parts) == len(told) + sum(row.usage_source is not None for row in untold)
