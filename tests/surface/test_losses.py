"""What a reply loses on its way is in the ledger: every row of the table of replies that is marked so."""

import pytest

from asking import EXPLAIN
from rig import Rig
from surface.vendor_events import MESSAGES_USAGE, chat, message, response, text_item, write_whole
from wire_json import JsonObject

LIKELY = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]
HI = {"type": "text", "text": "Hi"}
IMAGE = {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "AAAA"}
REFUSED = {"type": "refusal", "category": "cyber", "explanation": "No."}
SEARCHED = (
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "cats"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
)


def chat_likely() -> JsonObject:
    reply = chat({"content": "Hi"})
    reply["choices"][0]["logprobs"] = {"content": LIKELY, "refusal": None}
    return reply


def responses_likely() -> JsonObject:
    item = text_item("Hi")
    item["content"][0]["logprobs"] = LIKELY
    return response(item)


CASES: list[tuple[str, str, JsonObject, tuple[str, str]]] = [
    ("messages", "chat", chat_likely(), ("/content/0/logprobs", "dropped")),
    ("messages", "responses", responses_likely(), ("/content/0/logprobs", "dropped")),
    ("messages", "chat", chat({"content": "Hi"}, service_tier="flex"), ("/service_tier", "dropped")),
    ("messages", "responses", response(text_item("Hi"), service_tier="flex"), ("/service_tier", "dropped")),
    ("messages", "responses", response(IMAGE, text_item("Hi")), ("/content/0", "dropped")),
    ("chat", "responses", response(IMAGE, text_item("Hi")), ("/content/0", "dropped")),
    ("chat", "messages", message(*SEARCHED, HI), ("/content/0", "dropped")),
    ("responses", "messages", message(*SEARCHED, HI), ("/content/0", "approximated")),
    ("chat", "messages", message(HI, HI), ("/content/1", "approximated")),
    ("chat", "messages", message(HI, stop="pause_turn"), ("/stop_reason", "approximated")),
    ("responses", "messages", message(HI, stop="pause_turn"), ("/stop_reason", "approximated")),
    ("chat", "messages", message(HI, stop="model_context_window_exceeded"), ("/stop_reason", "approximated")),
    ("responses", "messages", message(HI, stop="model_context_window_exceeded"), ("/stop_reason", "approximated")),
    ("chat", "messages", message(HI, stop="stop_sequence", stop_sequence="END"), ("/stop_sequence", "dropped")),
    ("responses", "messages", message(HI, stop="stop_sequence", stop_sequence="END"), ("/stop_sequence", "dropped")),
    ("chat", "messages", message(stop="refusal", stop_details=REFUSED), ("/stop_details/category", "dropped")),
    ("responses", "messages", message(stop="refusal", stop_details=REFUSED), ("/stop_details/category", "dropped")),
    ("messages", "chat", {**chat({"content": "Hi"}), "choices": [
        {"index": place, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        for place in (0, 1)]}, ("/choices/1", "dropped")),
]  # fmt: skip


@pytest.mark.parametrize(("client", "upstream", "reply", "loss"), CASES)
def test_a_loss_is_reported(gate: Rig, client: str, upstream: str, reply: JsonObject, loss: tuple[str, str]) -> None:
    gate.play(upstream, write_whole(reply))
    answer = gate.ask(client, upstream, headers=EXPLAIN)
    assert answer.status == 200, answer.body
    assert loss in answer.losses


@pytest.mark.parametrize("tier", ["standard", "priority"])
def test_a_tier_that_both_know_is_no_loss(gate: Rig, tier: str) -> None:
    reply = message(HI, usage={**MESSAGES_USAGE, "service_tier": tier})
    gate.play("messages", write_whole(reply))
    answer = gate.ask("chat", "messages", max_tokens=5, headers=EXPLAIN)
    assert answer.losses == []
    assert answer.json["service_tier"] == {"standard": "default", "priority": "priority"}[tier]
