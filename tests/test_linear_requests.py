"""Law 4 for requests: whatever a client repeats in one, parsing and building it for any upstream takes linear time."""

from collections.abc import Callable

import msgspec
import pytest

from dragoman.translate.caching.comparison import ReportedInput, compare_requests
from dragoman.translate.caching.request_pair import CapturedRequest
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.passes.adapt_tools import adapt_tools
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.protocols.gemini.build_schema import clean_schema
from laws import assert_linear_function

Shape = Callable[[int], dict[str, object]]
UPSTREAMS = ("chat", "responses", "messages", "gemini", "kiro")


def numbers(size: int) -> range:
    return range(size)


def text_of(place: int) -> str:
    return f"word {place} "


# Chat


def chat(*messages: object, **fields: object) -> dict[str, object]:
    return {"model": "m", "messages": messages, **fields}


def chat_call(place: int) -> dict[str, object]:
    return {"id": f"call_{place}", "type": "function", "function": {"name": "tool", "arguments": "{}"}}


def chat_turns(size: int) -> dict[str, object]:
    turns = [{"role": role, "content": text_of(at)} for at in numbers(size) for role in ("user", "assistant")]
    return chat(*turns, {"role": "user", "content": "Go on."})


def chat_same_role(size: int) -> dict[str, object]:
    return chat(*({"role": "user", "content": text_of(at)} for at in numbers(size)))


def chat_calls(size: int) -> dict[str, object]:
    """Parallel calls whose results come in reverse order."""
    results = [{"role": "tool", "tool_call_id": f"call_{at}", "content": "x"} for at in reversed(numbers(size))]
    return chat(
        {"role": "user", "content": "Go."},
        {"role": "assistant", "tool_calls": [*map(chat_call, numbers(size))]},
        *results,
    )


def chat_same_ids(size: int) -> dict[str, object]:
    calls = [chat_call(0) for _ in numbers(size)]
    results = [{"role": "tool", "tool_call_id": "call_0", "content": "x"}] * size
    return chat({"role": "user", "content": "Go."}, {"role": "assistant", "tool_calls": calls}, *results)


def chat_unanswered(size: int) -> dict[str, object]:
    return chat(*({"role": "assistant", "tool_calls": [chat_call(at)]} for at in numbers(size)))


def chat_orphans(size: int) -> dict[str, object]:
    return chat(*({"role": "tool", "tool_call_id": f"call_{at}", "content": "x"} for at in numbers(size)))


def chat_parts(size: int) -> dict[str, object]:
    return chat({"role": "user", "content": [{"type": "text", "text": text_of(at)} for at in numbers(size)]})


def chat_tools(size: int) -> dict[str, object]:
    tools = [{"type": "function", "function": {"name": f"tool.{at}", "parameters": {}}} for at in numbers(size)]
    return chat({"role": "user", "content": "Go."}, tools=tools)


def chat_same_tools(size: int) -> dict[str, object]:
    tools = [
        {"type": "function", "function": {"name": f"{'t' * 70}{'.' * (at % 7)}", "parameters": {}}}
        for at in numbers(size)
    ]
    return chat({"role": "user", "content": "Go."}, tools=tools)


def chat_unknown(size: int) -> dict[str, object]:
    return chat({"role": "user", "content": "Go.", **{f"x{at}": at for at in numbers(size)}})


def chat_data_url(size: int) -> dict[str, object]:
    return chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "a/" * 20 * size}}]})


# Responses


def items(*given: object) -> dict[str, object]:
    return {"model": "m", "input": given}


def call_item(place: int) -> dict[str, object]:
    return {"type": "function_call", "call_id": f"call_{place}", "name": "tool", "arguments": "{}"}


def output_item(place: int) -> dict[str, object]:
    return {"type": "function_call_output", "call_id": f"call_{place}", "output": "x"}


def responses_calls(size: int) -> dict[str, object]:
    return items(*map(call_item, numbers(size)), *map(output_item, reversed(numbers(size))))


def responses_same_ids(size: int) -> dict[str, object]:
    return items(*(call_item(0) for _ in numbers(size)), *(output_item(0) for _ in numbers(size)))


def responses_messages(size: int) -> dict[str, object]:
    return items(
        *({"role": role, "content": text_of(at)} for at in numbers(size) for role in ("assistant", "assistant", "user"))
    )


