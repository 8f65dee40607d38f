"""A credential that an upstream repeats in its errors is not revealed, neither in whole replies nor in streams."""

import json

import pytest

from fakes.upstream import Answer
from rig import PROTOCOLS, Rig, walk
from scripting import JSON
from surface.vendor_events import chunk, message, response, sse, text_item
from wire_json import JsonObject

SECRET = b"sk-fake-upstream"

clients = pytest.mark.parametrize("client", PROTOCOLS)
upstreams = pytest.mark.parametrize("upstream", PROTOCOLS)


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


@pytest.mark.parametrize(
    ("client", "status", "upstream", "stream"),
    walk([PROTOCOLS, [200, 400, 401, 403, 404, 429, 500]], [PROTOCOLS, (False, True)]),
)
def test_an_error_does_not_repeat_the_upstreams_credential(
    gate: Rig, client: str, upstream: str, stream: bool, status: int
) -> None:
    gate.play(upstream, Answer(json.dumps(error(upstream)).encode(), status=status, content_type=JSON))
    answer = gate.ask(client, upstream, stream=stream)
    assert answer.status >= 400
    assert SECRET not in answer.body
    if status != 401:
        assert b"out of luck" in answer.body


@clients
@upstreams
def test_an_error_in_mid_stream_does_not_either(gate: Rig, client: str, upstream: str) -> None:
    gate.play(upstream, Answer(BROKEN[upstream]))
    answer = gate.ask(client, upstream, stream=True)
    assert b"Hel" in answer.body
    assert b"out of luck" in answer.body
    assert SECRET not in answer.body


@upstreams
def test_a_page_of_html_does_not_either(gate: Rig, upstream: str) -> None:
    gate.play(upstream, Answer(b"<html>%b out of luck</html>" % SECRET, status=500, content_type="text/html"))
    answer = gate.ask(upstream, upstream)
    assert b"out of luck" in answer.body
    assert SECRET not in answer.body
