"""Tool calls in pieces are sent once and complete, or not at all."""

import msgspec
import pytest

from dragoman.hub.events import CallBlock, Ended, Stop, TextBlock, TruncatedCall
from dragoman.hub.loss import Ledger
from dragoman.protocols.kiro.decode_blocks import MAX_CHARS, Calls
from dragoman.protocols.kiro.wire import ToolUse
from fakes.eventstream import event
from protocols.kiro.kiro_replies import TAIL, Reader, calls_of, cut_of, metadata, read, reply, text_event, uses


def pieces(stream: bytes) -> list[tuple[object, str]]:
    return [(piece.what, piece.text) for piece in reply(stream).pieces]


def test_fragments_are_one_call_that_wins_over_the_stop_reason() -> None:
    stream = uses("A", "f") + uses("A", input='{"a":') + uses("A", input="1}") + uses("A", stop=True)
    decoded = read(stream + metadata("END_TURN"))
    assert calls_of(decoded) == [("A", "f", '{"a":1}')]
    assert decoded[-1] == Ended(Stop.TOOL)


def test_a_call_is_withheld_until_it_is_whole() -> None:
    reader = Reader()
    reader.feed(uses("A", "f", input='{"a":') + uses("A", input="1}"))
    assert calls_of(reader.feed(uses("A", stop=True))) == [("A", "f", '{"a":1}')]


@pytest.mark.parametrize("input", ["", " ", None])
def test_no_input_and_a_stop_are_an_empty_object(input: str | None) -> None:
    assert calls_of(read(uses("A", "f") + uses("A", input=input, stop=True) + TAIL)) == [("A", "f", "{}")]


def test_object_input_is_the_same_json_and_a_whole_snapshot() -> None:
    once = event("toolUseEvent", b'{"toolUseId":"A","name":"f","input":{"a":1.0,"b":["\\u00e9"]},"stop":true}')
    assert calls_of(read(once + TAIL)) == [("A", "f", '{"a":1.0,"b":["\\u00e9"]}')]
    twice = uses("A", "f", input={"a": 1}) + uses("A", input={"a": 1, "b": 2}) + uses("A", stop=True)
    assert calls_of(read(twice + TAIL)) == [("A", "f", '{"a":1,"b":2}')]


def test_fragments_may_follow_an_empty_object() -> None:
    stream = uses("A", "f", input={}) + uses("A", input='{"a":1}') + uses("A", stop=True)
    assert calls_of(read(stream + TAIL)) == [("A", "f", '{"a":1}')]


def test_interleaved_calls_are_kept_apart() -> None:
    stream = b"".join(
        (
            uses("A", "f", input='{"a"'),
            uses("B", "g", input='{"b"'),
            uses("A", input=":1}"),
            uses("A", stop=True),
            uses("B", input=":2}", stop=True),
        )
    )
    assert calls_of(read(stream + TAIL)) == [("A", "f", '{"a":1}'), ("B", "g", '{"b":2}')]


def test_a_call_waits_for_those_that_began_before_it() -> None:
    stream = uses("A", "f", input='{"a"') + uses("B", "g", stop=True) + uses("C", "h", input='{"c":3}', stop=True)
    assert calls_of(read(stream + text_event("Hi") + uses("A", input=":1}", stop=True) + TAIL)) == [
        ("A", "f", '{"a":1}'),
        ("B", "g", "{}"),
        ("C", "h", '{"c":3}'),
    ]
    assert calls_of(read(stream)) == [("B", "g", "{}"), ("C", "h", '{"c":3}')]


def test_a_call_without_a_stop_is_sent_at_the_end_if_its_json_is_whole() -> None:
    decoded = read(uses("A", "f", input='{"a":1}') + TAIL)
    assert calls_of(decoded) == [("A", "f", '{"a":1}')]
    assert decoded[-1] == Ended(Stop.TOOL)


@pytest.mark.parametrize("tail", [b"", TAIL])
@pytest.mark.parametrize("stop", [None, True])
def test_a_truncated_call_is_never_sent_and_the_reply_ends_by_length(tail: bytes, stop: bool | None) -> None:
    decoded = read(text_event("ok") + uses("A", "write", input='{"path":"x', stop=stop) + tail)
    assert calls_of(decoded) == []
    assert decoded[-1] == Ended(Stop.LENGTH, cut=(TruncatedCall("A", "write", '{"path":"x'),))