def responses_reasoning(size: int) -> dict[str, object]:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "abc"}
    return items({"role": "user", "content": "Go."}, *([thought] * size), {"role": "user", "content": "Go on."})


def responses_searches(size: int) -> dict[str, object]:
    found = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
    return items({"role": "user", "content": "Go."}, *({"id": f"ws_{at}", **found} for at in numbers(size)))


# Messages


def messages(*given: object, **fields: object) -> dict[str, object]:
    return {"model": "m", "max_tokens": 9, "messages": given, **fields}


def messages_calls(size: int) -> dict[str, object]:
    uses = [{"type": "tool_use", "id": f"toolu_{at}", "name": "tool", "input": {}} for at in numbers(size)]
    results = [{"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": "x"} for at in reversed(numbers(size))]
    return messages(
        {"role": "user", "content": "Go."}, {"role": "assistant", "content": uses}, {"role": "user", "content": results}
    )


def messages_turns(size: int) -> dict[str, object]:
    return messages(*({"role": role, "content": text_of(at)} for at in numbers(size) for role in ("user", "assistant")))


def messages_same_role(size: int) -> dict[str, object]:
    return messages(*({"role": "assistant", "content": text_of(at)} for at in numbers(size)))


def messages_thoughts(size: int) -> dict[str, object]:
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": f"sig{at}"} for at in numbers(size)]
    return messages({"role": "user", "content": "Go."}, {"role": "assistant", "content": thoughts})


def messages_citations(size: int) -> dict[str, object]:
    cited = {"type": "web_search_result_location", "url": "https://example.com", "title": "t", "encrypted_index": "e"}
    texts = [{"type": "text", "text": "a", "citations": [cited]} for _ in numbers(size)]
    return messages({"role": "user", "content": "Go."}, {"role": "assistant", "content": texts})


def messages_searches(size: int) -> dict[str, object]:
    uses = [{"type": "server_tool_use", "id": f"s{at}", "name": "web_search", "input": {}} for at in numbers(size)]
    results = [
        {"type": "web_search_tool_result", "tool_use_id": f"s{at}", "content": []} for at in reversed(numbers(size))
    ]
    return messages({"role": "user", "content": "Go."}, {"role": "assistant", "content": [*uses, *results]})


def messages_system(size: int) -> dict[str, object]:
    system = [{"type": "text", "text": text_of(at), "cache_control": {"type": "ephemeral"}} for at in numbers(size)]
    return messages({"role": "user", "content": "Go."}, system=system)


# Gemini


def gemini(*contents: object, **fields: object) -> dict[str, object]:
    return {"contents": contents, **fields}


def gemini_call(place: int, **fields: object) -> dict[str, object]:
    return {"functionCall": {"name": "tool", "args": {}, **fields}}


def gemini_response(**fields: object) -> dict[str, object]:
    return {"functionResponse": {"name": "tool", "response": {"output": "x"}, **fields}}


def gemini_calls(size: int) -> dict[str, object]:
    """Parallel calls whose responses come in reverse order."""
    calls = [gemini_call(at, id=f"call_{at}") for at in numbers(size)]
    responses = [gemini_response(id=f"call_{at}") for at in reversed(numbers(size))]
    return gemini({"role": "model", "parts": calls}, {"role": "user", "parts": responses})


def gemini_calls_by_name(size: int) -> dict[str, object]:
    """Calls without ids, after calls that have the ids which would be made up for them."""
    named = [gemini_call(at, id=f"call_{at}") for at in range(size, 2 * size)]
    calls = [*named, *(gemini_call(at) for at in numbers(size))]
    responses = [gemini_response() for _ in numbers(2 * size)]
    return gemini({"role": "model", "parts": calls}, {"role": "user", "parts": responses})


def gemini_same_role(size: int) -> dict[str, object]:
    """One content for each piece of a stream, as SDKs replay it."""
    return gemini(*({"role": "user", "parts": [{"text": text_of(at)}], f"x{at}": 1} for at in numbers(size)))


def gemini_pieces(size: int) -> dict[str, object]:
    return gemini(*({"role": "model", "parts": [{"text": "word " * 50}]} for _ in numbers(size)))


def gemini_thoughts(size: int) -> dict[str, object]:
    thought = {"text": "word " * 50, "thought": True}
    return gemini(*({"role": "model", "parts": [thought]} for _ in numbers(size)))


