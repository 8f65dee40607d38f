"""Reasoning of other vendors is cut out of bytes that pass to the upstream of the client's own protocol."""

import msgspec
import pytest

from dragoman.translate.hub.opaque import Opaque, OpaqueForm, Thought, encode_envelope, seal_thoughts
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams.rejections.foreign_reasoning import leave_out_foreign
from dragoman.upstreams.rejections.sent import Sent
from narrowing import present
from wire_json import Json, JsonObject

FOREIGN = Opaque("elsewhere", OpaqueForm.SIGNATURE, "x", "m")
TOKEN = encode_envelope(FOREIGN).encode()
SEALED = seal_thoughts([Thought("Hm.", FOREIGN)]).encode()


def cut(protocol: str, body: bytes, issuer: str = "own") -> tuple[bytes, list[str]] | None:
    """Return the bytes that pass, and the paths of the losses; None: they are translated."""
    start = present(PROTOCOLS[protocol].client).envelope_start
    found = leave_out_foreign(Sent(protocol, body), issuer, start)
    return None if found is None else (found[0].body, [loss.path for loss in found[1]])


@pytest.mark.parametrize(
    ("protocol", "body", "expected", "path"),
    [
        (
            "messages",
            b'{ "a":1.0,"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"'
            + TOKEN
            + b'"}, {"type":"text","text":"\\u00e9"}]}]}',
            b'{ "a":1.0,"messages":[{"role":"assistant","content":[{"type":"text","text":"\\u00e9"}]}]}',
            "/messages/0/content/0",
        ),
        (
            "responses",
            b'{"input":[{"type":"reasoning","summary":[],"encrypted_content":"' + TOKEN + b'"},{"role":"user"}] }',
            b'{"input":[{"role":"user"}] }',
            "/input/0",
        ),
        (
            "chat",
            b'{"messages":[{"role":"assistant","content":"A","reasoning_content":"Hm.","reasoning_details":['
            b'{"type":"reasoning.encrypted","data":"' + TOKEN + b'"}]} ]}',
            b'{"messages":[{"role":"assistant","content":"A"} ]}',
            "/messages/0/reasoning_details/0",
        ),
        (
            "chat",
            b'{"messages":[{"role":"assistant","tool_calls":[{"id":"c","extra_content":{"google":{"thought_signature":"'
            + TOKEN
            + b'"}}}]}]}',
            b'{"messages":[{"role":"assistant","tool_calls":[{"id":"c"}]}]}',
            "/messages/0/tool_calls/0/extra_content",
        ),
        (
            "gemini",
            b'{"contents":[{"role":"model","parts":[{"text":"Hm.","thought":true},{"text":"A","thoughtSignature":"'
            + SEALED
            + b'"},{"functionCall":{"name":"f"}}]}]}',
            b'{"contents":[{"role":"model","parts":[{"text":"A"},'
            b'{"functionCall":{"name":"f"},"thoughtSignature":"skip_thought_signature_validator"}]}]}',
            "/contents/0/parts/1/thoughtSignature",
        ),
    ],
)
def test_only_the_reasoning_differs(protocol: str, body: bytes, expected: bytes, path: str) -> None:
    assert cut(protocol, body) == (expected, [path])


def test_reasoning_that_this_issuer_signed_is_opened_by_a_translation() -> None:
    item = b'{"input":[{"type":"reasoning","summary":[],"encrypted_content":"' + TOKEN + b'"}]}'
    assert cut("responses", item) is not None
    assert cut("responses", item, "elsewhere") is None


def test_what_else_is_wrapped_is_read_by_a_translation() -> None:
    both = b'{"input":[{"type":"reasoning","encrypted_content":"%b"},{"type":"compaction","encrypted_content":"%b"}]}'
    assert cut("responses", both % (TOKEN, TOKEN)) is None


CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "seen"}


@pytest.mark.parametrize(
    ("thinking", "last", "is_dropped"),
    [
        ({"type": "enabled", "budget_tokens": 2000}, RESULT, True),
        ({"type": "enabled", "budget_tokens": 2000}, {"type": "text", "text": "Go on."}, False),
        ({"type": "adaptive"}, RESULT, False),
        ({"type": "disabled"}, RESULT, False),
        (None, RESULT, False),
    ],
)
def test_a_thinking_budget_is_left_out_where_thinking_would_have_to_precede_calls(
    thinking: JsonObject | None, last: JsonObject, is_dropped: bool
) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": TOKEN.decode()}
    more: JsonObject = {} if thinking is None else {"thinking": thinking}

    def write(*reply: JsonObject, **fields: Json) -> bytes:
        turns = [{"role": "assistant", "content": [*reply, CALL]}, {"role": "user", "content": [last]}]
        return msgspec.json.encode({"messages": turns, **fields})

    losses = [*(["/thinking"] if is_dropped else []), "/messages/0/content/0"]
    assert cut("messages", write(thought, **more)) == (write(**({} if is_dropped else more)), losses)


THEIRS: JsonObject = {"type": "thinking", "thinking": "Hm.", "signature": TOKEN.decode()}
OWN: JsonObject = {"type": "thinking", "thinking": "Hm.", "signature": "own"}


@pytest.mark.parametrize(
    ("replies", "is_dropped"),
    [
        ([[OWN, CALL], [THEIRS, CALL]], False),
        ([[OWN, CALL], [CALL], [THEIRS, CALL]], False),
        ([[THEIRS, CALL], [CALL]], True),
        ([[THEIRS, CALL], [OWN, CALL]], False),
        ([[THEIRS, CALL], [THEIRS, CALL]], True),
    ],
    ids=["the newest calls", "the newest of three", "the first calls", "the first, then own", "all"],
)
def test_a_thinking_budget_stays_where_own_thinking_precedes_the_first_or_the_newest_calls(
    replies: list[list[JsonObject]], is_dropped: bool
) -> None:
    turns: list[Json] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [OWN, {"type": "text", "text": "Of another loop."}]},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
    ]
    for reply in replies:
        turns += [{"role": "assistant", "content": reply}, {"role": "user", "content": [RESULT]}]
    thinking = {"type": "enabled", "budget_tokens": 2000}
    body, losses = present(cut("messages", msgspec.json.encode({"messages": turns, "thinking": thinking})))
    assert ("thinking" not in msgspec.json.decode(body)) == ("/thinking" in losses) == is_dropped
