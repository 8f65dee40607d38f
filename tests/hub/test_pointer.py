"""Keys as they stand in JSON pointers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.hub.pointer import key_of, keys_of, token_of


@given(st.text(alphabet="~/01a", max_size=12))
@settings(max_examples=100)
def test_any_key_comes_back_as_it_was(key: str) -> None:
    assert "/" not in token_of(key)
    assert key_of(token_of(key)) == key
    assert keys_of(f"/{token_of(key)}/x") == [key, "x"]


@pytest.mark.parametrize(("token", "key"), [("~01", "~1"), ("~1~0", "/~"), ("a~1b", "a/b")])
def test_a_token_is_read_as_the_standard_says(token: str, key: str) -> None:
    assert key_of(token) == key
    assert token_of(key) == token


def test_the_root_has_no_keys() -> None:
    assert keys_of("") == []