def gemini_signatures(size: int) -> dict[str, object]:
    parts = [
        part
        for at in numbers(size)
        for part in ({"text": "hm", "thought": True}, {"text": text_of(at), "thoughtSignature": "c2lnbmVk"})
    ]
    return gemini({"role": "model", "parts": parts})


REQUESTS: dict[str, tuple[str, Shape, int]] = {
    "chat turns": ("chat", chat_turns, 500),
    "chat turns of one role": ("chat", chat_same_role, 1000),
    "chat calls, results reversed": ("chat", chat_calls, 700),
    "chat calls of one id": ("chat", chat_same_ids, 700),
    "chat calls without results": ("chat", chat_unanswered, 700),
    "chat results without calls": ("chat", chat_orphans, 700),
    "chat parts": ("chat", chat_parts, 1000),
    "chat tools": ("chat", chat_tools, 500),
    "chat tools of one name": ("chat", chat_same_tools, 300),
    "chat unknown fields": ("chat", chat_unknown, 1000),
    "chat data URL": ("chat", chat_data_url, 500),
    "responses calls, outputs reversed": ("responses", responses_calls, 700),
    "responses calls of one id": ("responses", responses_same_ids, 700),
    "responses messages": ("responses", responses_messages, 500),
    "responses reasoning": ("responses", responses_reasoning, 700),
    "responses searches": ("responses", responses_searches, 500),
    "messages calls, results reversed": ("messages", messages_calls, 700),
    "messages turns": ("messages", messages_turns, 500),
    "messages turns of one role": ("messages", messages_same_role, 1000),
    "messages thoughts": ("messages", messages_thoughts, 700),
    "messages citations": ("messages", messages_citations, 700),
    "messages searches": ("messages", messages_searches, 500),
    "messages system": ("messages", messages_system, 700),
    "gemini calls, responses reversed": ("gemini", gemini_calls, 700),
    "gemini calls by name": ("gemini", gemini_calls_by_name, 400),
    "gemini contents of one role": ("gemini", gemini_same_role, 1000),
    "gemini pieces of text": ("gemini", gemini_pieces, 1000),
    "gemini pieces of thought": ("gemini", gemini_thoughts, 1000),
    "gemini signatures": ("gemini", gemini_signatures, 500),
}


@pytest.mark.parametrize("shape", REQUESTS)
def test_parsing_a_request_takes_linear_time(shape: str) -> None:
    protocol, make, size = REQUESTS[shape]
    reader = PROTOCOLS[protocol].client
    assert reader

    def parse(body: bytes) -> None:
        try:
            reader.parse(body, Ledger())
        except RequestError:  # a refusal takes its time, too
            return

    assert_linear_function(parse, lambda size: msgspec.json.encode(make(size)), size)


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("shape", [pytest.param(shape, marks=pytest.mark.rest) for shape in REQUESTS])
def test_building_a_request_takes_linear_time(shape: str, upstream: str) -> None:
    protocol, make, size = REQUESTS[shape]
    reader, writer = PROTOCOLS[protocol].client, PROTOCOLS[upstream].upstream
    assert reader
    assert writer
    target = Target("model-1", "up", find_profile("model-1"))

    def build(body: bytes) -> None:
        try:
            request, _ = adapt_tools(reader.parse(body, Ledger()), writer.tool_limits, Ledger())
            writer.build(request, target, Ledger())
        except RequestError:
            return

    assert_linear_function(build, lambda size: msgspec.json.encode(make(size)), size)


# Schemas of tools


def enums(size: int) -> dict[str, object]:
    return {"oneOf": [{"enum": [*range(size)]}, {"enum": [*range(size, 2 * size)]}]}


def required(size: int) -> dict[str, object]:
    return {
        "allOf": [{"required": [f"a{at}" for at in numbers(size)]}, {"required": [f"b{at}" for at in numbers(size)]}]
    }


def merged(size: int) -> dict[str, object]:
    return {"allOf": [{"properties": {f"p{at}": {"type": "string"}}} for at in numbers(size)]}


def alternatives(size: int) -> dict[str, object]:
    return {"oneOf": [{"properties": {"kind": {"const": at}}, "required": ["kind"]} for at in numbers(size)]}


def shared(size: int) -> dict[str, object]:
    """A large definition, named by many references that all say something else about it."""
    properties = {f"p{at}": {"$ref": "#/$defs/Large", "description": f"No. {at}"} for at in numbers(size)}
    large = {"type": "object", "description": "word " * 20 * size, "properties": {f"q{at}": {} for at in numbers(size)}}
    return {"type": "object", "properties": properties, "$defs": {"Large": large}}


