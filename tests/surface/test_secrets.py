"""A credential that an upstream repeats in its errors is not revealed, neither in whole replies nor in streams."""

import json

import pytest

from fakes.upstream import Answer
from surface.outside import JSON, PROTOCOLS, Outside, sse
from surface.vendor_replies import chunk, message, response, text_item
from wire_json import JsonObject

SECRET = b"sk-fake-upstream"

clients = pytest.mark.parametrize("client", PROTOCOLS)
upstreams = pytest.mark.parametrize("upstream", PROTOCOLS)
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def error(upstream: str) -> JsonObject:
    failure = {"type": "api_error", "message": f"Your key {SECRET.decode()} (Bearer {SECRET.decode()}) is out of luck."}
    return {"type": "error", "error": failure} if upstream == "messages" else {"error": {**failure, "param": None}}


BROKEN = {
    "chat": sse(chunk({"role": "assistant", "content": "Hel"}), error("chat")),
    "messages": sse(
        {"type": "message_start", "message": message()},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hel"}},
        error("messages"),
    ),
    "responses": sse(
        {"type": "response.created", "response": response(status="in_progress")},
        {"type": "response.output_item.done", "output_index": 0, "item": text_item("Hel")},
        {"type": "response.failed", "response": response(status="failed", error=error("responses")["error"])},
    ),
}


@clients
@upstreams
@modes
@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 429, 500])
def test_an_error_does_not_repeat_the_upstreams_credential(
    gate: Outside, client: str, upstream: str, stream: bool, status: int
) -> None:
    gate.play(upstream, Answer(json.dumps(error(upstream)).encode(), status=status, content_type=JSON))
    answer = gate.ask(client, f"{upstream}/m", stream)
    assert answer.status >= 400
    assert SECRET not in answer.body
    if status != 401:
        assert b"out of luck" in answer.body


@clients
@upstreams
def test_an_error_in_mid_stream_does_not_either(gate: Outside, client: str, upstream: str) -> None:
    gate.play(upstream, Answer(BROKEN[upstream]))
    answer = gate.ask(client, f"{upstream}/m", True)
    assert b"Hel" in answer.body
    assert b"out of luck" in answer.body
    assert SECRET not in answer.body


@upstreams
def test_a_page_of_html_does_not_either(gate: Outside, upstream: str) -> None:
    gate.play(upstream, Answer(b"<html>%b out of luck</html>" % SECRET, status=500, content_type="text/html"))
    answer = gate.ask(upstream, f"{upstream}/m")
    assert b"out of luck" in answer.body
    assert SECRET not in answer.body
