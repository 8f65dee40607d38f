"""Which refusals are about reasoning: the vendor's whole sentence, never one that an error quotes."""

import msgspec
import pytest

from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.passes.adapt_turns import digest_payload
from dragoman.translate.protocols.gemini.wire import NO_SIGNATURE
from dragoman.upstreams.rejections.reasoning import SENTENCES, adjust_reasoning, leave_out
from dragoman.upstreams.rejections.sent import Sent
from wire_json import JsonObject

BOUND = "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
DROP = ' Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
DROPPED = [
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "messages.23.content.2: Invalid `data` in `redacted_thinking` block",
    "messages.5.content.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified"
    ". These blocks must remain as they were in the original response.",
    "Corrupted thought signature.",
    "Invalid thought signature.",
    "Unable to submit request because Thought signature is not valid.. Learn more: "
    "https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini",
]
UNBOUND = [
    BOUND,
    BOUND + DROP,
    BOUND + DROP + " That setting requires the `thinking-binding-controls-2026-08-01` value in the `anthropic-beta` "
    "header.",
    BOUND + DROP + " The `thinking` block that preceded this one when it was created is missing from this request.",
]
FRAMES = ["Could not fetch image '{}'", "Invalid content: {}", "{} was flagged by our safety system", "It said:\n{}"]


@pytest.mark.parametrize("words", [*DROPPED, *UNBOUND])
def test_the_vendors_sentence_repeats_a_request_and_a_quoted_one_does_not(words: str) -> None:
    adjustment = adjust_reasoning(Failure(Kind.BAD_REQUEST, words))
    assert adjustment is not None
    assert adjustment.of_reasoning
    assert adjustment.drops_reasoning is (words in DROPPED)
    for frame in FRAMES:
        assert adjust_reasoning(Failure(Kind.BAD_REQUEST, frame.format(words))) is None


def test_every_sentence_has_a_source() -> None:
    assert all(sentence.source for sentence in SENTENCES)


THOUGHT: JsonObject = {"type": "thinking", "thinking": "Hm.", "signature": "b2xk"}
CASES: list[tuple[str, JsonObject, str, str]] = [
    (
        "messages",
        {"messages": [{"role": "assistant", "content": [THOUGHT, THOUGHT | {"signature": "bmV3"}]}]},
        '{"type":"thinking","thinking":"Hm.","signature":"b2xk"},',
        "/messages/0/content/0",
    ),
    (
        "messages",
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [THOUGHT]}]},
        ',{"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"b2xk"}]}',
        "/messages/1",
    ),
    (
        "responses",
        {
            "input": [
                {"type": "reasoning", "summary": [], "encrypted_content": "b2xk"},
                {"role": "user", "content": "x"},
            ]
        },
        '{"type":"reasoning","summary":[],"encrypted_content":"b2xk"},',
        "/input/0",
    ),
    (
        "gemini",
        {"contents": [{"role": "model", "parts": [{"text": "A", "thoughtSignature": "b2xk"}]}]},
        ',"thoughtSignature":"b2xk"',
        "/contents/0/parts/0/thoughtSignature",
    ),
    (
        "chat",
        {"messages": [{"role": "assistant", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}]},
        '{"type":"reasoning.encrypted","data":"x"}',
        "/messages/0/reasoning_details/0",
    ),
]


@pytest.mark.parametrize(("protocol", "tree", "cut", "path"), CASES, ids=[f"{case[0]} {case[3]}" for case in CASES])
def test_only_what_was_rejected_is_cut_out_of_bytes(protocol: str, tree: JsonObject, cut: str, path: str) -> None:
    body, ledger = msgspec.json.encode(tree), Ledger()
    payload = '{"type":"reasoning.encrypted","data":"x"}' if protocol == "chat" else "b2xk"
    sent = leave_out(Sent(protocol, body), {digest_payload(payload)}, ledger)
    assert sent.body == body.replace(cut.encode(), b"")
    assert [loss.path for loss in ledger] == [path]
    assert leave_out(sent, {digest_payload(payload)}, ledger).body is sent.body


def test_a_function_call_has_the_documented_value_in_place_of_a_signature() -> None:
    body = (
        b'{"contents":[{"role":"model","parts":[{"functionCall":{"name":"f","args":{}},"thoughtSignature":"b2xk"}]}]}'
    )
    sent = leave_out(Sent("gemini", body), {digest_payload("b2xk")}, Ledger())
    assert sent.body == body.replace(b"b2xk", NO_SIGNATURE.encode())
