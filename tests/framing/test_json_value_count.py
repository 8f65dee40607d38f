"""Values are counted as a parser would find them, whatever stands in strings and wherever windows are cut."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.framing import jsonscan
from dragoman.framing.jsonscan import exceeds_value_count

Json = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | st.text('",[{\\x\n', max_size=9),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text('",[{\\xy', max_size=4), inner, max_size=6),
    max_leaves=40,
)


def separators(value: object) -> int:
    """How many commas and opening brackets the value is written with."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if held is None:
        return 0
    return 1 + max(0, len(held) - 1) + sum(map(separators, held))


@given(Json, st.integers(1, 30), st.integers(8, 64))
def test_it_counts_what_stands_outside_strings(value: object, most: int, window: int) -> None:
    json = msgspec.json.encode(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonscan, "WINDOW", window)
        assert exceeds_value_count(json, most) == (len(json) > 2 * most and 1 + separators(value) > most)


def test_a_long_string_of_separators_is_one_value() -> None:
    assert not exceeds_value_count(msgspec.json.encode({"a": ',[{"' * 1_000_000}), 100)


@pytest.mark.parametrize("json", [b'"' + b"," * 3_000_000, b'"\\' * 1_500_000, b'["' * 1_500_000, b"[" * 3_000_000])
def test_what_is_no_json_ends_too(json: bytes) -> None:
    began = time.process_time()
    exceeds_value_count(json, 1000)
    assert time.process_time() - began < 2.0
