"""Every reply, whole or streamed, is complete by the vendor's published schema: no required field is missing.

The vendors' SDKs fill in what is missing, so their types alone do not show it: `REQUIRED` lists, by the type of an
object, the fields that the published schemas require and that the SDKs' types allow to be absent.
"""

from collections.abc import Iterable, Iterator
from itertools import product

import msgspec
import pytest
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from google.genai.types import GenerateContentResponse
from openai.types import Model as OpenAiModel
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.events import CallBlock, Event, Failed, Opened
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ListedModel
from dragoman.translate.protocols import PROTOCOLS
from laws import run
from reply_bodies import FIXTURES
from test_any_reply import CLIENTS, ISSUER, client_of, context_for, frames_of, run_stages, upstream_of
from wire_json import Json, JsonObject

EVENTS: dict[str, TypeAdapter[object]] = {
    "chat": TypeAdapter(ChatCompletionChunk),
    "responses": TypeAdapter(ResponseStreamEvent),
    "messages": TypeAdapter(RawMessageStreamEvent),
    "gemini": TypeAdapter(GenerateContentResponse),
}
WHOLE: dict[str, TypeAdapter[object]] = {
    "chat": TypeAdapter(ChatCompletion),
    "responses": TypeAdapter(Response),
    "messages": TypeAdapter(Message),
    "gemini": TypeAdapter(GenerateContentResponse),
}
ENDED = "stop_reason stop_sequence stop_details container"
TOKENS = (
    "input_tokens output_tokens cache_creation_input_tokens cache_read_input_tokens output_tokens_details "
    "server_tool_use"
)
RESPONSE = (
    "id created_at completed_at status incomplete_details model previous_response_id instructions output error tools "
    "tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature "
    "reasoning usage max_output_tokens max_tool_calls store background service_tier metadata safety_identifier "
    "prompt_cache_key"
)
# (protocol, the value of `type` or `object`) -> the fields of such an object, and of an object in one of its fields.
REQUIRED: dict[tuple[str, str], dict[str, str]] = {
    ("messages", "message"): {
        "": f"id role content model usage {ENDED}",
        "usage": f"{TOKENS} cache_creation service_tier inference_geo",
    },
    ("messages", "message_delta"): {"delta": ENDED, "usage": TOKENS},
    ("messages", "text"): {"": "text citations"},
    ("messages", "thinking"): {"": "thinking signature"},
    ("messages", "tool_use"): {"": "id name input caller"},
    ("messages", "server_tool_use"): {"": "id name input caller"},
    ("messages", "web_search_tool_result"): {"": "tool_use_id content caller"},
    ("messages", "web_fetch_tool_result"): {"": "tool_use_id content caller"},
    ("messages", "web_search_result"): {"": "encrypted_content page_age title url"},
    ("messages", "refusal"): {"": "category explanation"},
    ("chat", "chat.completion"): {
        "": "id choices created model",
        "choices": "finish_reason index message logprobs",
    },
    ("chat", "chat.completion.chunk"): {"": "id choices created model", "choices": "delta finish_reason index"},
    ("responses", "response"): {"": RESPONSE},
    ("responses", "message"): {"": "id status role content"},
    ("responses", "function_call"): {"": "id call_id name arguments status"},
    ("responses", "reasoning"): {"": "id summary"},
    ("responses", "output_text"): {"": "text annotations"},
}


def missing(protocol: str, value: Json, at: str = "") -> Iterator[str]:
    """Where a required field is absent."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from missing(protocol, item, f"{at}/{index}")
    if not isinstance(value, dict):
        return
    kind = value.get("object") or value.get("type")
    for field, names in REQUIRED.get((protocol, str(kind)), {}).items():
        for holder in _objects(value, field):
            yield from (f"{at}/{field}: {name}" for name in names.split() if name not in holder)
    for key, item in value.items():
        if key not in ("input", "arguments"):  # of a tool call, which may hold anything
            yield from missing(protocol, item, f"{at}/{key}")


def _objects(value: JsonObject, field: str) -> list[JsonObject]:
    inner = value.get(field) if field else value
    return [item for item in (inner if isinstance(inner, list) else [inner]) if isinstance(item, dict)]


def replies() -> Iterator[tuple[str, list[Event]]]:
    for upstream in CLIENTS:
        for number, frames in enumerate(frames_of(upstream)):
            yield f"{upstream} {number}", run(upstream_of(upstream).decoder(ISSUER, Ledger()), frames)
        whole = (FIXTURES / upstream / "whole.json").read_bytes()
        yield f"{upstream} whole", upstream_of(upstream).decode_whole(whole, ISSUER, Ledger())


def has_custom_call(events: list[Event]) -> bool:
    """OpenAI streams such calls in Chat as well, but its schema of chunks does not have them."""
    return any(
        isinstance(event, Opened) and isinstance(event.what, CallBlock) and event.what.custom for event in events
    )


def encode_stream(client: str, events: list[Event]) -> list[JsonObject]:
    encoder = client_of(client).encoder(context_for(client), Ledger())
    frames = run(SseFramer(), run(encoder, run_stages(events, client_of(client).serial_blocks)))
    data = [frame.data for frame in frames if isinstance(frame, Frame) and frame.data != b"[DONE]"]
    return [msgspec.json.decode(json, type=JsonObject) for json in data]


def encode_whole(client: str, events: list[Event]) -> JsonObject | None:
    """None: the reply is an error."""
    try:
        body = client_of(client).encode_whole(run_stages(events, False), context_for(client), Ledger())
    except RequestError:
        return None
    return msgspec.json.decode(body, type=JsonObject)


def faults(client: str, shape: TypeAdapter[object], bodies: Iterable[JsonObject]) -> list[str]:
    found: list[str] = []
    for body in bodies:
        found += missing(client, body)
        try:
            shape.validate_python(body)
        except ValueError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_every_event_of_a_translated_stream_is_complete(client: str) -> None:
    for name, events in replies():
        if not isinstance(events[-1], Failed) and not (client == "chat" and has_custom_call(events)):
            assert not faults(client, EVENTS[client], encode_stream(client, events)), name


@pytest.mark.parametrize("client", CLIENTS)
def test_every_translated_whole_reply_is_complete(client: str) -> None:
    for name, events in replies():
        body = encode_whole(client, events)
        assert body is None or not faults(client, WHOLE[client], [body]), name


MODELS: dict[str, tuple[type[BaseModel] | None, str]] = {
    "messages": (
        ModelInfo,
        "id type display_name created_at capabilities max_input_tokens max_tokens lifecycle line deprecated_at "
        "retires_at",
    ),
    "chat": (OpenAiModel, "id object created owned_by"),
    "responses": (OpenAiModel, "id object created owned_by"),
    "gemini": (None, "name baseModelId version"),  # the SDK renames some of them before it validates
}


@pytest.mark.parametrize("client", MODELS)
def test_the_list_of_models_is_complete(client: str) -> None:
    models = PROTOCOLS[client].models
    assert models is not None
    shape, required = MODELS[client]
    for model, key in product((ListedModel("a", max_input=10, max_output=5), ListedModel("b")), required.split()):
        described = msgspec.json.decode(models.render_one(model), type=JsonObject)
        assert key in described
        if shape is not None:
            shape.model_validate(described)


def test_a_missing_field_is_found() -> None:
    text = {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {}}
    assert "/delta: container" in list(missing("messages", text))
