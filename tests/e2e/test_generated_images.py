"""Images that a model has generated, over real sockets: Gemini's inlineData and Responses' image_generation_call."""

from collections.abc import Iterator

import msgspec
import openai
import pytest
from google import genai
from openai.types.responses import Response

from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, Running, provider_section, running
from sdk_replies_gemini import google_client
from wire_json import JsonObject

JSON = "application/json"
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


class Site:
    def __init__(self, gateway: Running, responses: FakeUpstream, gemini: FakeUpstream) -> None:
        self.responses, self.gemini = responses, gemini
        self.openai = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0)
        self.google: genai.Client = google_client(gateway.url, KEY)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with FakeUpstream() as responses, FakeUpstream() as gemini:
        fakes = {"responses": responses, "gemini": gemini}
        toml = "[retry]\nattempts = 1\n" + "\n".join(provider_section(name, at.url, name) for name, at in fakes.items())
        with running(toml, tmp_path_factory.mktemp("gateway")) as gateway:
            yield Site(gateway, responses, gemini)


@modes
def test_a_responses_client_gets_an_image_of_gemini_as_an_item(site: Site, stream: bool) -> None:
    site.gemini.answers = [drawn_by_gemini(stream)]
    if stream:
        with site.openai.responses.stream(model="gemini/m", input="Draw.") as events:
            kinds = [event.type for event in events]
            reply: Response = events.get_final_response()
        assert "response.image_generation_call.completed" in kinds
    else:
        reply = site.openai.responses.create(model="gemini/m", input="Draw.")
    text, image = reply.output
    assert text.type == "message"
    assert image.type == "image_generation_call"
    assert image.result == DATA


@modes
def test_a_gemini_client_gets_an_image_of_responses_inline(site: Site, stream: bool) -> None:
    site.responses.answers = [drawn_by_responses(stream)]
    if stream:
        replies = list(site.google.models.generate_content_stream(model="responses/m", contents="Draw."))
    else:
        replies = [site.google.models.generate_content(model="responses/m", contents="Draw.")]
    blobs = [part.inline_data for reply in replies for part in reply.parts or () if part.inline_data]
    assert [(blob.mime_type, blob.data) for blob in blobs] == [("image/webp", b"\x89PNG\r\n\x1a\n")]


def test_an_image_for_a_chat_client_is_dropped_as_a_loss(site: Site) -> None:
    site.gemini.answers = [drawn_by_gemini(stream=False)]
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Draw."}]
    answer = site.openai.chat.completions.with_raw_response.create(model="gemini/m", messages=messages)
    assert answer.parse().choices[0].message.content == "Here:"
    assert answer.headers["x-dragoman-loss"] == "1"
