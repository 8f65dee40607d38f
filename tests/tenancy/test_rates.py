"""Buckets of a minute: bursts, refill, debts, edited limits, and clocks that step."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.tenancy.rates import UNITS, change_limit, count_left, fill, find_wait_ms, make_bucket, take

LIMITS = st.integers(1, 10**15)
STEPS = st.lists(st.tuples(st.integers(-5_000, 120_000), st.integers(1, 200)), max_size=40)


def test_a_minutes_worth_passes_at_once_then_one_by_one() -> None:
    bucket = make_bucket(60, 0)
    for _ in range(60):
        assert find_wait_ms(bucket, 60, 1) == 0
        take(bucket, 1)
    assert find_wait_ms(bucket, 60, 1) == 1000
    fill(bucket, 60, 999)
    assert find_wait_ms(bucket, 60, 1) == 1
    fill(bucket, 60, 1000)
    assert find_wait_ms(bucket, 60, 1) == 0
    assert count_left(bucket) == 1


def test_a_request_larger_than_the_bucket_waits_for_a_full_one_and_leaves_a_debt() -> None:
    bucket = make_bucket(1000, 0)
    take(bucket, 1)
    assert find_wait_ms(bucket, 1000, 5000) == 60
    fill(bucket, 1000, 60)
    assert find_wait_ms(bucket, 1000, 5000) == 0
    take(bucket, 5000)
    assert count_left(bucket) == -4000
    assert find_wait_ms(bucket, 1000, 1) == 4 * 60_000 + 60


def test_a_level_beyond_a_full_bucket_is_cut_when_the_clock_or_the_limit_steps() -> None:
    bucket = make_bucket(60, 0)
    take(bucket, 60)
    fill(bucket, 60, 10**12)
    assert count_left(bucket) == 60
    fill(bucket, 10, 10**12)
    assert count_left(bucket) == 10
    fill(bucket, 60, 0)  # set back: nothing comes in, nothing is lost
    assert count_left(bucket) == 10
    fill(bucket, 60, 1000)
    assert count_left(bucket) == 11


def test_an_edited_limit_changes_nothing_of_what_was_taken() -> None:
    bucket = make_bucket(60, 0)
    take(bucket, 50)
    change_limit(bucket, 60, 100)
    assert count_left(bucket) == 50
    change_limit(bucket, 100, 55)
    assert count_left(bucket) == 5
    change_limit(bucket, 55, 10)
    assert find_wait_ms(bucket, 10, 10) == 60_000  # no longer than a full one takes
    take(bucket, 40)
    change_limit(bucket, 10, 5)
    assert count_left(bucket) == -40  # a debt stays
    change_limit(bucket, 5, 25)
    assert count_left(bucket) == -20


@given(LIMITS, STEPS)
def test_the_wait_is_exact(limit: int, steps: list[tuple[int, int]]) -> None:
    bucket, now = make_bucket(limit, 0), 0
    for step, amount in steps:
        now += step
        fill(bucket, limit, now)
        assert bucket.level <= limit * UNITS
        wait = find_wait_ms(bucket, limit, amount)
        if wait:
            fill(bucket, limit, now + wait - 1)
            assert find_wait_ms(bucket, limit, amount) == 1
            now += wait
            fill(bucket, limit, now)
        assert find_wait_ms(bucket, limit, amount) == 0
        take(bucket, amount)


@given(st.integers(1, 1000), st.lists(st.integers(0, 3000), min_size=1, max_size=200))
def test_no_more_passes_than_a_bucket_and_what_came_in(limit: int, pauses: list[int]) -> None:
    bucket, now, passed = make_bucket(limit, 0), 0, 0
    for pause in pauses:
        now += pause
        fill(bucket, limit, now)
        if find_wait_ms(bucket, limit, 1) == 0:
            take(bucket, 1)
            passed += 1
    assert passed <= limit + now * limit / 60_000
