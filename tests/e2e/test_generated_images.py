"""Images that a model has generated, over real sockets: Gemini's inlineData and Responses' image_generation_call."""

import msgspec
import openai
import pytest
from openai.types.responses import Response

from fakes.upstream import Answer
from gateway import KEY
from rig import Rig
from scripting import JSON
from sdk_replies_gemini import google_client
from wire_json import JsonObject

DATA = "iVBORw0KGgo="
PARTS: list[JsonObject] = [{"text": "Here:"}, {"inlineData": {"mimeType": "image/png", "data": DATA}}]
DRAWN: JsonObject = {
    "type": "image_generation_call",
    "id": "ig_1",
    "status": "completed",
    "result": DATA,
    "output_format": "webp",
}
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def drawn_by_gemini(stream: bool) -> Answer:
    whole = {"candidates": [{"content": {"parts": PARTS}, "finishReason": "STOP"}], "responseId": "r"}
    if not stream:
        return Answer(msgspec.json.encode(whole), content_type=JSON)
    begun = {"candidates": [{"content": {"parts": PARTS[:1]}}], "responseId": "r"}
    ended = {"candidates": [{"content": {"parts": PARTS[1:]}, "finishReason": "STOP"}], "responseId": "r"}
    return Answer(b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in (begun, ended)))


def drawn_by_responses(stream: bool) -> Answer:
    response: JsonObject = {
        "id": "resp_1",
        "object": "response",
        "model": "m",
        "status": "completed",
        "output": [DRAWN],
    }
    if not stream:
        return Answer(msgspec.json.encode(response), content_type=JSON)
    events: list[JsonObject] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**DRAWN, "status": "generating"}},
        {"type": "response.output_item.done", "output_index": 0, "item": DRAWN},
        {"type": "response.completed", "response": response},
    ]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return Answer(b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in numbered))


@modes
def test_a_responses_client_gets_an_image_of_gemini_as_an_item(rig: Rig, stream: bool) -> None:
    rig.play("gemini", drawn_by_gemini(stream))
    if stream:
        with rig.sdk.openai.responses.stream(model="gemini/m", input="Draw.") as events:
            kinds = [event.type for event in events]
            reply: Response = events.get_final_response()
        assert "response.image_generation_call.completed" in kinds
    else:
        reply = rig.sdk.openai.responses.create(model="gemini/m", input="Draw.")
    text, image = reply.output
    assert text.type == "message"
    assert image.type == "image_generation_call"
    assert image.result == DATA


@modes
def test_a_gemini_client_gets_an_image_of_responses_inline(rig: Rig, stream: bool) -> None:
    rig.play("responses", drawn_by_responses(stream))
    google = google_client(rig.gateway.url, KEY)
    if stream:
        replies = list(google.models.generate_content_stream(model="responses/m", contents="Draw."))
    else:
        replies = [google.models.generate_content(model="responses/m", contents="Draw.")]
    blobs = [part.inline_data for reply in replies for part in reply.parts or () if part.inline_data]
    assert [(blob.mime_type, blob.data) for blob in blobs] == [("image/webp", b"\x89PNG\r\n\x1a\n")]


def test_an_image_for_a_chat_client_is_dropped_as_a_loss(rig: Rig) -> None:
    rig.play("gemini", drawn_by_gemini(stream=False))
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Draw."}]
    answer = rig.sdk.openai.chat.completions.with_raw_response.create(model="gemini/m", messages=messages)
    assert answer.parse().choices[0].message.content == "Here:"
    assert answer.headers["x-dragoman-loss"] == "1"
