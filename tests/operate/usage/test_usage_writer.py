"""The usage writer: what a row contains, and what is kept and dropped while the store fails."""

import asyncio
import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.config.settings import ProviderConfig
from dragoman.operate.prices import Pricing
from dragoman.operate.usage import usage_writer
from dragoman.operate.usage.usage_writer import UsageWriter, make_row
from dragoman.proxy.outcome import CLIENT_GONE, FailedAttempt, Outcome
from dragoman.store import Store, make_store, open_store
from dragoman.store.rollup import SumQuery
from dragoman.store.usage_rows import UsageSpan
from dragoman.translate.hub.usage import MAX_CREDITS, Usage, UsageSource

EVER = UsageSpan(0, 2**62)
PRICING = Pricing({"up": ProviderConfig(name="up", kind="anthropic")})
USAGE = Usage(input=1000, output=100, cache_read=200, cache_write=300, reasoning=40)


def outcome(number: int = 0, usage: Usage | None = USAGE) -> Outcome:
    return Outcome(
        request_id=f"req_{number}",
        started_at=1_800_000_000.5 + number,
        key="key_1",
        client="curl",
        client_protocol="chat",
        upstream_protocol="messages",
        requested_model="claude",
        provider="up",
        model="claude-sonnet-4-5",
        usage=usage,
        ttft_s=0.0124,
        duration_s=1.5,
        losses=2,
        attempts=1,
    )


async def list_stored_ids(store: Store) -> list[str]:
    return [row.request_id for row in await store.read_usage_rows(EVER)]


async def wait_for_rows(store: Store, count: int) -> None:
    for _ in range(1000):
        if len(await list_stored_ids(store)) >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the rows did not come")


def test_a_row_contains_the_outcome_of_a_request() -> None:
    row = make_row(outcome(), PRICING, 1)
    assert (row.time_ms, row.request_id, row.key, row.client) == (1_800_000_000_500, "req_0", "key_1", "curl")
    assert (row.client_protocol, row.upstream_protocol, row.provider, row.model) == (
        "chat",
        "messages",
        "up",
        "claude-sonnet-4-5",
    )
    assert (
        row.input_tokens,
        row.cache_read_tokens,
        row.cache_write_tokens,
        row.output_tokens,
        row.reasoning_tokens,
    ) == (1000, 200, 300, 100, 40)
    assert (row.usage_source, row.cost_nano_usd) == ("reported", (500 * 3_000 + 200 * 300 + 300 * 3_750 + 100 * 15_000))
    assert (row.ttft_ms, row.duration_ms, row.outcome, row.losses, row.attempts) == (12, 1500, "ok", 2, 1)


def test_a_row_has_the_requested_model_and_how_the_request_failed() -> None:
    row = make_row(replace(outcome(), stream=True, outcome="lost", error_code="gone", losses=3, attempts=4), PRICING, 1)
    assert (row.requested_model, row.stream) == ("claude", True)
    assert (row.outcome, row.error_code, row.losses, row.attempts) == ("lost", "gone", 3, 4)


def test_unreported_values_are_empty_and_never_zero() -> None:
    row = make_row(
        Outcome(request_id="req_1", started_at=1.0, client_protocol="chat", outcome=CLIENT_GONE),
        PRICING,
        1,
    )
    assert (row.input_tokens, row.output_tokens, row.usage_source, row.cost_nano_usd, row.credits) == (
        None,
        None,
        None,
        None,
        None,
    )
    assert (row.ttft_ms, row.attempts, row.outcome) == (None, 0, "client_gone")


def test_a_request_that_all_targets_rejected_is_counted_with_the_last_one() -> None:
    steps = (FailedAttempt("a/one", "overloaded"), FailedAttempt("b/vendor/two", "rate_limited"))
    row = make_row(
        Outcome(
            request_id="req_1",
            started_at=1.0,
            client_protocol="chat",
            outcome="rate_limited",
            failed_attempts=steps,
            attempts=2,
        ),
        PRICING,
        1,
    )
    assert (row.provider, row.model, row.attempts) == ("b", "vendor/two", 2)


def test_rows_arrive_shortly_after_they_are_observed(store_url: str) -> None:
    async def scenario() -> None:
        store = await open_store(store_url)
        writer = UsageWriter(store, PRICING)
        writer.start()
        for number in range(3):
            writer.observe(outcome(number))
        await wait_for_rows(store, 3)
        writer.observe(outcome(3))
        await writer.stop()
        assert await list_stored_ids(store) == [f"req_{number}" for number in range(4)]
        assert (writer.dropped, writer.pending) == (0, 0)
        await store.close()

    asyncio.run(scenario())


def test_a_failing_store_loses_only_rows_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(usage_writer, "MAX_PENDING", 1200)
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        in_the_way = tmp_path / "file"
        in_the_way.touch()
        store = make_store(f"sqlite:///{in_the_way}/dragoman.db")
        writer = UsageWriter(store, PRICING)
        writer.start()
        for number in range(700):
            writer.observe(outcome(number))
        await wait_for_messages(1)
        for number in range(700, 1250):
            writer.observe(outcome(number))
        assert (writer.pending, writer.dropped) == (1200, 50)
        in_the_way.unlink()
        await wait_for_messages(2)
        await writer.stop()
        assert await list_stored_ids(store) == [f"req_{number}" for number in range(1200)]
        await store.close()

    def list_messages() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == usage_writer.__name__]

    async def wait_for_messages(count: int) -> None:
        async with asyncio.timeout(60):
            while len(list_messages()) < count:  # noqa: ASYNC110 - a log raises no event
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
    failing, stored = list_messages()
    assert "cannot be stored" in failing
    assert "50 rows were dropped" in stored


def test_stop_does_not_wait_forever_for_a_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        (tmp_path / "file").touch()
        writer = UsageWriter(make_store(f"sqlite:///{tmp_path}/file/dragoman.db"), PRICING)
        writer.start()
        writer.observe(outcome())
        async with asyncio.timeout(usage_writer.STOP_S + 60):
            await writer.stop()

    asyncio.run(scenario())
    assert "1 rows of usage are lost" in caplog.text


anything = st.text(max_size=400)
count = st.integers(-(10**30), 10**30)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(anything, anything, anything, count, st.floats(), st.sampled_from(UsageSource))
def test_no_unusual_outcome_prevents_others_from_being_stored(
    store_url: str, id: str, client: str, model: str, tokens: int, credits: float, source: UsageSource
) -> None:
    usage = Usage(input=tokens, output=tokens, cache_read=tokens, credits=credits, source=source)
    odd = replace(outcome(), request_id=id, client=client, requested_model=model, error_code=model, usage=usage)

    async def scenario() -> None:
        store = await open_store(store_url)
        before = len(await list_stored_ids(store))
        await store.append_usage([make_row(odd, PRICING, before), make_row(outcome(), PRICING, before + 1)])
        assert len(await list_stored_ids(store)) == before + 2
        await store.read_usage_sums(SumQuery(EVER.since_ms, EVER.until_ms, by="model"))
        await store.close()

    asyncio.run(scenario())


def test_absurd_credits_can_still_be_summed(store_url: str) -> None:
    extreme = replace(outcome(), usage=Usage(input=1, credits=1.7e308))

    async def scenario() -> None:
        store = await open_store(store_url)
        await store.append_usage([make_row(extreme, PRICING, number) for number in range(2)])
        (together,) = await store.read_usage_sums(SumQuery(EVER.since_ms, EVER.until_ms, by="all"))
        assert together.credits == 2 * MAX_CREDITS
        await store.close()

    asyncio.run(scenario())
