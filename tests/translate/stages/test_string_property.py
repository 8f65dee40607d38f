"""Streaming one string property out of JSON text and into it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.stages.restore_tools import StringProperty
from laws import assert_any_cut_agrees, assert_linear, assert_total, cuts, run
from tables import each_row

PATCH = '*** Begin Patch\n+print("Grüße 😀\\n")\t/\b\f\r\x01\u2028\n*** End Patch'
WRAPPED = [
    json.dumps({"input": PATCH}),
    json.dumps({"input": PATCH}, ensure_ascii=False),
    ' \n{\t"input" \r\n: "a\\/b\\u00e9\\ud83d\\ude00\\uD83D\\uDE00\\"}" \n} \n',
]


def reader() -> StringProperty:
    return StringProperty("input")


def unwrap_item(text: str) -> tuple[str, bool, bool]:
    machine = reader()
    out = "".join(run(machine, [text]))
    return out, machine.complete, machine.fallback


@pytest.mark.parametrize("text", WRAPPED)
def test_the_string_comes_out_in_any_cut(text: str) -> None:
    expected = json.loads(text)["input"]
    for pieces in cuts(text):
        machine = reader()
        assert "".join(run(machine, pieces)) == expected
        assert (machine.complete, machine.fallback) == (True, False)


def test_characters_come_out_as_soon_as_they_are_certain() -> None:
    machine = reader()
    steps = ['{"inp', 'ut": "a', "b\\", "n", "\\u00", "e9x", "\\ud83d", "\\ude", "00", '"', "}"]
    assert [machine.feed(step) for step in steps] == ["", "a", "b", "\n", "", "éx", "", "", "😀", "", ""]
    assert machine.complete
    assert machine.finish() == ""


@each_row(
    "text",
    [
        *("", "{", "{}", ' {"inp', '{"input"', '{"input":', '{"input": ', '{"input": 5}', '{"input": null}'),
        *('{"input": ["a"]}', '{"other": "x"}', '{"inputs": "x"}', '{"other": 1, "input": "x"}', "bare text"),
        *('"just a string"', '["input"]', "\ud83d"),
    ],
)
def test_another_shape_comes_back_untouched_in_any_cut(text: str) -> None:
    for pieces in cuts(text):
        machine = reader()
        assert all(machine.feed(piece) == "" for piece in pieces)
        assert machine.finish() == text
        assert (machine.complete, machine.fallback) == (False, True)


def test_the_fallback_is_known_as_soon_as_the_shape_is() -> None:
    machine = reader()
    machine.feed('{"in')
    assert not machine.fallback
    machine.feed("dex")
    assert machine.fallback


def test_a_string_cut_off_by_the_end_gives_what_was_certain() -> None:
    assert unwrap_item('{"input": "abc') == ("abc", False, False)
    assert unwrap_item('{"input": "abc\\') == ("abc", False, False)
    assert unwrap_item('{"input": "abc\\u00') == ("abc", False, False)
    assert unwrap_item('{"input": "') == ("", False, False)


def test_an_empty_string_is_complete() -> None:
    assert unwrap_item('{"input":""}') == ("", True, False)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\ud83d", "\ufffd"),
        (r"\ude00", "\ufffd"),
        (r"\ud83dx", "\ufffdx"),
        (r"\ud83d\n", "\ufffd\n"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
        (r"\ud83d\\ude00", "\ufffd\\ude00"),
        (r"\\ud83d", r"\ud83d"),
    ],
)
def test_half_a_surrogate_pair_becomes_a_replacement_character(escaped: str, text: str) -> None:
    assert unwrap_item('{"input":"' + escaped + '"}') == (text, True, False)
    assert_any_cut_agrees(reader, '{"input":"' + escaped + '"}')
    assert unwrap_item('{"input":"' + escaped) == (text, False, False)
    assert_any_cut_agrees(reader, '{"input":"' + escaped)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\d+\.", r"\d+\."),
        (r"\u12G4", r"\u12G4"),
        (r"\uzz", r"\uzz"),
        (r"\u12", r"\u12"),
        ("a\nb\tc", "a\nb\tc"),
        (r"\u 123", r"\u 123"),
    ],
)
def test_what_json_does_not_allow_in_a_string_is_kept_as_written(escaped: str, text: str) -> None:
    assert unwrap_item('{"input":"' + escaped + '"}') == (text, True, False)
    assert_any_cut_agrees(reader, '{"input":"' + escaped + '"}')


@pytest.mark.parametrize("after", [' , "x": 1}', "} junk", "", " \n} ", "}}"])
def test_what_follows_the_string_is_left_out(after: str) -> None:
    for pieces in cuts('{"input":"a"' + after):
        machine = reader()
        assert "".join(run(machine, pieces)) == "a"
        assert machine.complete


def test_the_property_may_have_another_name() -> None:
    machine = StringProperty('pa"tch')
    assert "".join(run(machine, ['{"pa\\"tch":"x"}'])) == "x"
    assert machine.complete


@given(st.text(alphabet=st.sampled_from('{}":input \\ud83e\n'), max_size=30))
@settings(max_examples=60, deadline=None)
def test_any_text_is_taken_and_any_cut_agrees(junk: str) -> None:
    for text in (junk, '{"input":"' + junk):
        assert_total(reader, text)
        assert_any_cut_agrees(reader, text)


@pytest.mark.parametrize("piece", ["x", " ", "\\", "\\u00e9", '{"input":"'])
def test_unwrapping_takes_linear_time(piece: str) -> None:
    assert_linear(reader, piece, 8000)


def test_a_long_string_in_small_pieces_takes_linear_time() -> None:
    def start_reader() -> StringProperty:
        machine = reader()
        machine.feed('{"input":"')
        return machine

    assert_linear(start_reader, "word\\n", 8000)
