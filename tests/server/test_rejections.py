"""Wrong keys are slowed down by address; the table is bounded, and the log is short."""

import asyncio
import logging

import pytest

from dragoman.server import rejections
from dragoman.server.rejections import FREE_FAILURES, INTERVAL_S, MAX_ADDRESSES, MAX_DELAY_S, AuthBackoff
from tables import each_row


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_failures_of_an_address_wait_for_nothing() -> None:
    backoff = AuthBackoff(Clock())
    assert [round(backoff.delay("10.0.0.1"), 6) for _ in range(FREE_FAILURES)] == [0.0] * FREE_FAILURES
    assert backoff.delay("10.0.0.1") == pytest.approx(INTERVAL_S)
    assert backoff.delay("10.0.0.2") == 0.0


def test_no_answer_waits_longer_than_the_most_however_many_come_at_once() -> None:
    backoff = AuthBackoff(Clock())
    assert max(backoff.delay("10.0.0.1") for _ in range(10_000)) == pytest.approx(MAX_DELAY_S)


def test_ten_thousand_failures_one_after_another_take_half_an_hour() -> None:
    clock = Clock()
    backoff = AuthBackoff(clock)
    for _ in range(10_000):
        clock.now += backoff.delay("10.0.0.1")
    assert clock.now - 1000.0 == pytest.approx((10_000 - FREE_FAILURES) * INTERVAL_S)


def test_an_address_that_was_quiet_begins_anew() -> None:
    clock = Clock()
    backoff = AuthBackoff(clock)
    for _ in range(10_000):
        backoff.delay("10.0.0.1")
    clock.now += MAX_DELAY_S + FREE_FAILURES * INTERVAL_S
    assert backoff.delay("10.0.0.1") == 0.0


def test_the_table_is_bounded() -> None:
    backoff = AuthBackoff(Clock())
    for number in range(MAX_ADDRESSES * 2):
        backoff.delay(str(number))
    assert len(backoff._due) == MAX_ADDRESSES


@each_row(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (rejections._source_of(one) == rejections._source_of(other)) is same


def test_many_failures_are_logged_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejections, "LOG_EVERY_S", 0.05)
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        backoff = AuthBackoff()
        for number in range(500):
            await backoff.reject(f"10.0.0.{number % 5}", "/v1/models", had_key=False)
        await asyncio.sleep(0.3)
        await backoff.reject("10.0.0.9", "/v1/models", had_key=False)
        await backoff.reject("10.0.0.9", "/v1/models", had_key=False)
        backoff.close()

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        "/v1/models: rejected a request from 10.0.0.0 without a valid API key; further ones are counted",
        "rejected 499 more requests without a valid API key, from 10.0.0.0, 10.0.0.1, 10.0.0.2 and 2 more",
        "/v1/models: rejected a request from 10.0.0.9 without a valid API key; further ones are counted",
        "rejected 1 more requests without a valid API key, from 10.0.0.9",
    ]
