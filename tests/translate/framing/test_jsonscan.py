"""Scans of JSON: objects found in text however they are cut, values counted, and one value replaced in a body."""

import json
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.framing import jsonscan
from dragoman.translate.framing.jsonscan import (
    CUT,
    ObjectScanner,
    compact,
    exceeds_value_count,
    find_repeated_key,
    is_cut_object,
    replace_model,
    replace_value,
    validate_object,
)
from dragoman.translate.framing.sse import Broken
from laws import assert_any_cut_agrees, assert_bounded, assert_linear, assert_total, random_cuts, run
from tables import each_row

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


@each_row("text", ["", "{", '{"a":1', '{"a":1}}', '{"a":1}{', "[1]", "1", '"x"', "null", "\ud800", "[" * 9999])
def test_anything_else_is_no_whole_object(text: str) -> None:
    assert validate_object(text) is None


def test_lone_surrogates_are_replaced_in_a_whole_object() -> None:
    assert validate_object('{"a":"\\ud83d"}') == '{"a":"\\ufffd"}'


def test_compact_json_differs_only_where_the_values_do() -> None:
    assert compact('{ "a" : [1,\n 2] }') == compact('{"a":[1,2]}') != compact('{"a":[1,3]}')


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


NEW = b'"new/model"'


@each_row(
    ("before", "after"),
    [
        (b'{"model":"a"}', b'{"model":"new/model"}'),
        (b' \n{ "model" :\t"a" ,\r\n"x":1 }\n ', b' \n{ "model" :\t"new/model" ,\r\n"x":1 }\n '),
        (b'{"x":{"model":"in"},"model":"a"}', b'{"x":{"model":"in"},"model":"new/model"}'),
        (b'{"x":[{"model":"in"}],"model":"a"}', b'{"x":[{"model":"in"}],"model":"new/model"}'),
        (b'{"x":"\\"model\\":\\"in\\"","model":"a"}', b'{"x":"\\"model\\":\\"in\\"","model":"new/model"}'),
        (b'{"x":"}],{[\\\\","model":"a"}', b'{"x":"}],{[\\\\","model":"new/model"}'),
        (b'{"x":"\\\\\\"","model":"a"}', b'{"x":"\\\\\\"","model":"new/model"}'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"new/model"}'),
        (b'{"model":"a\\"},{\\\\"}', b'{"model":"new/model"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"new/model","model":"new/model"}'),
        (b'{"model":1,"model":12,"model":1}', b'{"model":"new/model","model":"new/model","model":"new/model"}'),
        (b'{"model":{"a":[1,2]},"b":-1.5e+3}', b'{"model":"new/model","b":-1.5e+3}'),
        (b'{"model":null,"a":true,"b":false}', b'{"model":"new/model","a":true,"b":false}'),
        (b'{"a":1.0,"b":1e2,"a":[ ],"model" : "x"}', b'{"a":1.0,"b":1e2,"a":[ ],"model" : "new/model"}'),
        ('{"é":"😀","model":"ü"}'.encode(), '{"é":"😀","model":"new/model"}'.encode()),
        (b'{"":"","\\"":"model","model":""}', b'{"":"","\\"":"model","model":"new/model"}'),
        (b'{"model":"a","x":"cut \\ud83d"}', b'{"model":"new/model","x":"cut \\ud83d"}'),
        (b'{"model":"a","x":"\xff"}', b'{"model":"new/model","x":"\xff"}'),
    ],
)
def test_one_value_is_replaced_and_every_other_byte_kept(before: bytes, after: bytes) -> None:
    assert replace_value(before, "model", NEW) == after


# Names, values and texts that look like the key, or hide it.
LOOKALIKES = st.sampled_from(["model", "models", '"model"', '"model', 'model"', "\\", ":", "m", "é", ""])
PARTS = st.recursive(
    st.none() | st.booleans() | LOOKALIKES | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LOOKALIKES, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(LOOKALIKES, PARTS, max_size=4), LOOKALIKES, st.booleans())
