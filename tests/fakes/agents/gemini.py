"""The server's side of Gemini's generateContent: read requests, write replies as chunks or whole."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import msgspec

from fakes.agent import AgentRequest, Complaint, Json, Reply, Tool, objects, pieces, schema_fields
from fakes.upstream import Answer, ReceivedRequest

PLACEHOLDER = "skip_thought_signature_validator"
BODY_FIELDS = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model", "stream"}
KEYWORDS = {
    *("$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems"),
    *("minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties"),
    *("required", "propertyOrdering", "$schema"),  # the last in requests of Gemini CLI
}


def from_path(choose: Callable[[ReceivedRequest], Answer]) -> Callable[[ReceivedRequest], Answer]:
    """Put model and mode, which stand in the path, into the body; count tokens."""

    def choose_with_path(request: ReceivedRequest) -> Answer:
        model, _, verb = request.path.partition("?")[0].rpartition("/models/")[2].rpartition(":")
        if verb == "countTokens":
            return Answer(b'{"totalTokens": 1234}', content_type="application/json", chunked=False)
        body = {**request.json, "model": model, "stream": verb == "streamGenerateContent"}
        return choose(replace(request, body=msgspec.json.encode(body)))

    return choose_with_path


def read_request(body: Json) -> AgentRequest:
    if unknown := body.keys() - BODY_FIELDS:
        raise Complaint(f'Invalid JSON payload received. Unknown name "{unknown.pop()}": Cannot find field.')
    contents = objects(body.get("contents"))
    _check(contents)
    config = body.get("generationConfig")
    thinking = config.get("thinkingConfig") if isinstance(config, dict) else None
    responses = [part["functionResponse"] for part in _parts(contents) if "functionResponse" in part]
    return AgentRequest(
        model=str(body["model"]),
        tools=tuple(_tool(tool) for entry in objects(body.get("tools")) for tool in _list_declared(entry)),
        results=tuple(_result(response) for response in objects(responses)),
        streams=bool(body.get("stream")),
        thinks=isinstance(thinking, dict) and thinking.get("includeThoughts") is True,
    )


def _parts(contents: list[Json]) -> list[Json]:
    return [part for content in contents for part in objects(content.get("parts"))]


def _list_declared(entry: Json) -> list[Json]:
    return objects(entry.get("functionDeclarations"))


def _tool(tool: Json) -> Tool:
    schema = tool.get("parametersJsonSchema")
    if not 0 < len(str(tool["name"])) <= 128 or "parameters" in tool:
        raise Complaint(f"tools: {tool}")
    _check_schema(schema)
    return Tool(str(tool["name"]), fields=schema_fields(schema))


def _check_schema(schema: object) -> None:
    if not isinstance(schema, dict):
        return
    if unknown := schema.keys() - KEYWORDS:
        raise Complaint(f"schema: {unknown}")
    for holder in ("properties", "$defs"):
        for inner in dict(schema.get(holder) or {}).values():
            _check_schema(inner)
    for inner in (schema.get("items"), schema.get("additionalProperties"), *objects(schema.get("anyOf"))):
        _check_schema(inner)


def _result(response: Json) -> str:
    held = response["response"]
    assert isinstance(held, dict)
    return str(held.get("output", held.get("error", "")))


def _check(contents: list[Json]) -> None:
    roles = [content["role"] for content in contents]
    if not roles or roles[0] != "user" or roles[-1] != "user":
        raise Complaint("Please ensure that multiturn requests begin and end with a user role.")
    if any(one == other for one, other in pairwise(roles)):
        raise Complaint("Please ensure that multiturn requests alternate between user and model.")
    owed: list[object] = []
    for content in contents:
        parts = objects(content.get("parts"))
        if not parts or any(part == {"text": ""} for part in parts):
            raise Complaint("contents.parts must not be empty.")
        given = [response["name"] for part in parts if isinstance(response := part.get("functionResponse"), dict)]
        if content["role"] == "user" and given != owed:
            raise Complaint(
                "Please ensure that the number of function response parts is equal to the number of function call parts"
                f" of the function call turn: {owed} and {given}."
            )
        if content["role"] == "model":
            owed = _check_calls(parts)


def _check_calls(parts: list[Json]) -> list[object]:
    """Return the names of the calls; the first must be signed, by us or by the placeholder."""
    calls = [part for part in parts if "functionCall" in part]
    if calls and not calls[0].get("thoughtSignature"):
        raise Complaint("Function call is missing a thought_signature in functionCall parts.")
    for part in parts:
        signature = part.get("thoughtSignature")
        if signature not in (None, PLACEHOLDER) and not str(signature).startswith("fakeSealOfGemini"):
            raise Complaint(f"Corrupted thought signature: {signature}")
    return [call["functionCall"]["name"] for call in calls if isinstance(call["functionCall"], dict)]


def stream(reply: Reply) -> bytes:
    chunks = [_chunk(reply, [part], None) for part in _reply_parts(reply, cut=True)]
    chunks.append(_chunk(reply, [{"text": ""}], "STOP"))
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks)


def whole(reply: Reply) -> bytes:
    return msgspec.json.encode(_chunk(reply, list(_reply_parts(reply, cut=False)), "STOP"))


def complaint(message: str) -> bytes:
    return msgspec.json.encode({"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}})


def _reply_parts(reply: Reply, *, cut: bool) -> Iterator[Json]:
    for piece in pieces(reply.thought) if cut else filter(None, (reply.thought,)):
        yield {"text": piece, "thought": True}
    for piece in pieces(reply.text) if cut else (reply.text,):
        yield {"text": piece}
    if reply.call is not None:
        call = {"name": reply.call.tool.name, "args": msgspec.json.decode(reply.call.payload)}
        yield {"functionCall": call, "thoughtSignature": f"fakeSealOfGemini+/{reply.number:02}"}


def _chunk(reply: Reply, parts: list[Json], finish: str | None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    counts: Json = {"promptTokenCount": reply.input_tokens, "totalTokenCount": reply.input_tokens}
    if finish is not None:
        candidate["finishReason"] = finish
        total = reply.input_tokens + reply.output_tokens
        counts |= {"candidatesTokenCount": reply.output_tokens, "totalTokenCount": total}
    head: Json = {"modelVersion": reply.model, "responseId": f"fake{reply.number}"}
    return {"candidates": [candidate], "usageMetadata": counts, **head}
