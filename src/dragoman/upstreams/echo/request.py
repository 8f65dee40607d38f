"""What echo reads in a request: the last text of the user, tool results, requested calls and requested schemas."""

import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.hub.request import (
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
from dragoman.translate.passes.adapt_tools import find_reference

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
    if isinstance(parse_or(candidate, object, None), dict):
        return candidate
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
EXAMPLES: dict[object, Json] = {
    "string": "echo",
    "integer": 0,
    "number": 0,
    "boolean": False,
    "null": None,
    "array": [],
}


def make_example(schema: Json) -> Json:
    """Return a value of the types that a schema requires; its further conditions are not read."""
    return _make_example(schema, schema, 0)


def _make_example(schema: Json, root: Json, depth: int) -> Json:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return {} if depth == 0 else None
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    if choices := _list(schema, "enum"):
        return choices[0]
    inner = find_reference(schema.get("$ref"), root)
    for alternatives in ("anyOf", "oneOf", "allOf"):
        inner = inner or next(iter(_list(schema, alternatives)), None)
    if inner is not None:
        return _make_example(inner, root, depth + 1)
    kind = next(iter(_list(schema, "type")), schema.get("type"))
    if kind in EXAMPLES:
        return EXAMPLES[kind]
    properties = schema.get("properties")
    named = properties if isinstance(properties, dict) else {}
    names = [name for name in _list(schema, "required") if isinstance(name, str)]
    return {name: _make_example(named.get(name, {}), root, depth + 1) for name in names}


def _list(schema: Mapping[str, Json], key: str) -> list[Json]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
