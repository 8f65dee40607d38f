"""Kiro's rules for a request body, implemented a second time: list the rules that a body breaks."""

import re
from collections.abc import Iterator

import msgspec

from narrowing import expect_all
from wire_json import JsonObject

Wire = JsonObject

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_TOP = {"profileArn", "agentMode", "additionalModelRequestFields", "conversationState"}
_STATE = {"conversationId", "chatTriggerType", "agentTaskType", "history", "currentMessage"}
_USER = {"content", "modelId", "origin", "images", "userInputMessageContext"}
_ASSISTANT = {"content", "toolUses", "reasoningContent"}
_CONTEXT = {"toolResults", "tools"}
_SUBSCHEMAS = ("items", "not", "if", "then", "else", "contains", "propertyNames")


def broken_rules(body: bytes) -> list[str]:
    """Everything that is wrong with a body; an empty list is a body that Kiro takes."""
    payload = msgspec.json.decode(body, type=Wire)
    state = payload["conversationState"]
    assert isinstance(state, dict)
    history = state.get("history", [])
    entries = [*history, state["currentMessage"]]
    return [
        *_unknown(payload, _TOP, "top"),
        *_unknown(state, _STATE, "state"),
        *_order(entries),
        *(rule for entry in entries for rule in _entry(entry)),
        *_check_pairing(entries),
        *_offer(entries),
        *_nothings(payload, ""),
    ]


def _unknown(held: Wire, known: set[str], where: str) -> Iterator[str]:
    yield from (f"{where} holds {key}" for key in held.keys() - known)


def _order(entries: list[Wire]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        expected = "assistantResponseMessage" if index % 2 else "userInputMessage"
        if list(entry) != [expected]:
            yield f"entry {index} is {list(entry)}, not {expected}"
    if len(entries) % 2 == 0:
        yield "the current message is not a user's"


def _entry(entry: Wire) -> Iterator[str]:
    [(kind, message)] = entry.items()
    assert isinstance(message, dict)
    yield from _unknown(message, _USER if kind == "userInputMessage" else _ASSISTANT, kind)
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        yield f"{kind} has no words"
    yield from _unknown(message.get("userInputMessageContext", {}), _CONTEXT, "context")
    images = message.get("images", [])
    if len(images) > 10:
        yield "too many images"
    for image in images:
        if image["format"] not in ("png", "jpeg", "gif", "webp") or image["source"]["bytes"].startswith("data:"):
            yield f"an image is {image['format']}"
    reasoning = message.get("reasoningContent")
    if reasoning is not None and len(reasoning) != 1:
        yield "reasoning is both text and redacted"


def _check_pairing(entries: list[Wire]) -> Iterator[str]:
    seen: set[str] = set()
    due: list[str] = []
    for index, entry in enumerate(entries):
        [message] = entry.values()
        assert isinstance(message, dict)
        results = [result["toolUseId"] for result in _results(message)]
        if sorted(results) != sorted(due):
            yield f"entry {index} answers {results}, and {due} were asked"
        due = [use["toolUseId"] for use in message.get("toolUses", [])]
        if seen & set(due) or len(set(due)) != len(due):
            yield f"entry {index} repeats an id of {due}"
        seen |= set(due)
        for use in message.get("toolUses", []):
            if not isinstance(use["input"], dict):
                yield "an input is no object"
            if any(not key for key in _keys(use["input"])):
                yield "an input has an empty key"
        for result in _results(message):
            if result["status"] not in ("success", "error") or not result["content"]:
                yield "a result has no status or content"
            if any(set(block) != {"text"} or not block["text"] for block in result["content"]):
                yield "a result holds what is not text"


def _results(message: Wire) -> list[JsonObject]:
    return expect_all(dict, message.get("userInputMessageContext", {}).get("toolResults", []))


def _offer(entries: list[Wire]) -> Iterator[str]:
    *earlier, current = (next(iter(entry.values())) for entry in entries)
    for message in earlier:
        if "tools" in message.get("userInputMessageContext", {}):
            yield "tools stand in the history"
    tools = [tool["toolSpecification"] for tool in current.get("userInputMessageContext", {}).get("tools", [])]
    names = [tool["name"] for tool in tools]
    if len(set(names)) != len(names):
        yield "a tool is offered twice"
    used = {use["name"] for message in earlier for use in message.get("toolUses", [])}
    if used - set(names):
        yield f"{used - set(names)} are named and not offered"
    for tool in tools:
        if not _NAME.fullmatch(tool["name"]):
            yield f"{tool['name']!r} is no name"
        if not tool["description"].strip() or len(tool["description"]) > 10_000:
            yield f"the description of {tool['name']} is empty or too long"
        schema = tool["inputSchema"]["json"]
        if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
            yield f"the schema of {tool['name']} is no object"
        yield from _schema(schema)


def _schema(schema: object) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield f"{schema!r} is no schema"
        return
    for key in ("additionalProperties", "$ref", "$defs", "definitions", "$schema"):
        if key in schema:
            yield f"a schema holds {key}"
    for key, value in schema.items():
        if (value is None or value == []) and key not in ("const", "default", "examples"):
            yield f"a schema's {key} is {value!r}"
    for name in ("properties", "patternProperties"):
        for held in schema.get(name, {}).values():
            yield from _schema(held)
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for held in schema.get(name, []):
            yield from _schema(held)
    for name in _SUBSCHEMAS:
        if name in schema and not isinstance(schema[name], list):
            yield from _schema(schema[name])


def _nothings(value: object, at: str) -> Iterator[str]:
    """Nulls, empty lists and empty contexts; what a tool's input holds is the client's."""
    if at.endswith(("/input", "/inputSchema/json")):
        return
    if value is None or value == [] or (value == {} and at.endswith(("Context", "Message", "Fields"))):
        yield f"{at} is {value!r}"
    held: list[tuple[object, object]] = []
    if isinstance(value, dict):
        held = list(value.items())
    elif isinstance(value, list):
        held = list(enumerate(value))
    for key, inner in held:
        yield from _nothings(inner, f"{at}/{key}")


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, held in value.items():
            yield key
            yield from _keys(held)
    elif isinstance(value, list):
        for held in value:
            yield from _keys(held)