def chained(size: int) -> dict[str, object]:
    """Definitions that each name the next one twice."""
    defs: dict[str, object] = {
        f"T{at}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/T{at + 1}", "description": "d"} for key in "ab"},
        }
        for at in numbers(size)
    }
    return {"$ref": "#/$defs/T0", "description": "d", "$defs": {**defs, f"T{size}": {"type": "string"}}}


def merged_references(size: int) -> dict[str, object]:
    """The same with allOf, as older generators of schemas write it."""
    defs: dict[str, object] = {
        f"T{at}": {"type": "object", "properties": {key: {"allOf": [{"$ref": f"#/$defs/T{at + 1}"}]} for key in "ab"}}
        for at in numbers(size)
    }
    return {"allOf": [{"$ref": "#/$defs/T0"}], "$defs": {**defs, f"T{size}": {"type": "string"}}}


def aliases(size: int) -> dict[str, object]:
    """Names for names for a type, and a reference with a description to each."""
    defs: dict[str, object] = {f"T{at}": {"$ref": f"#/$defs/T{at + 1}"} for at in numbers(size)}
    properties = {f"p{at}": {"$ref": f"#/$defs/T{at}", "description": "d"} for at in numbers(size)}
    return {"type": "object", "properties": properties, "$defs": {**defs, f"T{size}": {"type": "string"}}}


SCHEMAS: dict[str, tuple[Shape, int]] = {
    "enums": (enums, 2000),
    "required": (required, 2000),
    "merged": (merged, 1500),
    "alternatives": (alternatives, 700),
    "shared": (shared, 150),
    "chained": (chained, 100),
    "merged references": (merged_references, 100),
    "aliases": (aliases, 150),
}


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("shape", SCHEMAS)
def test_fitting_a_schema_takes_linear_time(shape: str, upstream: str) -> None:
    make, size = SCHEMAS[shape]
    reader, writer = PROTOCOLS["chat"].client, PROTOCOLS[upstream].upstream
    assert reader
    assert writer
    target = Target("model-1", "up", find_profile("model-1"))

    def build(body: bytes) -> None:
        request, _ = adapt_tools(reader.parse(body, Ledger()), writer.tool_limits, Ledger())
        writer.build(request, target, Ledger())

    def write(size: int) -> bytes:
        tool = {"type": "function", "function": {"name": "tool", "parameters": make(size)}}
        return msgspec.json.encode(chat({"role": "user", "content": "Go."}, tools=[tool]))

    assert_linear_function(build, write, size)


def test_types_that_refer_to_each_other_keep_the_size_of_a_schema() -> None:
    names = [f"T{at}" for at in range(8)]
    properties = {name: {"$ref": f"#/$defs/{name}", "description": "d"} for name in names}
    schema = {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/T0", "description": "d"}},
        "$defs": {name: {"type": "object", "properties": properties} for name in names},
    }
    ledger = Ledger()
    sent = clean_schema(schema, "/tools/0", ledger)
    assert len(msgspec.json.encode(sent)) < 5 * len(msgspec.json.encode(schema))
    assert len(ledger) == 0


# Explaining a prompt cache


def compare_with_another(body: bytes) -> None:
    """Compare a captured request with one that differs in the middle."""
    middle = len(body) // 2
    other = body[:middle].replace(b"word", b"sword", 1) + body[middle:]
    upstream = PROTOCOLS["chat"].upstream
    assert upstream is not None
    reader = upstream.prompts
    assert reader is not None
    first, second = (
        CapturedRequest(
            reader=reader,
            provider="up",
            model="m",
            account="",
            key="",
            started_at=0.0,
            body=each,
            client_body=each,
            is_passed=True,
        )
        for each in (body, other)
    )
    compare_requests(first, second, ReportedInput(), find_profile("m"))


@pytest.mark.parametrize("shape", ["messages", "one message", "tools"])
def test_comparing_two_captured_requests_takes_linear_time(shape: str) -> None:
    def make(size: int) -> bytes:
        turns = [{"role": "user", "content": "word" * (size if shape == "one message" else 1)}]
        tools = [{"type": "function", "function": {"name": "f"}}] * (size if shape == "tools" else 1)
        return msgspec.json.encode({"messages": turns * (size if shape == "messages" else 1), "tools": tools})

    assert_linear_function(compare_with_another, make, 2000)
