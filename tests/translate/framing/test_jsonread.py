"""JSON with lone surrogates: it is decoded, with the surrogates replaced and the length unchanged."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.framing.jsonread import (
    decode_or,
    parse_or,
    read_json,
    read_json_leniently,
    replace_lone_surrogates,
)
from tables import each_row

NUMBERS = msgspec.json.Decoder(dict[str, int | str])


@pytest.mark.parametrize("text", [rb'{"a":"x\ud83d"}', msgspec.Raw(rb'{"a":"x\ud83d"}')])
def test_half_a_surrogate_pair_is_no_reason_to_fail(text: bytes | msgspec.Raw) -> None:
    assert read_json(NUMBERS, text) == {"a": "x\ufffd"}


@pytest.mark.parametrize("bad", [b'{"a":', rb'{"a":"\ud83d"', rb'{"a":"\ud83d","b":[]}', b'{"a":[]}'])
def test_what_is_wrong_otherwise_fails_as_ever(bad: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_json(NUMBERS, bad)


class Part(msgspec.Struct):
    text: str
    count: int = 0


class Reply(msgspec.Struct):
    parts: list[Part]
    id: str = ""


REPLY = msgspec.json.Decoder(Reply)
BESIDE = ("id", "count")


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        (b'{"parts":[],"id":5}', Reply([])),
        (rb'{"parts":[{"text":"\ud83d"},{"text":"b","count":2.5}],"id":null}', Reply([Part("\ufffd"), Part("b")])),
        (msgspec.Raw(b'{"parts":[{"text":"a","count":{"of":1}}],"id":"x"}'), Reply([Part("a")], "x")),
    ],
)
def test_a_field_beside_the_point_may_have_any_type(text: bytes | msgspec.Raw, reply: Reply) -> None:
    assert read_json_leniently(REPLY, text, BESIDE) == reply


@pytest.mark.parametrize(
    "bad",
    [
        b'{"parts":5,"id":5}',
        b'{"parts":[{"text":5,"count":"x"}]}',
        b"[]",
        b'{"id":5',
        b'{"parts":[{"text":"a","count":"x"}],"parts":7}',
        b'{"parts":[' + b",".join([b'{"text":"a","count":"x"}'] * 99) + b"]}",
    ],
)
def test_what_matters_must_have_its_type(bad: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_json_leniently(REPLY, bad, BESIDE)


@each_row(
    ("before", "after"),
    [
        (rb'"\ud83d"', rb'"\ufffd"'),
        (rb'"\uDE00x"', rb'"\ufffdx"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\ud83d\n\ude00"', rb'"\ufffd\n\ufffd"'),
        (rb'"\u00e9\n"', rb'"\u00e9\n"'),
        (b"{}", b"{}"),
        (rb'"\\ud83d\ude00"', rb'"\\ud83d\ufffd"'),
        (rb'"\ud83d\\ude00"', rb'"\ufffd\\ude00"'),
        (b'"\\', b'"\\'),
    ],
)
def test_escapes_of_lone_surrogates_are_replaced_and_the_length_is_kept(before: bytes, after: bytes) -> None:
    assert replace_lone_surrogates(before) == after
    assert len(before) == len(after)


@given(st.lists(st.sampled_from([r"\ud83d", r"\uDe00", r"\\", r"\n", "u", "d83d", "x", r"\"", r"\u00e9"]), max_size=8))
@settings(max_examples=100, deadline=None)
def test_repaired_json_decodes_as_in_python_with_lone_surrogates_replaced(parts: list[str]) -> None:
    text = '"' + "".join(parts) + '"'
    expected = json.loads(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert msgspec.json.decode(replace_lone_surrogates(text.encode())) == expected


@pytest.mark.parametrize("bad", [b"", b"{", b"[]", b'{"a":"x"}', b'"\xff"', b"[" * 5000, '"\ud800'])
def test_what_cannot_be_decoded_is_replaced_by_a_default(bad: bytes | str) -> None:
    numbers = msgspec.json.Decoder(dict[str, int])
    assert decode_or(numbers, bad, None) is None
    assert parse_or(bad, dict[str, int], {"b": 2}) == {"b": 2}
    assert decode_or(numbers, b'{"a":1}', None) == parse_or('{"a":1}', dict[str, int], None) == {"a": 1}