@pytest.mark.parametrize("input", ["[1]", "1", '"x"', "null", '{"a":1}}', '{"a":1}{"a":2}', '{"a":NaN}'])
def test_input_that_is_no_object_is_never_sent(input: str) -> None:
    decoded = read(uses("A", "f", input=input, stop=True) + TAIL)
    assert calls_of(decoded) == []
    assert cut_of(decoded) == (TruncatedCall("A", "f", input),)


def test_a_call_that_only_began_is_cut() -> None:
    assert cut_of(read(uses("A", "f") + TAIL)) == (TruncatedCall("A", "f", ""),)


def test_a_whole_call_beside_a_cut_one_is_sent_and_the_end_is_still_length() -> None:
    decoded = read(uses("A", "f", input='{"a":1}', stop=True) + uses("B", "g", input='{"b"') + TAIL)
    assert calls_of(decoded) == [("A", "f", '{"a":1}')]
    assert decoded[-1] == Ended(Stop.LENGTH, cut=(TruncatedCall("B", "g", '{"b"'),))


def test_the_same_id_again_is_the_same_call_with_its_most_complete_arguments() -> None:
    once = uses("A", "f", input='{"a":1}', stop=True)
    assert calls_of(read(once + once + uses("A", stop=True) + TAIL)) == [("A", "f", '{"a":1}')]
    better = uses("A", "f", stop=True) + once
    assert calls_of(read(better + TAIL)) == [("A", "f", '{"a":1}')]


def test_arguments_that_break_off_are_not_replaced_by_an_earlier_empty_call() -> None:
    decoded = read(
        uses("A", "f", stop=True) + uses("A", input='{"a"') + uses("B", "g", input='{"b":1}', stop=True) + TAIL
    )
    assert calls_of(decoded) == [("B", "g", '{"b":1}')]
    assert cut_of(decoded) == (TruncatedCall("A", "f", '{"a"'),)


def test_the_same_call_under_another_id_is_made_once_and_recorded() -> None:
    ledger = Ledger()
    stream = uses("A", "f", input='{"a":1}', stop=True) + uses("B", "f", input='{ "a": 1 }', stop=True)
    assert calls_of(read(stream + TAIL, ledger=ledger)) == [("A", "f", '{"a":1}')]
    assert [loss.path for loss in ledger] == ["/toolUses/B"]


def test_an_empty_call_comes_before_the_text_that_follows_it() -> None:
    decoded = pieces(text_event("a") + uses("A", "f", stop=True) + text_event("b") + TAIL)
    assert decoded == [(TextBlock(), "a"), (CallBlock("A", "f"), "{}"), (TextBlock(), "b")]


def test_pieces_without_an_id_belong_to_the_call_under_way() -> None:
    stream = uses("A", "f") + uses(None, input='{"a":1}') + uses(None, stop=True)
    stream += uses(None, "g", input='{"b":1}', stop=True)
    assert calls_of(read(stream + TAIL)) == [("A", "f", '{"a":1}'), ("tooluse_2", "g", '{"b":1}')]
    assert calls_of(read(uses(None, stop=True) + text_event("x") + TAIL)) == []


def test_half_a_surrogate_pair_in_arguments_is_repaired() -> None:
    raw = b'{"toolUseId":"A","name":"f","input":"{\\"a\\":\\"\\\\ud83d\\"}","stop":true}'
    assert calls_of(read(event("toolUseEvent", raw) + TAIL)) == [("A", "f", '{"a":"\\ufffd"}')]


def test_arguments_without_end_are_bounded_and_cut() -> None:
    calls = Calls(Ledger())
    piece = msgspec.Raw(msgspec.json.encode('{"a":"' + "x" * 4_000_000))
    for _ in range(20):
        calls.add(ToolUse(tool_use_id="A", name="f", input=piece))
    assert calls.add(ToolUse(tool_use_id="A", input=msgspec.Raw(b'"\\"}"'), stop=True)) == []
    (cut,) = calls.end()[1]
    assert len(cut.arguments) <= MAX_CHARS + 4_100_000
