"""What we send upstream fits the vendors' published types, for every pair of protocols: nothing unknown, nothing amiss.

The requests are the files of `tests/golden`, which are what upstreams got: a request with every field of each protocol,
and the largest of each real client. Kiro publishes no types.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from google.genai import types as google
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import BaseModel, ConfigDict, TypeAdapter

from rig import CLIENTS
from wire_json import Json, JsonObject

GOLDEN = Path(__file__).parent / "golden"
STRICT = ConfigDict(extra="forbid")


class GeminiRequest(BaseModel):
    """The SDK has no type of the whole body."""

    model_config = STRICT
    contents: list[google.Content]
    systemInstruction: google.Content | None = None
    tools: list[google.Tool] | None = None
    toolConfig: google.ToolConfig | None = None
    safetySettings: list[google.SafetySetting] | None = None
    generationConfig: google.GenerationConfig | None = None
    cachedContent: str | None = None
    labels: dict[str, str] | None = None
    serviceTier: google.ServiceTier | None = None


# In lists, because a list hands its strictness on to the types in it: whole replies, streams.
TYPES: dict[str, tuple[TypeAdapter[object], TypeAdapter[object]]] = {
    "chat": (
        TypeAdapter(list[CompletionCreateParamsNonStreaming], config=STRICT),
        TypeAdapter(list[CompletionCreateParamsStreaming], config=STRICT),
    ),
    "responses": (
        TypeAdapter(list[ResponseCreateParamsNonStreaming], config=STRICT),
        TypeAdapter(list[ResponseCreateParamsStreaming], config=STRICT),
    ),
    "messages": (
        TypeAdapter(list[MessageCreateParamsNonStreaming], config=STRICT),
        TypeAdapter(list[MessageCreateParamsStreaming], config=STRICT),
    ),
    "gemini": (TypeAdapter(list[GeminiRequest]), TypeAdapter(list[GeminiRequest])),
}
# Anthropic has taken these out of its types; the models that we send them to still accept them.
DEPRECATED = ("temperature", "top_p", "top_k")


def list_requests() -> dict[str, JsonObject]:
    """Return the bodies that were built, by client protocol, request and upstream protocol."""
    found: dict[str, JsonObject] = {}
    for path in sorted(GOLDEN.glob("*/*/*.json")):
        sent = msgspec.json.decode(path.read_bytes(), type=JsonObject)
        if path.stem in TYPES and path.parts[-3] != path.stem and "body" in sent:
            found["/".join(path.with_suffix("").parts[-3:])] = sent["body"]
    return found


REQUESTS = list_requests()


def check(protocol: str, body: JsonObject) -> None:
    """Raise ValueError if the body does not fit the published type."""
    adapted = dict(body)
    if protocol == "messages":
        adapted = {name: value for name, value in body.items() if name not in DEPRECATED}
    elif protocol == "chat" and isinstance(body["messages"], list):
        adapted["messages"] = [split(message) for message in body["messages"]]
    elif protocol == "responses":
        adapted["input"] = [identify(item) for item in body["input"]] if isinstance(body["input"], list) else None
    exhaust(TYPES[protocol][body.get("stream") is True].validate_json(msgspec.json.encode([adapted])))


def exhaust(value: object) -> None:
    """Look at every part of a validated value: what the types call iterable is validated only then."""
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | BaseModel):
        for inner in value:
            exhaust(inner)


def split(message: Json) -> Json:
    """Return a message with its text as a list of one part: a text fits whatever is called iterable."""
    text = message.get("content") if isinstance(message, dict) else None
    return {**message, "content": [{"type": "text", "text": text}]} if isinstance(text, str) else message


def identify(item: Json) -> Json:
    """Return an assistant's message with an id, which its type requires, but requests without a store do not have."""
    if isinstance(item, dict) and item.get("type") == "message" and item.get("role") == "assistant":
        return {"id": "msg_1", "status": "completed", **item}
    return item


@pytest.mark.parametrize("name", REQUESTS)
def test_what_an_upstream_is_sent_fits_its_vendors_types(name: str) -> None:
    check(name.rpartition("/")[2], REQUESTS[name])


def test_every_pair_is_checked() -> None:
    pairs = {(name.split("/")[0], name.split("/")[2]) for name in REQUESTS}
    assert pairs == {(client, upstream) for client in CLIENTS for upstream in TYPES if client != upstream}


@pytest.mark.parametrize("protocol", TYPES)
def test_an_unknown_field_and_a_wrong_type_are_found(protocol: str) -> None:
    body = next(body for name, body in REQUESTS.items() if name.endswith(f"/{protocol}"))
    turns = next(key for key in ("messages", "input", "contents") if key in body)
    changed: list[Json] = [{**body[turns][0], "unheard": 1}, *body[turns][1:]]
    for wrong in ({**body, "unheard": 1}, {**body, turns: 5}, {**body, turns: changed}):
        with pytest.raises(ValueError, match=r"Input should be|not permitted"):
            check(protocol, wrong)
