"""A large picture costs what its vendor makes of it, in every path where the gateway must estimate."""

import base64

import msgspec
import pytest

from fakes.upstream import Answer
from media_files import png
from rig import PATHS, PROTOCOLS, Rig, walk

PICTURE = base64.b64encode(png(1024, 768, 300_000)).decode()
URL = "data:image/png;base64," + PICTURE
MOST = 2000  # of the 100,000 that its base64 would be as text
UNCOUNTED = {  # replies that tell no usage
    "chat": b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n",
    "responses": b'data: {"type":"response.completed","response":{"id":"r","status":"completed","output":'
    b'[{"type":"message","content":[{"type":"output_text","text":"Hi"}]}]}}\n\n',
    "messages": b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Hi"}}\n\n'
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\ndata: {"type":"message_stop"}\n\n',
}


def body(client: str, model: str, **fields: object) -> bytes:
    match client:
        case "chat":
            part: object = {"type": "image_url", "image_url": {"url": URL}}
            fields["messages"] = [{"role": "user", "content": [part]}]
        case "responses":
            fields["input"] = [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]
        case _:
            source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
            fields |= {
                "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
                "max_tokens": 9,
            }
    return msgspec.json.encode({"model": model, **fields})


@pytest.mark.parametrize(("client", "upstream", "stream"), walk([PROTOCOLS, PROTOCOLS], [(False, True)]))
def test_unreported_usage_of_a_picture_is_estimated_by_its_size(
    rig: Rig, client: str, upstream: str, stream: bool
) -> None:
    rig.play(upstream, Answer(UNCOUNTED[upstream]))
    answered = rig.send("POST", PATHS[client], body(client, rig.model(upstream), stream=stream))
    assert answered.status == 200, answered
    usage = rig.gateway.outcome(answered.headers["x-request-id"]).usage
    assert usage
    assert usage.source.value == "estimated"
    assert 500 <= usage.input <= MOST


@pytest.mark.parametrize("client", ["messages", "responses"])
def test_counting_tokens_estimates_a_picture_alike(rig: Rig, client: str) -> None:
    path = {"messages": "/v1/messages/count_tokens", "responses": "/v1/responses/input_tokens"}[client]
    answered = rig.send("POST", path, body(client, rig.model("chat")))
    assert answered.headers["x-dragoman-estimate"] == "1"
    assert 500 <= answered.json["input_tokens"] <= MOST
