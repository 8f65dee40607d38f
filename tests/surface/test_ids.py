"""Call ids in any alphabet: a Messages client sees Anthropic's, and the vendor gets its own back."""

import re

import pytest

from fakes.upstream import Answer
from rig import Rig
from scripting import write_reply
from surface.reading import read_reply
from surface.vendor_events import CHAT_END, chat, chunk, sse, write_whole

ODD = ["functions.weather:0", "call|x/y+z=", "aufruf-ß", "{}", "a b"]


def make_call_answer(id: str, stream: bool) -> Answer:
    call = {"id": id, "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    if not stream:
        return write_whole(chat({"tool_calls": [call]}, "tool_calls"))
    opened = chunk({"role": "assistant", "tool_calls": [{"index": 0, **call}]})
    return Answer(sse(opened, chunk({}, "tool_calls"), *CHAT_END))


@pytest.mark.parametrize("id", ODD)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_odd_id_is_legal_for_the_client_and_returns_as_it_was(gate: Rig, id: str, stream: bool) -> None:
    reply = read_reply(gate, "messages", "chat", make_call_answer(id, stream), stream)
    seen = reply["content"][0]["id"]
    assert re.fullmatch(r"[A-Za-z0-9_-]+", seen)
    fake = gate.play("chat", write_reply("chat", "Hello", stream=False))
    history = [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": reply["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": seen, "content": "sunny"}]},
    ]
    assert gate.ask("messages", "chat", messages=history).status == 200
    _, turn, result = fake.calls[-1].json["messages"]
    assert (turn["tool_calls"][0]["id"], result["tool_call_id"]) == (id, id)


@pytest.mark.parametrize("id", ["toolu_01AbC", "call_1-x", "toolu_dgm1-", "toolu_dgm1-!", "toolu_dgm1-_w"])
def test_a_legal_id_is_left_alone(gate: Rig, id: str) -> None:
    fake = gate.play("chat", write_reply("chat", "Hello", stream=False))
    history = [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "sunny"}]},
    ]
    assert gate.ask("messages", "chat", messages=history).status == 200
    assert fake.calls[-1].json["messages"][1]["tool_calls"][0]["id"] == id
