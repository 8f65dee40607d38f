"""Find the fields of a request body that the vendor's own SDK does not accept."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pydantic
from anthropic.types.beta import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

TYPES: dict[str, Any] = {
    "chat": completion_create_params.CompletionCreateParams,
    "responses": response_create_params.ResponseCreateParams,
    "messages": message_create_params.MessageCreateParams,
}


@cache
def _adapter(protocol: str) -> pydantic.TypeAdapter[object]:
    return pydantic.TypeAdapter(TYPES[protocol])


# JSON Schema is an open language, of which the SDK's types name a few words only; and the API takes sampling
# parameters under the version that we send, while the SDK's types are those of the next one.
OPEN = re.compile(r"/tools/\d+/input_schema/.*|/(temperature|top_p|top_k)")


def complaints(protocol: str, body: dict[str, object]) -> list[str]:
    """Values of the wrong type, and fields that the SDK has never heard of; none where the vendor has no SDK."""
    if protocol not in TYPES:
        return []
    items = body.get("input")
    body = {**body, "input": [_with_id(item) for item in items]} if isinstance(items, list) else body
    try:
        read = _adapter(protocol).validate_python(body)
        return [at + ": unknown to the SDK" for at in _unheard(body, _whole(read), "") if not OPEN.fullmatch(at)]
    except pydantic.ValidationError as error:
        return [f"{'/'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]


def _with_id(item: object) -> object:
    """The API takes an assistant's message without its id, as it must where nothing is stored; the type does not."""
    if isinstance(item, dict) and item.get("role") == "assistant":
        return {"id": "msg_1", "status": "completed", **item}
    return item


def _whole(value: object) -> object:
    """Iterables are checked only when they are read."""
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    if isinstance(value, str | int | float | bool | None):
        return value
    assert hasattr(value, "__iter__"), value
    return [_whole(inner) for inner in value]


def _unheard(sent: object, read: object, at: str) -> Iterator[str]:
    if isinstance(sent, dict) and isinstance(read, dict):
        for name, value in sent.items():
            if name not in read:
                yield f"{at}/{name}"
            else:
                yield from _unheard(value, read[name], f"{at}/{name}")
    elif isinstance(sent, list) and isinstance(read, list):
        for place, (value, received) in enumerate(zip(sent, read, strict=True)):
            yield from _unheard(value, received, f"{at}/{place}")
