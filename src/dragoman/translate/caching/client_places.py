"""Find where something of an upstream request stands in the client's body."""

from collections.abc import Iterator
from typing import cast

import msgspec

from dragoman.translate.caching.request_pair import DifferentValues, RequestPair, name_tool
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.hub.request import Json

_SETTING_NAMES = (
    ("thinking", "reasoning", "reasoning_effort", "output_config", "thinkingConfig", "additionalModelRequestFields"),
    ("tool_choice", "toolConfig"),
    ("response_format", "text", "responseSchema", "responseJsonSchema", "responseMimeType", "output_config"),
    ("parallel_tool_calls",),
    ("verbosity", "text"),
    ("service_tier", "speed"),
)
_SNIPPET = 24  # characters by which a text is recognised that became part of another


def find_in_client(pair: RequestPair, place: DifferentValues, text: str, at: int) -> str | None:
    try:
        body = cast("Json", msgspec.json.decode(pair.later.client_body))
        sent = cast("Json", msgspec.json.decode(pair.later.body))
    except JSON_ERRORS:
        return None
    if pair.section == "settings":
        return _find_setting(body, pair.second[pair.common].pointer)
    if isinstance(place.later, str) and place.later:
        found = _find_text(body, sent, place, text[max(0, at - _SNIPPET) : at + _SNIPPET])
        if found is not None:
            return found
    if pair.section == "tools" and pair.common < len(pair.second):
        return _find_tool(body, name_tool(pair.second[pair.common].read()))
    return None


def _find_text(body: Json, sent: Json, place: DifferentValues, snippet: str) -> str | None:
    """Return where a client's text stands that is sent at a place: of equal ones the same in their order."""
    equal = [pointer for pointer, text in _walk_texts(sent) if text == place.later]
    number = equal.index(place.pointer) if place.pointer in equal else 0
    same = [pointer for pointer, text in _walk_texts(body) if text == place.later]
    if same:
        return same[min(number, len(same) - 1)]
    if len(snippet) < _SNIPPET // 2:
        return None
    return next((pointer for pointer, text in _walk_texts(body) if snippet in text), None)


def _find_setting(body: Json, pointer: str) -> str | None:
    name = pointer.rpartition("/")[2]
    names = next((group for group in _SETTING_NAMES if name in group), (name,))
    if not isinstance(body, dict):
        return None
    inner = body.get("generationConfig")
    for candidate in (name, *names):
        if candidate in body:
            return f"/{candidate}"
        if isinstance(inner, dict) and candidate in inner:
            return f"/generationConfig/{candidate}"
    return None


def _find_tool(body: Json, name: str) -> str | None:
    if not isinstance(body, dict):
        return None
    for pointer, tool in _list_client_tools(body.get("tools")):
        if name_tool(tool) == name:
            return pointer
    return None


def _list_client_tools(tools: Json) -> Iterator[tuple[str, Json]]:
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        declared = tool.get("functionDeclarations") if isinstance(tool, dict) else None
        if isinstance(declared, list):
            yield from ((f"/tools/{index}/functionDeclarations/{at}", one) for at, one in enumerate(declared))
        else:
            yield f"/tools/{index}", tool


def _walk_texts(value: Json) -> Iterator[tuple[str, str]]:
    """Yield all texts with their JSON pointers, in the order of the document."""
    stack: list[tuple[str, Json]] = [("", value)]
    while stack:
        pointer, inner = stack.pop()
        if isinstance(inner, str):
            yield pointer, inner
        elif isinstance(inner, dict):
            names = [str(name).replace("~", "~0").replace("/", "~1") for name in inner]
            stack += reversed([(f"{pointer}/{name}", one) for name, one in zip(names, inner.values(), strict=True)])
        elif isinstance(inner, list):
            stack += reversed([(f"{pointer}/{index}", one) for index, one in enumerate(inner)])
