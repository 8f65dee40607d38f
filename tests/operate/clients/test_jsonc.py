"""JSON with comments: read as its values, and changed without touching the rest."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.operate.clients.jsonc import NotJson, read_jsonc, set_members

LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


@given(VALUES)
def test_plain_json_is_read_as_it_is(value: object) -> None:
    text = msgspec.json.encode(value).decode()
    assert read_jsonc(text).value == value
    assert read_jsonc(msgspec.json.format(text, indent=4)).value == value


def test_comments_and_trailing_commas_are_skipped() -> None:
    assert read_jsonc('/* a */ {"a": [1, 2, // two\n], "b": "// no comment",} // end').value == {
        "a": [1, 2],
        "b": "// no comment",
    }


@pytest.mark.parametrize(("text", "line"), [("{", 1), ('{\n"a" 1}', 2), ('{"a": 1} x', 1), ("[1\n2]", 2), ("", 1)])
def test_what_is_not_json_is_named_with_its_line(text: str, line: int) -> None:
    with pytest.raises(NotJson, match=f"^line {line}: "):
        read_jsonc(text)


@given(
    st.dictionaries(st.text(max_size=3), LEAVES, max_size=4), st.dictionaries(st.text(max_size=3), LEAVES, max_size=3)
)
def test_members_are_set_and_the_others_stay(old: dict[str, object], new: dict[str, object]) -> None:
    text = msgspec.json.format(msgspec.json.encode(old), indent=2).decode()
    assert read_jsonc(set_members(text, new)).value == old | new
