"""What a request reserves: three times what its like have cost, or its worst case."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.store.meter import MAX_AMOUNT
from dragoman.tenancy.reservation import MIN_RESERVED, CostHistory, RequestSize, find_worst_case

SIZE = RequestSize(input_tokens=1000, input_price=3000, cache_write_price=3750, output_price=15_000)


def test_without_history_input_and_some_output_are_reserved() -> None:
    assert CostHistory().estimate("key", "model", SIZE) == 1000 * 3000 + 4096 * 15_000


def test_three_times_the_average_of_this_key_and_model_is_reserved() -> None:
    history = CostHistory()
    history.record("key", "model", 100_000_000)
    assert history.estimate("key", "model", SIZE) == 300_000_000
    history.record("key", "model", 200_000_000)
    assert history.estimate("key", "model", SIZE) == 315_000_000
    assert history.estimate("other", "model", SIZE) == CostHistory().estimate("key", "model", SIZE)


def test_a_cent_is_the_least() -> None:
    history = CostHistory()
    history.record("key", "model", 0)
    assert history.estimate("key", "model", SIZE) == MIN_RESERVED


def test_the_worst_case_is_dear_input_and_all_output() -> None:
    assert find_worst_case(SIZE) == 1000 * 3750 + 128_000 * 15_000
    assert find_worst_case(RequestSize(10, 1, 0, 2, request_price=5, max_tokens=7)) == 10 + 14 + 5


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 10**12)), max_size=50))
def test_no_more_histories_are_kept_than_allowed(costs: list[tuple[str, int]]) -> None:
    history = CostHistory(most=3)
    for key, cost in costs:
        history.record(key, "model", cost)
    last = list(dict.fromkeys(key for key, _ in reversed(costs)))
    unknown = CostHistory().estimate("a", "model", SIZE)
    for key in last[3:]:
        assert history.estimate(key, "model", SIZE) == unknown


@given(st.integers(0, 10**18), st.floats(0, 10**18), st.integers(0, 10**18))
def test_no_estimate_is_too_large_for_a_counter(tokens: int, price: float, most: int) -> None:
    size = RequestSize(tokens, price, price, price, max_tokens=most)
    assert 0 <= find_worst_case(size) <= MAX_AMOUNT
    assert 0 <= CostHistory().estimate("key", "model", size) <= MAX_AMOUNT
