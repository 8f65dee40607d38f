"""A Chat reply of Copilot that was split or not translated is corrected; others pass unchanged."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.upstreams.copilot.response_fixes import ChoiceMerger, fix_body

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
HEAD = {"id": "c", "object": "chat.completion", "created": 1, "model": "claude"}


def choice(finish: str, **message: object) -> dict[str, object]:
    return {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}


def fix(reply: object) -> object:
    return msgspec.json.decode(fix_body(msgspec.json.encode(reply)))


def test_text_and_calls_of_several_choices_are_merged() -> None:
    split = [choice("stop", content="Let me look."), choice("tool_calls", content=None, tool_calls=[CALL])]
    result = fix({**HEAD, "choices": split, "usage": {"total_tokens": 3}})
    joined = choice("tool_calls", content="Let me look.", tool_calls=[CALL])
    assert result == {**HEAD, "choices": [joined], "usage": {"total_tokens": 3}}


def test_thoughts_and_several_calls_are_kept() -> None:
    other = {**CALL, "id": "call_2"}
    split = [
        choice("tool_calls", content=None, tool_calls=[CALL], reasoning_text="Hm"),
        choice("tool_calls", content=None, tool_calls=[other], reasoning_opaque="b3Bx"),
    ]
    result = fix({**HEAD, "choices": split})
    thoughts = {"reasoning_text": "Hm", "reasoning_opaque": "b3Bx"}
    assert result == {**HEAD, "choices": [choice("tool_calls", content=None, tool_calls=[CALL, other], **thoughts)]}


def test_a_reply_in_the_shape_of_messages_becomes_one_of_chat() -> None:
    text = {"type": "text", "text": "Let me look."}
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
    usage = {"input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 4}
    given_reply = {"id": "m", "type": "message", "role": "assistant", "model": "claude", "content": [text, use]}
    result = fix({**given_reply, "stop_reason": "tool_use", "usage": usage})
    call = {**CALL, "id": "toolu_1"}
    assert result == {
        **HEAD,
        "id": "m",
        "created": 0,
        "choices": [choice("tool_calls", content="Let me look.", tool_calls=[call])],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 7},
        },
    }


@pytest.mark.parametrize(
    "body",
    [
        b'{ "choices" : [ {"index":0, "message":{"content":"x"}} ] }',
        b'{"error": {"message": "no"}}',
        b'{"choices": [{"message": {"content": "the \\"message\\" \\"message\\""}}]}',
        b"not JSON",
        b"",
    ],
)
def test_correct_or_unknown_replies_pass_unchanged(body: bytes) -> None:
    assert fix_body(body) == body


@given(st.lists(st.integers(0, 200), max_size=6))
def test_any_chunking_gives_the_same(cuts: list[int]) -> None:
    body = msgspec.json.encode({**HEAD, "choices": [choice("stop", content="a"), choice("stop", content="b")]})
    places = sorted({0, len(body), *(cut % len(body) for cut in cuts)})
    machine = ChoiceMerger()
    out = [piece for start, end in pairwise(places) for piece in machine.feed(body[start:end])]
    assert b"".join([*out, *machine.finish()]) == fix_body(body)
