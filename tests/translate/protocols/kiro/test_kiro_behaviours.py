"""The required behaviours of replies, from Kiro's bytes to what the official SDKs read in each client protocol."""

import anthropic
import msgspec
import openai
import pytest

from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.events import Failed
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, decode_envelope
from fakes.eventstream import event, exception
from laws import pieces_of, run
from translate.protocols.kiro.kiro_replies import (
    CLIENTS,
    TAIL,
    Translation,
    context,
    make_reasoning,
    metadata,
    metering,
    read_with_sdk,
    text_event,
    translate,
    uses,
)
from wire_json import JsonObject

STOPPED = {"chat": "stop", "messages": "end_turn", "responses": "completed"}
CALLED = {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"}
CUT = {"chat": "length", "messages": "max_tokens", "responses": "max_output_tokens"}

each_client = pytest.mark.parametrize("client", CLIENTS)


def frames(client: str, stream: bytes, tools: tuple[str, ...] = ()) -> list[JsonObject]:
    read = run(SseFramer(), [translate(client, stream, tools)])
    decoded = [frame.data for frame in read if isinstance(frame, Frame) and frame.data != b"[DONE]"]
    return [msgspec.json.decode(data) for data in decoded]


@each_client
def test_01_a_frame_fed_byte_by_byte_is_one_event_with_its_text_intact(client: str) -> None:
    stream = text_event("é日😀") + TAIL
    line = Translation(client)
    bytewise = b"".join(line.feed(byte) for byte in pieces_of(stream, 1)) + line.finish()
    assert bytewise == translate(client, stream)
    assert read_with_sdk(client, stream).text == "é日😀"


@each_client
def test_02_coalesced_frames_are_all_sent_in_order(client: str) -> None:
    stream = text_event("one ", "two ", "three") + TAIL
    half = len(text_event("one ", "two ")) + 40
    line = Translation(client)
    first = line.feed(stream[:half])
    assert b"one " in first
    assert b"two " in first
    assert b"three" not in first
    assert b"three" in line.feed(stream[half:]) + line.finish()


@each_client
def test_03_corruption_is_sent_at_once_and_never_passed_on(client: str) -> None:
    good, bad = text_event("Hel"), bytearray(text_event("lo"))
    bad[0] ^= 0x40  # the length becomes huge
    line = Translation(client)
    line.feed(good)
    assert b"error" in line.feed(bytes(bad[:12]))
    flipped = bytearray(text_event("lo"))
    flipped[-6] ^= 1
    out = translate(client, good + bytes(flipped) + TAIL)
    assert b"Hel" in out
    assert b"error" in out
    with pytest.raises((anthropic.APIError, openai.APIError)):
        read_with_sdk(client, good + bytes(flipped) + TAIL)


@each_client
def test_04_an_exception_first_fails_before_anything_is_sent(client: str) -> None:
    line = Translation(client)
    line.feed(exception("ThrottlingException", {"message": "slow"}))
    (failed,) = line.decoded
    assert isinstance(failed, Failed)
    assert failed.failure.kind is Kind.RATE_LIMITED


@each_client
def test_05_an_exception_after_text_is_an_error_event_and_no_normal_end(client: str) -> None:
    stream = text_event("Hel") + exception("InternalServerException", {"message": "it broke"}) + TAIL
    out = translate(client, stream)
    assert b"Hel" in out
    assert b"it broke" in out
    assert b'"stop"' not in out
    assert b"message_stop" not in out
    assert b"response.completed" not in out
    with pytest.raises((anthropic.APIError, openai.APIError), match="it broke"):
        read_with_sdk(client, stream)


@each_client
def test_06_unknown_events_and_fields_change_nothing(client: str) -> None:
    odd = event("initial-response", {}) + event("fooEvent", {"content": "no"})
    words = event("assistantResponseEvent", {"content": "Hi", "brandNew": {"x": 1}})
    assert translate(client, odd + words + TAIL) == translate(client, text_event("Hi") + TAIL)


@each_client
def test_07_json_looking_text_is_literal_and_follow_ups_are_absent(client: str) -> None:
    looks = '{"usage":5} {"content":"x"}'
    follow = event("followupPromptEvent", {"followupPrompt": {"content": "And then?"}})
    received = read_with_sdk(client, text_event(looks) + follow + TAIL)
    assert (received.text, received.usage) == (looks, (13, 5, 2))


@each_client
def test_08_fragments_are_one_call_and_the_reply_ends_for_it(client: str) -> None:
    stream = uses("tooluse_a", "f") + uses(input='{"a":') + uses(input="1}") + uses(stop=True)
    received = read_with_sdk(client, stream + metadata("END_TURN", 1, 0, 0, 1))
    assert received.calls == [("tooluse_a", "f", {"a": 1})]
    assert received.stop == CALLED[client]


@each_client
def test_09_no_input_is_an_empty_object_and_object_input_is_not_encoded_twice(client: str) -> None:
    stream = uses("A", "f") + uses("A", stop=True) + uses("B", "g", input={"a": 1}, stop=True)
    assert read_with_sdk(client, stream + TAIL).calls == [("A", "f", {}), ("B", "g", {"a": 1})]


@each_client
def test_10_interleaved_calls_come_out_apart_in_order_and_without_overlap(client: str) -> None:
    stream = uses("A", "f", input='{"a"') + uses("B", "g", input='{"b"') + uses("A", input=":1}")
    stream += uses("A", stop=True) + uses("B", input=":2}", stop=True) + TAIL
    assert read_with_sdk(client, stream).calls == [("A", "f", {"a": 1}), ("B", "g", {"b": 2})]
    if client == "messages":
        bounds = [frame["type"] for frame in frames(client, stream) if "block_st" in str(frame["type"])]
        assert bounds == ["content_block_start", "content_block_stop"] * 2


@each_client
@pytest.mark.parametrize("before", ["", "Writing."])
def test_11_a_truncated_call_is_no_call_and_the_reply_ends_by_its_length(client: str, before: str) -> None:
    received = read_with_sdk(client, text_event(before) + uses("A", "write", input='{"path":"x'))
    assert (received.text, received.calls, received.stop) == (before, [], CUT[client])


@each_client
def test_12_repeated_text_is_kept(client: str) -> None:
    assert read_with_sdk(client, text_event("ha", "ha") + TAIL).text == "haha"


@each_client
def test_13_native_reasoning_is_sent_before_the_text_and_signed_once(client: str) -> None:
    stream = (
        make_reasoning(text="a") + make_reasoning(text="b") + make_reasoning(signature="S") + text_event("Hi") + TAIL
    )
    received = read_with_sdk(client, stream)
    assert (received.thinking, received.text) == ("ab", "Hi")
    out = translate(client, stream)
    token = out[out.index(b"dgm1.") :].split(b'"')[0].decode()
    opaque = decode_envelope(token)
    assert opaque is not None
    assert msgspec.structs.replace(opaque, text="") == Opaque("kiro", OpaqueForm.SIGNATURE, "S", "claude-sonnet-4.5")
    if client == "messages":
        decoded = frames(client, stream)
        deltas = [frame["delta"]["type"] for frame in decoded if frame["type"] == "content_block_delta"]
        assert deltas == ["thinking_delta", "thinking_delta", "signature_delta", "text_delta"]


@each_client
def test_14_thinking_tags_split_anywhere_are_reasoning_and_later_ones_text(client: str) -> None:
    received = read_with_sdk(client, text_event("<thin", "king>x</think", "ing>\n\nHi") + TAIL)
    assert (received.thinking, received.text) == ("x", "Hi")
    received = read_with_sdk(client, text_event("<think>x</think>", "Hi `<thinking>` there") + TAIL)
    assert received.text == "Hi `<thinking>` there"


@each_client
@pytest.mark.parametrize(
    "written",
    [
        'ok [Called f with args: {"s":"}]"}]',
        'ok <function_calls><invoke name="f"><parameter name="s">}]</parameter></invoke></function_calls>',
    ],
    ids=["brackets", "tags"],
)
def test_15_a_written_call_of_an_offered_tool_outside_of_code_is_a_call(client: str, written: str) -> None:
    received = read_with_sdk(client, text_event(*written) + TAIL, ("f",))
    assert received.text == "ok "
    assert [(name, arguments) for _, name, arguments in received.calls] == [("f", {"s": "}]"})]
    assert received.stop == CALLED[client]
    for plain, tools in ((f"```\n{written}\n```", ("f",)), (written, ("g",)), (written, ())):
        received = read_with_sdk(client, text_event(*plain) + TAIL, tools)
        assert (received.text, received.calls, received.stop) == (plain, [], STOPPED[client])


@each_client
def test_23_usage_is_reported_or_derived_or_estimated(client: str) -> None:
    assert read_with_sdk(client, text_event("Hi") + metadata("END_TURN", 10, 2, 1, 5)).usage == (13, 5, 2)
    words = text_event(*(["w "] * 500))
    assert read_with_sdk(client, words + context(10)).usage == (19_500, 500, 0)
    assert read_with_sdk(client, text_event("one two") + metering(0.5)).usage == (9, 2, 0)


@each_client
def test_everything_at_once_is_one_legal_reply(client: str) -> None:
    stream = b"".join(
        (
            event("initial-response", {}),
            event("messageMetadataEvent", {"conversationId": "c", "utteranceId": "u"}),
            make_reasoning(text="hm"),
            make_reasoning(signature="S"),
            make_reasoning(redactedContent="cmVk"),
            text_event("<think>tags</think>\n\n", 'Hi [Called f with args: {"x":1}] there'),
            uses("A", "g", input='{"y":', stop=None),
            text_event(" more"),
            uses("A", input="2}", stop=True),
            uses("B", "f", input='{"x": 1}', stop=True),
            metadata("END_TURN", 10, 2, 1, 5),
            metering(0.1),
        )
    )
    received = read_with_sdk(client, stream, ("f", "g"))
    assert received.text == "Hi  there more"
    assert [(name, arguments) for _, name, arguments in received.calls] == [("f", {"x": 1}), ("g", {"y": 2})]
    assert received.stop == CALLED[client]
