"""One top-level value replaced: every other byte is kept, whatever stands in strings and nested objects."""

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.framing.jsonspan import replace_string, replace_value

NEW = b'"new/model"'


@pytest.mark.parametrize(
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
def test_a_string_known_to_be_there_is_replaced_as_any_value_is(
    fields: dict[str, object], model: str, escaped: bool
) -> None:
    body = msgspec.json.encode({**fields, "model": model})
    if escaped:
        body = body.replace(b'"model":', b'"mod\\u0065l" :', 1)
    assert replace_string(body, "model", NEW) == replace_value(body, "model", NEW)


def test_without_the_key_the_body_is_untouched() -> None:
    for body in (b"{}", b" { } ", b'{"models":"a","x":{"model":1}}', b'{"x":"model"}'):
        assert replace_value(body, "model", NEW) == body


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b" ",
        b"[]",
        b"1",
        b'"model"',
        b"null",
        b"{",
        b'{"model"',
        b'{"model":',
        b'{"model":"a"',
        b'{"model":"a",}',
        b'{"model":"a"}}',
        b'{"model":"a"}x',
        b'{"model":"a" "b":1}',
        b"{'model':1}",
        b'{"model":"a}',
        b'{"a":tru,"model":1}',
        b"{model:1}",
        b'{"model":"a\nb"}',
        b'{"model":01}',
        b'{"x":[1,],"model":1}',
        b'{"x":[},"model":1}',
        b"\xff",
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
