"""What echo reads in a request: the last text of the user, tool results, requested calls and requested schemas."""

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from dragoman.hub.request import (
    Audio,
    Custom,
    Document,
    FileId,
    Function,
    Image,
    Inline,
    Json,
    Link,
    Media,
    Part,
    Pick,
    Refusal,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from dragoman.passes.adapt_tools import find_reference

_CALL = re.compile(r"\bcall\s+([^\s{]+)[ \t]*(.*)", re.IGNORECASE)

Offered = Function | Custom


class RequestedCall(Struct, frozen=True):
    tool: Offered
    arguments: str


def last_text(request: Request) -> str:
    """Return the last text of the user; media are described in their place."""
    for turn in reversed(request.turns):
        if turn.role is Role.USER:
            return "\n".join(text for part in turn.parts if (text := _part_text(part)))
    return ""


def results_text(request: Request) -> str | None:
    """Return the latest tool results as text; None if something was said after them."""
    results: list[ToolResult] = []
    for part in _parts_backwards(request):
        if not isinstance(part, ToolResult):
            break
        results.append(part)
    if not results:
        return None
    names = {part.id: part.name for part in _parts_backwards(request) if isinstance(part, ToolCall)}
    return "\n".join(_result_text(result, names) for result in reversed(results))


def requested_calls(request: Request, text: str) -> list[RequestedCall]:
    """Return the calls that the text or the tool choice requests."""
    tools, choice = _offered_tools(request), request.tool_choice
    pick = choice.pick if choice is not None else Pick.AUTO
    if not tools or pick is Pick.NONE or results_text(request) is not None:
        return []
    if choice is not None and pick is Pick.NAMED:
        tools = [tool for tool in tools if (tool.name, tool.namespace) == (choice.name, choice.namespace)]
    calls = list(_find_calls(text, tools))
    if not calls and tools and pick in (Pick.REQUIRED, Pick.NAMED):
        calls = [RequestedCall(tools[0], _arguments(tools[0], "", text))]
    return calls[:1] if request.parallel is False else calls


def requests_thinking(request: Request) -> bool:
    reasoning = request.reasoning
    if request.model == "echo-think":
        return True
    if reasoning is None or reasoning.effort == "none":
        return False
    if reasoning.switch is not None:
        return reasoning.switch.value != "disabled"
    return reasoning.effort is not None or bool(reasoning.budget)


def count_input_words(request: Request) -> int:
    return sum(len(_plain_text(part).split()) for part in _parts_backwards(request))


def _parts_backwards(request: Request) -> Iterator[Part]:
    for turn in reversed(request.turns):
        yield from reversed(turn.parts)


def _offered_tools(request: Request) -> list[Offered]:
    allowed = request.tool_choice.allowed if request.tool_choice is not None else None
    tools = [tool for tool in request.tools if isinstance(tool, Function | Custom)]
    return tools if allowed is None else [tool for tool in tools if tool.name in allowed]


def _find_calls(text: str, tools: list[Offered]) -> Iterator[RequestedCall]:
    by_name = {name: tool for tool in tools for name in (f"{tool.namespace}__{tool.name}", tool.name)}
    for line in text.splitlines():
        for found in _CALL.finditer(line):
            tool = by_name.get(found[1]) or by_name.get(found[1].rstrip(".,;:!?"))
            if tool is not None:
                yield RequestedCall(tool, _arguments(tool, found[2].strip(), text))


def _arguments(tool: Offered, given: str, text: str) -> str:
    if isinstance(tool, Custom):
        return given or text
    candidate = given[: given.rfind("}") + 1]
    try:
        if isinstance(msgspec.json.decode(candidate), dict):
            return candidate
    except (msgspec.DecodeError, RecursionError):
        pass
    return msgspec.json.encode(make_example(tool.parameters)).decode()


def _result_text(result: ToolResult, names: dict[str, str]) -> str:
    content = "\n".join(text for part in result.content if (text := _part_text(part)))
    verb = "failed" if result.is_error else "returned"
    return f"{names.get(result.call_id, 'The tool')} {verb}: {content}"


def _part_text(part: Part) -> str:
    match part:
        case Text(text=text):
            return text
        case Image(source=source):
            return f"[image {_describe_media(source)}]"
        case Document(source=str() as text, title=title):
            return f"[document {title or 'text/plain'}, {len(text.encode())} bytes]"
        case Document(source=source) if not isinstance(source, str):
            return f"[document {_describe_media(source)}]"
        case Audio(source=source):
            return f"[audio {_describe_media(source)}]"
        case _:
            return ""


def _describe_media(source: Media) -> str:
    match source:
        case Inline(media_type=media_type, data=data):
            return f"{media_type}, {len(data) * 3 // 4 - data[-2:].count('=')} bytes"
        case Link(url=url):
            return url
        case FileId(id=id):
            return id


def _plain_text(part: Part) -> str:
    match part:
        case Text(text=text) | Refusal(text=text) | Thinking(text=text):
            return text
        case ToolCall(name=name, arguments=arguments):
            return f"{name} {arguments}"
        case ToolResult(content=content):
            return " ".join(map(_part_text, content))
        case _:
            return ""


MAX_DEPTH = 32  # of recursive schemas

_BY_FORMAT = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "echo@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}


def make_example(schema: Json) -> Json:
    return _make_example(schema, schema, 0)


def _make_example(schema: Json, root: Json, depth: int) -> Json:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return {} if depth == 0 else None
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _make_example(find_reference(reference, root), root, depth + 1)
    merged = _merge_schemas(schema, root, depth)
    return _example_of_type(merged, root, depth)


def _merge_schemas(schema: Mapping[str, Json], root: Json, depth: int) -> Mapping[str, Json]:
    """Return the schema merged with all of `allOf` and the first of `anyOf` or `oneOf`."""
    parts: list[Json] = list(_list(schema, "allOf"))
    for key in ("anyOf", "oneOf"):
        parts += _list(schema, key)[:1]
    out = dict(schema)
    for part in parts:
        if isinstance(part, Mapping) and isinstance(part.get("$ref"), str):
            part = find_reference(part["$ref"], root)
        if isinstance(part, Mapping) and depth < MAX_DEPTH:
            taken = _merge_schemas(part, root, depth + 1)
            properties = {**_mapping(out, "properties"), **_mapping(taken, "properties")}
            required = [*_list(out, "required"), *_list(taken, "required")]
            out = {**taken, **out, "properties": properties, "required": required}
    return out


def _example_of_type(schema: Mapping[str, Json], root: Json, depth: int) -> Json:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    match kind:
        case "string":
            return _example_text(schema)
        case "integer" | "number":
            return _example_number(schema, whole=kind == "integer")
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            minimum = schema.get("minItems")
            count = min(minimum, 100) if isinstance(minimum, int) else 0
            return [_make_example(schema.get("items", {}), root, depth + 1) for _ in range(count)]
        case _:
            properties = _mapping(schema, "properties")
            names = [name for name in _list(schema, "required") if isinstance(name, str)]
            return {name: _make_example(properties.get(name, {}), root, depth + 1) for name in names}


def _example_text(schema: Mapping[str, Json]) -> str:
    known = _BY_FORMAT.get(str(schema.get("format")))
    minimum = schema.get("minLength")
    return known or "echo".ljust(min(minimum, 1000) if isinstance(minimum, int) else 0, "o")


def _example_number(schema: Mapping[str, Json], *, whole: bool) -> int | float:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    value: int | float = 0
    if isinstance(low, int | float):
        value = low
    elif isinstance(above, int | float):
        value = above + 1
    elif isinstance(high, int | float):
        value = min(0, high)
    elif isinstance(below, int | float):
        value = min(0, below - 1)
    return -int(-value // 1) if whole else value


def _list(schema: Mapping[str, Json], key: str) -> list[Json]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _mapping(schema: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}
