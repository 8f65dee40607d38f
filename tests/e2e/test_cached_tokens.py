"""What clients of other protocols see of the prompt cache of a Messages upstream, whoever set the marks."""

from collections.abc import Iterator

import msgspec
import pytest

from asking import PATHS, send
from fakes.upstream import Answer
from rig import ONCE, Rig, run_rig
from wire_json import Json, JsonObject

USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 700,
    "cache_creation_input_tokens": 200,
    "cache_creation": {"ephemeral_5m_input_tokens": 150, "ephemeral_1h_input_tokens": 50},
    "output_tokens": 5,
}
REPLY = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5", "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "Yes."}], "usage": USAGE,
}  # fmt: skip
PRICES = """
[[prices]]
model = "*claude-sonnet-5"
input = 1.0
output = 0.0
cache_read = 0.1
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("rig"), f"{ONCE}{PRICES}", upstreams=("messages",), keys=("a",)) as rig:
        yield rig


BODIES: dict[str, JsonObject] = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"input": "Hi"},
}


def ask(rig: Rig, client: str, **more: Json) -> JsonObject:
    rig.play("messages", Answer(msgspec.json.encode(REPLY), content_type="application/json"))
    reply = rig.send("POST", PATHS[client], {"model": "messages/claude-sonnet-5", **BODIES[client], **more})
    assert reply.status == 200, reply.body
    found = send(rig.gateway, "GET", f"/api/v1/requests?q=request_id:{reply.headers['x-request-id']}").json
    row: JsonObject = found["requests"][0]
    assert [row[f"{name}_tokens"] for name in ("input", "cache_read", "cache_write")] == [910, 700, 200]
    assert row["cache_saved_nano_usd"] == 700 * 900
    usage: JsonObject = reply.json["usage"]
    return usage


def test_a_chat_client_sees_what_was_read_and_written(rig: Rig) -> None:
    details = ask(rig, "chat")["prompt_tokens_details"]
    assert details["cached_tokens"] == 700


def test_a_responses_client_sees_what_was_read_and_written(rig: Rig) -> None:
    marked = [{"role": "user", "content": [{"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {}}]}]
    for more in ({}, {"input": marked}):
        usage = ask(rig, "responses", **more)
        assert usage["input_tokens"] == 910
        assert usage["input_tokens_details"]["cached_tokens"] == 700