@settings(max_examples=100)
def test_the_model_of_a_body_is_replaced_as_any_value_is(fields: dict[str, object], model: str, escaped: bool) -> None:
    body = msgspec.json.encode({**fields, "model": model})
    if escaped:
        body = body.replace(b'"model":', b'"mod\\u0065l" :', 1)
    assert replace_model(body, "new/model") == replace_value(body, "model", NEW)


def test_without_the_key_the_body_is_untouched() -> None:
    for body in (b"{}", b" { } ", b'{"models":"a","x":{"model":1}}', b'{"x":"model"}'):
        assert replace_value(body, "model", NEW) == body


@each_row(
    "bad",
    [
        *(b"", b" ", b"[]", b"1", b'"model"', b"null", b"{", b'{"model"', b'{"model":', b'{"model":"a"'),
        *(b'{"model":"a",}', b'{"model":"a"}}', b'{"model":"a"}x', b'{"model":"a" "b":1}', b"{'model':1}"),
        *(b'{"model":"a}', b'{"a":tru,"model":1}', b"{model:1}", b'{"model":"a\nb"}', b'{"model":01}'),
        *(b'{"x":[1,],"model":1}', b'{"x":[},"model":1}', b"\xff"),
    ],
)
def test_bad_json_is_a_value_error(bad: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace_value(bad, "model", NEW)


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000])
def test_a_depth_bomb_is_a_value_error_and_no_crash(deep: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace_value(b'{"x":' + deep + b',"model":"a"}', "model", NEW)
    with pytest.raises(ValueError, match=r"."):
        replace_value(b'{"s":"\\ud83d","x":' + deep + b',"model":"a"}', "model", NEW)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=8)
    | st.sampled_from(['"model":', '\\"}{][,']),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("model"), inner, max_size=3)
    ),
    max_leaves=10,
)
OBJECT = st.dictionaries(st.text(max_size=6) | st.sampled_from(["model", "stream", '"', "\\"]), JSON, max_size=6)


@given(OBJECT, st.sampled_from([None, 1]))
@settings(max_examples=100, deadline=None)
def test_the_replaced_body_decodes_to_the_object_with_that_value(fields: dict[str, object], indent: int | None) -> None:
    body = msgspec.json.encode(fields)
    if indent:
        body = msgspec.json.format(body, indent=indent)
    expected = {**fields, "model": "new/model"} if "model" in fields else fields
    assert msgspec.json.decode(replace_value(body, "model", NEW)) == expected


def test_a_large_body_is_spliced_at_c_speed() -> None:
    body = b'{"model":"a","messages":[%b{"t":"%b"}]}' % (b'{"r":"u","c":["x\\"{"]},' * 100_000, b"A" * 8_000_000)
    start = time.process_time()
    assert len(replace_value(body, "model", NEW)) == len(body) + len(NEW) - 3
    assert time.process_time() - start < 0.5


def test_every_beginning_of_an_object_is_known_as_one() -> None:
    whole = '{"a": [1, -2.5e-3, true, null], "é": {"b": "\\u00e9\\ud83d\\ude00 \\"}{"}}'
    assert json.loads(whole)
    assert [end for end in range(1, len(whole)) if not is_cut_object(whole[:end])] == []


def test_what_no_more_text_can_complete_is_no_beginning_of_an_object() -> None:
    for text in ('{"a":1}', '{"a":1}{', '{"a":1{', '{"a":"x{"b', "[1", "1", '{"a":1}}', "{" * 5000):
        assert not is_cut_object(text), text


@pytest.mark.parametrize(
    ("body", "repeated"),
    [
        (b'{"a": 1, "b": {"a": 2}}', None),
        (b'{"a": 1, "\\u0061": 2}', "a"),
        (b' {"a": {"b": {"c": 1, "d": [], "c": 2}}}', "c"),
        (b'{"a": [{"b": 1, "b": 2}]}', None),
    ],
)
def test_a_key_that_an_object_has_twice_is_found(body: bytes, repeated: str | None) -> None:
    assert find_repeated_key(body) == repeated
