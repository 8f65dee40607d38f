"""Google's compatible endpoint signs each step's first call, and gets the signature back from any client."""

import pytest

from dragoman.translate.hub.opaque import Opaque, OpaqueForm, encode_envelope
from fakes.upstream import Answer
from rig import Rig
from scripting import write_reply
from surface.reading import read_reply
from surface.vendor_events import CHAT_END, chat, chunk, sse, write_whole
from wire_json import JsonObject

VOUCHED = {"google": {"thought_signature": "c2lnbmVk/+=="}}
CALLS = [
    {
        "id": "call_a",
        "type": "function",
        "extra_content": VOUCHED,
        "function": {"name": "weather", "arguments": '{"a":1}'},
    },
    {"id": "call_b", "type": "function", "function": {"name": "weather", "arguments": '{"a":2}'}},
]


def make_call_answer(stream: bool) -> Answer:
    if not stream:
        return write_whole(chat({"tool_calls": CALLS}, "tool_calls"))
    deltas = [
        chunk({"role": "assistant", "tool_calls": [{"index": place, **call}]}) for place, call in enumerate(CALLS)
    ]
    return Answer(sse(*deltas, chunk({}, "tool_calls"), *CHAT_END))


def history(client: str, reply: JsonObject) -> JsonObject:
    if client == "messages":
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"} for call in CALLS]
        return {
            "messages": [
                {"role": "user", "content": "Go on."},
                {"role": "assistant", "content": reply["content"]},
                {"role": "user", "content": results},
            ]
        }
    results = [{"type": "function_call_output", "call_id": call["id"], "output": "sunny"} for call in CALLS]
    return {"input": [{"role": "user", "content": "Go on."}, *reply["output"], *results]}


@pytest.mark.parametrize("client", ["messages", "responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_signature_of_a_call_returns_to_it(gate: Rig, client: str, stream: bool) -> None:
    reply = read_reply(gate, client, "chat", make_call_answer(stream), stream)
    fake = gate.play("chat", write_reply("chat", "Hello", stream=False))
    answer = gate.ask(client, "chat", **history(client, reply))
    assert answer.status == 200, answer.body
    turn = fake.calls[-1].json["messages"][1]
    assert "reasoning_details" not in turn
    assert turn["tool_calls"] == CALLS


@pytest.mark.parametrize("client", ["messages", "responses"])
def test_another_upstream_does_not_get_it(gate: Rig, client: str) -> None:
    reply = read_reply(gate, client, "chat", make_call_answer(True))
    other = "responses" if client == "messages" else "messages"
    fake = gate.play(other, write_reply(other, "Hello", stream=False))
    answer = gate.ask(client, other, **history(client, reply))
    assert answer.status == 200, answer.body
    assert b"c2lnbmVk" not in fake.calls[-1].body
    assert b"dgm1." not in fake.calls[-1].body


@pytest.mark.parametrize("payload", ["oops", "[1]", "5", "{}", '{"tool_call":[1]}', "[" * 5000])
def test_a_forged_envelope_costs_nothing(gate: Rig, payload: str) -> None:
    forged = encode_envelope(Opaque("chat", OpaqueForm.DETAIL, payload, "m"))
    fake = gate.play("chat", write_reply("chat", "Hello", stream=False))
    turn = [{"type": "redacted_thinking", "data": forged}, {"type": "text", "text": "So."}]
    turns = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": turn},
        {"role": "user", "content": "y"},
    ]
    assert gate.ask("messages", "chat", messages=turns).status == 200
    assert fake.calls[-1].json["messages"][1] == {"role": "assistant", "content": "So."}
