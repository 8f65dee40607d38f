"""The outline of a whole Chat reply has the same start, usage and end as the full decoding."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.hub.events import Ended, Event, Failed, Started, UsageReported
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.protocols.chat.decode_whole import decode_outline, decode_whole
from translate.protocols.chat.chat_decoding import FIXTURES, ISSUER
from wire_json import JsonObject

FRAME = (Started, UsageReported, Ended, Failed)
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def list_frames(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, FRAME)]


def assert_glance_agrees(body: bytes) -> None:
    assert list_frames(decode_outline(body, ISSUER, Ledger())) == list_frames(decode_whole(body, ISSUER, Ledger()))


_fields = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([None, 0, 1]),
        "message": st.sampled_from(
            [None, {"content": "hi"}, {"content": None, "tool_calls": [CALL]}, {"tool_calls": [{"id": "nameless"}]},
             {"content": "hi", "tool_calls": []}, {"function_call": {"name": "f", "arguments": ""}}, {"content": 7},
             {"refusal": "no"}]
        ),
        "finish_reason": st.sampled_from([None, "", "stop", "length", "tool_calls", "content_filter", "error", "odd"]),
        "usage": st.sampled_from([None, {"prompt_tokens": 3}]),
        "stop_reason": st.sampled_from([None, "", 7, "END"]),
        "matched_stop": st.sampled_from([None, "", "END"]),
    },
)  # fmt: skip
_replies = st.fixed_dictionaries(
    {"choices": st.sampled_from([None]) | st.lists(_fields, max_size=2)},
    optional={
        "id": st.sampled_from([None, "", "chatcmpl-1"]),
        "model": st.sampled_from([None, "", "m-2"]),
        "usage": st.sampled_from([None, {}, {"prompt_tokens": 3, "completion_tokens": 2}]),
        "service_tier": st.sampled_from([None, "", "flex"]),
        "error": st.sampled_from([None, {}, "", {"message": "busy"}]),
    },
)


@settings(max_examples=100, deadline=None)
@given(_replies)
def test_a_glance_agrees_with_reading_in_full(reply: JsonObject) -> None:
    assert_glance_agrees(msgspec.json.encode(reply))


@pytest.mark.parametrize("body", [b"", b"{", b"<html>busy</html>", b'{"error":{"message":"busy"}}', b"[" * 100_000])
def test_a_glance_at_what_is_no_reply_finds_the_same_failure(body: bytes) -> None:
    assert isinstance(decode_outline(body, ISSUER, Ledger())[-1], Failed)
    assert_glance_agrees(body)


def test_an_outline_skips_the_text_unless_it_must_be_counted() -> None:
    plain = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    losses = msgspec.json.encode({**plain, "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    assert [type(event) for event in decode_outline(losses, ISSUER, Ledger())] == [Started, UsageReported, Ended]
    untold = msgspec.json.encode(plain)
    assert decode_outline(untold, ISSUER, Ledger()) == decode_whole(untold, ISSUER, Ledger())


def test_a_glance_agrees_about_a_recorded_reply() -> None:
    assert_glance_agrees((FIXTURES / "whole.json").read_bytes())
