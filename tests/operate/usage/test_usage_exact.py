"""Mixed requests of every pair of protocols: every row holds exactly what the upstream reported, on both stores."""

import asyncio
import signal
from pathlib import Path

import pytest

from dragoman.store import open_store
from dragoman.store.rollup import SumQuery
from dragoman.store.usage_rows import UsageRow, UsageSum
from operate.usage.client_requests import NumberedRequest, mix_requests, send_all
from operate.usage.counting_upstreams import CUT, LIMITED, MODELS, REFUSED, STUMBLES, counts_of
from operate.usage.gateway_process import start_upstreams
from store.rows import EVER

CLIENTS = ("curl", "claude-cli", "OpenAI/Python")


async def read_stored(url: str) -> tuple[tuple[UsageRow, ...], tuple[UsageSum, ...]]:
    store = await open_store(url)
    try:
        return await store.read_usage_rows(EVER), await store.read_usage_sums(
            SumQuery(EVER.since_ms, EVER.until_ms, by="provider")
        )
    finally:
        await store.close()


def result_of(request: NumberedRequest) -> str:
    wrong = request.number % 20
    if wrong == REFUSED:
        return "bad_request"
    if wrong == LIMITED and request.upstream_protocol != "kiro":
        return "rate_limited"
    if wrong == CUT and request.stream and request.upstream_protocol != "kiro":
        return "truncated"
    return "ok"


def reports_usage(request: NumberedRequest) -> bool:
    """Whether the upstream reports usage: a Chat stream does so only if the request says so."""
    if result_of(request) != "ok":
        return False
    unrequested = request.client_protocol == "chat" and request.stream and not request.requests_usage
    return not (unrequested and request.upstream_protocol == "chat")


def check(request: NumberedRequest, row: UsageRow) -> None:
    assert (row.client_protocol, row.requested_model) == (
        request.client_protocol,
        f"{request.upstream_protocol}/{MODELS[request.upstream_protocol]}",
    )
    assert (row.provider, row.model, row.stream) == (
        request.upstream_protocol,
        MODELS[request.upstream_protocol],
        request.stream,
    )
    assert (row.outcome, row.key, row.client) == (result_of(request), "environment", CLIENTS[request.number % 3])
    if row.outcome == "ok":
        again = request.number % 20 == STUMBLES and request.upstream_protocol != "kiro"
        assert (row.upstream_protocol, row.attempts) == (request.upstream_protocol, 2 if again else 1)
        assert row.duration_ms >= (row.ttft_ms or 0) >= 0
    counts = counts_of(request.number)
    if not reports_usage(request):
        assert row.usage_source in (None, "estimated")
        if (
            row.outcome == "truncated" and request.upstream_protocol == "messages"
        ):  # which reports the input at the beginning
            assert (row.input_tokens, row.cache_read_tokens) == (counts.input, counts.cached)
        return
    assert row.usage_source == "reported"
    assert row.input_tokens == counts.input
    assert (row.cache_read_tokens, row.output_tokens) == (counts.cached, counts.output)
    assert row.cache_write_tokens == counts.written
    assert row.reasoning_tokens == (0 if request.upstream_protocol == "kiro" else counts.reasoning)
    assert row.credits == (counts.credits if request.upstream_protocol == "kiro" else None)
    assert row.cost_nano_usd is not None
    assert row.cost_nano_usd > 0


# The mix repeats after 120 requests. The many of SQLite show that none is lost; the stores share what counts them.
@pytest.mark.parametrize(
    ("store_url", "count"),
    [
        ("sqlite", 120),
        pytest.param("sqlite", 10_000, marks=pytest.mark.rest),
        pytest.param("postgresql", 2_400, marks=pytest.mark.rest),
    ],
    indirect=["store_url"],
)
def test_all_rows_match_what_the_upstreams_reported(store_url: str, count: int, tmp_path: Path) -> None:
    requests = list(mix_requests(count))
    with start_upstreams(tmp_path) as rig, rig.serve(store_url) as served:
        statuses = asyncio.run(send_all(served.port, requests))
        served.end(signal.SIGINT)
    assert len(statuses) == count
    rows, sums = asyncio.run(read_stored(store_url))
    by_request = {row.client_request_id: row for row in rows}
    assert len(rows) == len(by_request) == count
    for request in requests:
        check(request, by_request[request.id])
        refused = result_of(request) in ("bad_request", "rate_limited")
        assert (statuses[request.number] == 200) != refused
    for upstream_protocol in MODELS:
        mine = [request for request in requests if request.upstream_protocol == upstream_protocol]
        reported = [counts_of(request.number) for request in mine if reports_usage(request)]
        unreported = [by_request[request.id] for request in mine if not reports_usage(request)]
        parts = [part for part in sums if part.group == upstream_protocol]
        assert sum(part.requests for part in parts) == len(mine)
        assert sum(part.output_tokens for part in parts) == sum(one.output for one in reported) + sum(
            row.output_tokens or 0 for row in unreported
        )
        assert sum(part.cache_read_tokens for part in parts) == sum(one.cached for one in reported) + sum(
            row.cache_read_tokens or 0 for row in unreported
        )
        assert sum(part.counted for part in parts) == len(reported) + sum(
            row.usage_source is not None for row in unreported
        )
