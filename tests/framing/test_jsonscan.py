"""Objects in text: found whole wherever they stand, however they are cut, and nothing else is."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.framing.jsonscan import CUT, ObjectScanner, compact, validate_object
from dragoman.framing.sse import Broken
from laws import assert_any_cut_agrees, assert_bounded, assert_linear, assert_total, random_cuts, run

ODD = (
    'event{"content":"é日😀 } { \\" \\\\"} junk } ] {x} { "a" : {"b":{}} }\r\n[{"c":"\\u007b"},{}] data: {"d":1}\n'
).encode()
ODD_OBJECTS = [
    '{"content":"é日😀 } { \\" \\\\"}'.encode(),
    b'{ "a" : {"b":{}} }',
    b'{"c":"\\u007b"}',
    b"{}",
    b'{"d":1}',
]


def scan(data: bytes) -> list[bytes | Broken]:
    return run(ObjectScanner(), [data])


def test_objects_are_found_between_anything() -> None:
    assert scan(ODD) == ODD_OBJECTS


def test_braces_quotes_and_escapes_within_strings_do_not_count() -> None:
    for text in ["}", "{", '"', "\\", '\\"', "}]", "\\\\", '{"a":"}']:
        body = json.dumps({"k": text}).encode()
        assert scan(b"x" + body + b"y" + body) == [body, body]


def test_a_brace_that_opens_no_object_is_left_aside() -> None:
    assert scan(b'{ {"a":1}') == [b'{"a":1}']
    assert scan(b'{1} {[ {"a":1}') == [b'{"a":1}']
    assert scan(b"no braces") == []


def test_an_incomplete_object_is_reported() -> None:
    assert scan(b'{"a":1}{"b":') == [b'{"a":1}', Broken(CUT)]
    assert scan(b"{") == [Broken(CUT)]


def test_an_object_over_the_limit_breaks_the_scan_however_it_is_cut() -> None:
    data = b'{"a":1}{"b":"' + b"x" * 50 + b'"}{"c":1}'
    assert_any_cut_agrees(lambda: ObjectScanner(40), data)
    assert run(ObjectScanner(40), [data]) == [b'{"a":1}', Broken("an object is larger than 40 bytes")]


def test_any_cut_gives_the_same_objects() -> None:
    assert_any_cut_agrees(ObjectScanner, ODD)
    assert_any_cut_agrees(ObjectScanner, ODD + b'{"cut":"')


@settings(max_examples=100)
@given(random_cuts(ODD))
def test_random_cuts_give_the_same_objects(pieces: list[bytes]) -> None:
    assert run(ObjectScanner(), pieces) == ODD_OBJECTS


@settings(max_examples=100)
@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.dictionaries(st.text(), st.text()))))
def test_any_object_is_found_whole(value: dict[str, object]) -> None:
    for ascii_only in (True, False):
        body = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
        assert scan(b"<<" + body + b">>") == [body]


@settings(max_examples=100)
@given(st.binary(max_size=100))
def test_any_bytes_are_taken(junk: bytes) -> None:
    assert_total(ObjectScanner, junk)
    assert_total(ObjectScanner, b'{"a":' + junk)


def test_scanning_costs_linear_time_and_bounded_memory() -> None:
    assert_linear(ObjectScanner, b'{"a":"b"}' * 20, 500)
    assert_linear(ObjectScanner, b'{"a":"', 5_000)
    assert_linear(ObjectScanner, b"{ {", 5_000)
    assert_bounded(lambda: ObjectScanner(1_000_000), [b'{"a":"' + b"x" * 1000] * 5_000, 4_000_000)


@pytest.mark.parametrize(
    "text", ["{}", ' {"a": [1, 2.5, null]}\n', '{"a":"é😀"}', '{"a":123456789012345678901234567890}']
)
def test_a_whole_object_is_itself(text: str) -> None:
    assert validate_object(text) == text


@pytest.mark.parametrize(
    "text", ["", "{", '{"a":1', '{"a":1}}', '{"a":1}{', "[1]", "1", '"x"', "null", "\ud800", "[" * 9999]
)
def test_anything_else_is_no_whole_object(text: str) -> None:
    assert validate_object(text) is None


def test_lone_surrogates_are_replaced_in_a_whole_object() -> None:
    assert validate_object('{"a":"\\ud83d"}') == '{"a":"\\ufffd"}'


def test_compact_json_differs_only_where_the_values_do() -> None:
    assert compact('{ "a" : [1,\n 2] }') == compact('{"a":[1,2]}') != compact('{"a":[1,3]}')
