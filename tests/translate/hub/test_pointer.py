"""Keys as they stand in JSON pointers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.hub.request import escape_key, split_pointer, unescape_key


@given(st.text(alphabet="~/01a", max_size=12))
@settings(max_examples=100)
def test_any_key_comes_back_as_it_was(key: str) -> None:
    assert "/" not in escape_key(key)
    assert unescape_key(escape_key(key)) == key
    assert split_pointer(f"/{escape_key(key)}/x") == [key, "x"]


@pytest.mark.parametrize(("token", "key"), [("~01", "~1"), ("~1~0", "/~"), ("a~1b", "a/b")])
def test_a_token_is_read_according_to_the_standard(token: str, key: str) -> None:
    assert unescape_key(token) == key
    assert escape_key(key) == token


def test_the_root_has_no_keys() -> None:
    assert split_pointer("") == []
