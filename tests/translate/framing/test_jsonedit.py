"""Values are cut, replaced and added in JSON text, and every other byte stays."""

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.translate.framing.jsonedit import EVERY, Change, Path, Put, Step, edit, list_elements
from wire_json import Json

KEYS = st.sampled_from(["a", "b", 'q"', "é", "\\", "\n", ""])
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=25,
)
TEXTS = st.builds(
    lambda value, indent, ascii: json.dumps(value, indent=indent, ensure_ascii=ascii).encode(),
    VALUES,
    st.sampled_from([None, 0, 2, "\t"]),
    st.booleans(),
)


def places(value: Json, at: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*at, key)
            yield from places(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield (*at, index)
            yield from places(item, (*at, index))


def apply(value: Json, path: Path, change: Change) -> None:
    """The same change of the decoded value, for paths without EVERY."""
    *above, last = path
    holder = value
    for step in above:
        assert isinstance(step, str | int)
        holder = holder[step]
    assert isinstance(last, str | int)
    if change is None:
        del holder[last]
    else:
        holder[last] = json.loads(change.value if isinstance(change, Put) else change)


def differs_in_one_span(old: bytes, new: bytes) -> bool:
    """Whether the new text is the old one with one span replaced by at most 40 bytes."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    tail = 0
    while tail < min(len(old), len(new)) - same and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return len(new) - same - tail <= 40


@given(st.data())
def test_one_change_is_that_of_the_decoded_value_and_no_other_byte_differs(data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    value: Json = json.loads(text)
    found = list(places(value))
    if not found:
        return
    path = data.draw(st.sampled_from(found))
    change: Change = data.draw(st.sampled_from([None, b'{"new": 1}', Put(b"[2]")]))
    changed = edit(text, [(path, change)])
    apply(value, path, change)
    assert json.loads(changed) == value
    assert differs_in_one_span(text, changed)


@given(st.data())
def test_any_number_of_cuts_leaves_json(data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    value: Json = json.loads(text)
    found = list(places(value))
    paths = data.draw(st.lists(st.sampled_from(found), unique=True)) if found else []
    changed = json.loads(edit(text, [(path, None) for path in paths]))
    for path in sorted(paths, key=lambda path: [(type(step) is int, step) for step in path], reverse=True):
        if not any(path[: len(above)] == above for above in paths if above != path):
            apply(value, path, None)
    assert changed == value


@pytest.mark.parametrize(
    ("text", "path", "change", "expected"),
    [
        (b'{"a": 1 , "b":2}', ("a",), None, b'{"b":2}'),
        (b'{ "a": 1 , "b":2 }', ("b",), None, b'{ "a": 1  }'),
        (b'{"a":1}', ("a",), None, b"{}"),
        (b'{"a":1,"b":2,"a":3}', ("a",), None, b'{"b":2}'),
        (b'{"\\u0061":1,"b":2}', ("a",), None, b'{"b":2}'),
        (b'[{"x":1},{"y":2},{"x":3,"y":4}]', (EVERY, "x"), None, b'[{},{"y":2},{"y":4}]'),
        (b'[{"x":1},{"x":2}]', (1, "x"), b"null", b'[{"x":1},{"x":null}]'),
        (b'{"a":{"b":1}}', ("a", "c"), Put(b"2"), b'{"a":{"b":1,"c":2}}'),
        (b'{"a":{}}', ("a", "c"), Put(b"2"), b'{"a":{"c":2}}'),
        (b'{"a":{ }}', ("a", "c"), Put(b"2"), b'{"a":{ "c":2}}'),
        (b'{"a":1}', ("b", "c"), Put(b"2"), b'{"a":1}'),
        (b'{"a":1}', ("b",), b"2", b'{"a":1}'),
        (b'{"a":"{\\"b\\":1}","b":[",]"]}', ("b",), None, b'{"a":"{\\"b\\":1}"}'),
    ],
)
def test_a_change_by_path(text: bytes, path: tuple[Step, ...], change: Change, expected: bytes) -> None:
    assert edit(text, [(path, change)]) == expected


def test_what_is_below_a_cut_value_does_not_count() -> None:
    text = b'{"a":{"b":1},"c":2}'
    assert edit(text, [(("a", "b"), b"3"), (("a",), None)]) == b'{"c":2}'


def test_a_member_is_renamed_by_a_cut_and_a_put() -> None:
    assert edit(b'{"x":1,"a":7}', [(("a",), None), (("b",), Put(b"7"))]) == b'{"x":1,"b":7}'
    assert edit(b'{"a":7}', [(("a",), None), (("b",), Put(b"7"))]) == b'{"b":7}'


def test_the_elements_of_a_list_are_found_as_they_stand() -> None:
    assert list_elements(b'{"m":[ {"a": 1}, 2.5 ,"x,]" ],"n":[3]}', ("m",)) == [b'{"a": 1}', b"2.5", b'"x,]"']
    assert list_elements(b'{"m":{"a":1}}', ("m",)) == []


@pytest.mark.parametrize("text", [b"", b"{", b'{"a"}', b'{"a":}', b'{"a":1 "b":2}', b"[1]]", b'{"a":1}x'])
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="byte"):
        edit(text, [(("a", "b"), None), ((0,), None)])


@pytest.mark.rest
def test_ten_thousand_levels_and_four_megabytes_take_linear_time() -> None:
    deep = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
    assert edit(deep, [(("a",) * 10_000, b"2")]) == deep.replace(b"1", b"2")
    assert edit(deep, [(("a",), None)]) == b"{}"
    many = b'{"m":[' + b",".join([b'{"k":[1,{"x":"y"}],"z":"' + b"t" * 60 + b'"}'] * 50_000) + b"]}"
    assert len(many) > 4_000_000
    began = time.process_time()
    changed = edit(many, [(("m", EVERY, "k"), None)])
    assert time.process_time() - began < 10.0  # about one second
    assert len(changed) == len(many) - 50_000 * len(b'"k":[1,{"x":"y"}],')
