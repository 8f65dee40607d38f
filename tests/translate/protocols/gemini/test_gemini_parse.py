"""Parse requests of Gemini clients: spelling, turns, instructions, tools and settings."""

import base64

import msgspec
import pytest

from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.ports import EVENT_STREAM
from dragoman.translate.hub.request import (
    Audio,
    Document,
    FileId,
    Foreign,
    Format,
    Function,
    Hosted,
    Image,
    Inline,
    Link,
    Pick,
    Reasoning,
    Request,
    Role,
    Shape,
    Switch,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.translate.protocols.gemini.parse import parse, parse_for_count, read_call
from dragoman.translate.protocols.gemini.wire import ARRAY_STREAM
from narrowing import expect
from tables import each_row
from wire_json import Json, JsonObject


def read(**body: Json) -> Request:
    return parse(msgspec.json.encode({"contents": [{"parts": [{"text": "x"}]}], **body}), Ledger())


def refusal(**body: Json) -> tuple[str, str]:
    with pytest.raises(RequestError) as refused:
        read(**body)
    failure = refused.value.failure
    return failure.at or "", failure.message


def turns(*contents: Json) -> list[tuple[Role, list[object]]]:
    return [(turn.role, list(turn.parts)) for turn in read(contents=list(contents)).turns]


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1beta/models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("/v1/models/kiro/auto", "kiro/auto"),
        ("/v1/models/kiro%2Fauto", "kiro/auto"),
        ("/v1beta/models/local/qwen3:8b", "local/qwen3:8b"),
        ("/v1beta/models/models/m", "m"),
        ("/v1beta1/projects/p/locations/l/publishers/google/models/m", "m"),
        ("/v1/publishers/google/models/m", "m"),
        ("/v1beta1/publishers/kiro/models/auto", "kiro/auto"),
        ("/v1beta/models/fw/accounts/fw/models/m", "fw/accounts/fw/models/m"),
        ("/v1beta/kiro/auto", "kiro/auto"),
        ("/v1beta/fw/accounts/fw/models/m", "fw/accounts/fw/models/m"),
    ],
)
def test_the_model_is_everything_before_the_last_colon(path: str, model: str) -> None:
    head = read_call(f"{path}:generateContent", "", b"{}")
    assert (head.model, head.stream) == (model, False)


@pytest.mark.parametrize(
    ("query", "kind"), [("alt=sse", EVENT_STREAM), ("", ARRAY_STREAM), ("key=a&alt=sse", EVENT_STREAM)]
)
def test_the_query_chooses_the_framing_of_a_stream(query: str, kind: bytes) -> None:
    head = read_call("/v1/models/m:streamGenerateContent", query, b"{}")
    assert (head.stream, head.stream_type) == (True, kind)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"'])
def test_a_body_that_is_no_object_is_refused_before_routing(body: bytes) -> None:
    with pytest.raises(RequestError):
        read_call("/v1/models/m:generateContent", "", body)


def test_both_spellings_of_every_key_mean_the_same() -> None:
    camel = read(
        systemInstruction={"parts": [{"text": "s"}]},
        generationConfig={"topP": 0.5, "maxOutputTokens": 9, "stopSequences": ["a"]},
        toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        tools=[{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}]}],
    )
    snake = read(
        system_instruction={"parts": [{"text": "s"}]},
        generation_config={"top_p": 0.5, "max_output_tokens": 9, "stop_sequences": ["a"]},
        tool_config={"function_calling_config": {"mode": "any", "allowed_function_names": ["f"]}},
        tools=[{"function_declarations": [{"name": "f", "parameters_json_schema": {"type": "object"}}]}],
    )
    assert (camel.max_tokens, camel.sampling) == (snake.max_tokens, snake.sampling)
    assert (camel.max_tokens, camel.sampling.top_p, camel.sampling.stop) == (9, 0.5, ("a",))
    assert camel.tool_choice is not None
    assert snake.tool_choice is not None
    assert camel.tool_choice.name == snake.tool_choice.name == "f"
    assert [turn.role for turn in camel.turns] == [turn.role for turn in snake.turns] == [Role.SYSTEM, Role.USER]
    assert snake.pointer("top_p") == "/generation_config/top_p"
    assert snake.tools[0].at == "/tools/0/function_declarations/0"


def test_camel_case_counts_where_both_are_present_even_if_it_is_null() -> None:
    assert read(generationConfig={"topP": 0.1, "top_p": 0.9}).sampling.top_p == 0.1
    request = read(generationConfig={"topP": None, "top_p": 0.9})
    assert request.sampling.top_p is None
    assert request.ext == {"generationConfig/top_p": 0.9}


def test_one_object_is_a_list_of_one() -> None:
    request = read(
        contents={"parts": {"text": "hi"}},
        tools={"functionDeclarations": {"name": "f"}},
        generationConfig={"topK": 3.0},
    )
    assert request.turns[0].parts == (Text("hi", "/contents/parts"),)
    assert [tool.name for tool in request.tools if isinstance(tool, Function)] == ["f"]
    assert request.sampling.top_k == 3


def test_the_chunks_of_a_reply_that_an_sdk_replays_are_one_turn_and_one_text() -> None:
    contents: list[Json] = [{"role": "model", "parts": [{"text": piece}]} for piece in ("Hel", "lo", "")]
    found = turns({"parts": [{"text": "a"}]}, *contents, {"role": "user", "parts": [{"text": "b"}, {"text": "c"}]})
    assert [(role, [part.text for part in parts if isinstance(part, Text)]) for role, parts in found] == [
        (Role.USER, ["a"]),
        (Role.ASSISTANT, ["Hello"]),
        (Role.USER, ["b", "c"]),
    ]


def test_instructions_are_joined_and_never_a_message() -> None:
    request = read(systemInstruction={"role": "model", "parts": [{"text": "a"}, {"text": ""}, {"text": "b"}]})
    assert [turn.role for turn in request.turns] == [Role.SYSTEM, Role.USER]
    assert request.turns[0].parts == (Text("a\n\nb", "/systemInstruction"),)
    assert read(systemInstruction="plain").turns[0].parts == (Text("plain", "/systemInstruction"),)


def test_calls_and_responses_without_ids_belong_together_by_order_and_name() -> None:
    calls: JsonObject = {"role": "model", "parts": [{"functionCall": {"name": name}} for name in ("a", "b", "a")]}
    answers: list[Json] = [
        {"functionResponse": {"name": name, "response": {"output": text}}}
        for name, text in (("b", "1"), ("a", "2"), ("a", "3"))
    ]
    _, (_, called), (_, results) = turns({"parts": [{"text": "x"}]}, calls, {"parts": answers})
    ids = [part.id for part in called if isinstance(part, ToolCall)]
    assert len(set(ids)) == 3
    assert [part.call_id for part in results if isinstance(part, ToolResult)] == [ids[1], ids[0], ids[2]]


def make_call(id: str | None, name: str = "f") -> JsonObject:
    return {"functionCall": {"name": name} | ({"id": id} if id else {})}


def make_response(id: str | None, text: str, name: str = "f") -> JsonObject:
    return {"functionResponse": {"name": name, "response": {"output": text}} | ({"id": id} if id else {})}


@each_row(
    ("calls", "responses", "invented"),
    [
        ([make_call("x"), make_call("x")], [make_response("x", "0"), make_response("x", "1")], [1]),
        ([make_call("x", "a"), make_call("x", "b")], [make_response("x", "1", "b"), make_response("x", "0", "a")], [1]),
        ([make_call("x"), make_call("x")], [make_response(None, "0"), make_response(None, "1")], [1]),
        ([make_call(None), make_call("call_0")], [make_response("call_0", "1"), make_response(None, "0")], [1]),
        ([make_call("x")] * 3, [make_response("x", str(number)) for number in range(3)], [1, 2]),
        ([make_call("x"), make_call("y")], [make_response("y", "1"), make_response("x", "0")], []),
    ],
)
def test_calls_with_one_id_get_others_and_their_responses_in_order(
    calls: list[Json], responses: list[Json], invented: list[int]
) -> None:
    contents: list[Json] = [{"parts": [{"text": "x"}]}, {"role": "model", "parts": calls}, {"parts": responses}]
    ledger = Ledger()
    _, called, answered = parse(msgspec.json.encode({"contents": contents}), ledger).turns
    ids = [expect(ToolCall, part).id for part in called.parts]
    assert len(set(ids)) == len(calls)
    results = {
        part.call_id: expect(Text, part.content[0]).text for part in answered.parts if isinstance(part, ToolResult)
    }
    assert [results[id] for id in ids] == [str(number) for number in range(len(calls))]
    assert [(loss.path, loss.how) for loss in ledger] == [
        (f"/contents/1/parts/{number}/functionCall/id", LossKind.INVENTED) for number in invented
    ]


def test_ids_that_begin_anew_in_each_turn_become_unique() -> None:
    turn: list[Json] = [{"role": "model", "parts": [make_call("call_0")]}, {"parts": [make_response("call_0", "done")]}]
    left: Json = {"role": "model", "parts": [make_call("call_0")]}  # by a user who went on without its response
    found = turns({"parts": [{"text": "x"}]}, *turn, left, {"parts": [{"text": "y"}]}, *turn)
    calls = [part for _, parts in found for part in parts if isinstance(part, ToolCall)]
    results = [part for _, parts in found for part in parts if isinstance(part, ToolResult)]
    assert [calls[0].id, calls[2].id] == [result.call_id for result in results]
    assert len({call.id for call in calls}) == 3


@pytest.mark.parametrize(
    ("response", "text", "is_error"),
    [
        ({"output": "plain"}, "plain", False),
        ({"output": {"a": 1}}, '{"a":1}', False),
        ({"error": "bad"}, "bad", True),
        ({"result": "x"}, '{"result":"x"}', False),
        ({"output": "x", "error": "y"}, '{"output":"x","error":"y"}', False),
        (None, "{}", False),
    ],
)
def test_a_response_is_text_and_an_error_is_marked(response: Json, text: str, is_error: bool) -> None:
    _, _, (_, [result]) = turns(
        {"parts": [{"text": "x"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "1", "name": "f"}}]},
        {"parts": [{"functionResponse": {"id": "1", "name": "f", "response": response}}]},
    )
    assert isinstance(result, ToolResult)
    assert (result.content[0], result.is_error) == (
        Text(text, "/contents/2/parts/0/functionResponse/response"),
        is_error,
    )


def test_a_response_without_its_call_is_refused_by_its_id() -> None:
    contents: Json = [{"parts": [{"functionResponse": {"id": "lost-7", "name": "f", "response": {}}}]}]
    at, message = refusal(contents=contents)
    assert at == "/contents/0/parts/0/functionResponse/id"
    assert "lost-7" in message


def test_media_become_what_other_protocols_have() -> None:
    data = base64.b64encode(b"\xfb\xff\xfe").decode()
    url_safe = base64.urlsafe_b64encode(b"\xfb\xff\xfe").decode()
    assert data != url_safe
    parts: list[Json] = [
        {"inlineData": {"mimeType": "image/png", "data": url_safe}},
        {"inlineData": {"mimeType": "application/pdf", "data": data, "displayName": "a.pdf"}},
        {"inlineData": {"mimeType": "audio/mp3", "data": data}},
        {"inlineData": {"mimeType": "text/plain", "data": base64.b64encode("Grüße".encode()).decode()}},
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://a.example/b"}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://bucket/b"}},
        {"inlineData": {"mimeType": "video/mp4", "data": data}},
    ]
    (_, found), *_ = turns({"parts": parts})
    image, pdf, sound, plain, linked, stored, film = found
    assert expect(Image, image).source == Inline("image/png", data)
    assert (expect(Document, pdf).source, expect(Document, pdf).title) == (Inline("application/pdf", data), "a.pdf")
    assert isinstance(sound, Audio)
    assert expect(Document, plain).source == "Grüße"
    assert expect(Image, linked).source == Link("https://a.example/b")
    assert expect(Document, stored).source == FileId("gs://bucket/b")
    assert isinstance(film, Foreign)


@pytest.mark.parametrize(
    ("mode", "names", "pick", "name", "allowed", "strict"),
    [
        ("AUTO", [], Pick.AUTO, None, None, None),
        ("ANY", ["f"], Pick.NAMED, "f", None, None),
        ("ANY", ["f", "g"], Pick.REQUIRED, None, ("f", "g"), None),
        ("ANY", [], Pick.REQUIRED, None, None, None),
        ("VALIDATED", [], Pick.AUTO, None, None, True),
        ("VALIDATED", ["g"], Pick.AUTO, None, ("g",), True),
        ("none", [], Pick.NONE, None, None, None),
    ],
)
def test_modes_of_calling(
    mode: str, names: list[Json], pick: Pick, name: str | None, allowed: tuple[str, ...] | None, strict: bool | None
) -> None:
    request = read(
        tools=[
            {"functionDeclarations": [{"name": "f"}]},
            {"functionDeclarations": [{"name": "g"}], "googleSearch": {}},
        ],
        toolConfig={"functionCallingConfig": {"mode": mode, "allowedFunctionNames": names}},
    )
    choice = request.tool_choice
    assert choice is not None
    assert (choice.pick, choice.name, choice.allowed) == (pick, name, allowed)
    functions = [tool for tool in request.tools if isinstance(tool, Function)]
    assert [(tool.name, tool.strict) for tool in functions] == [("f", strict), ("g", strict)]
    assert [tool.kind for tool in request.tools if isinstance(tool, Hosted)] == ["web_search"]


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        ({"thinkingBudget": 0}, (None, None, Switch.DISABLED, None)),
        ({"thinkingBudget": -1, "includeThoughts": True}, (None, None, Switch.ADAPTIVE, "summarized")),
        ({"thinkingBudget": 512}, (None, 512, Switch.ENABLED, None)),
        ({"thinkingLevel": "high"}, ("high", None, None, None)),
        ({"thinking_level": "MINIMAL", "include_thoughts": False}, ("minimal", None, None, None)),
    ],
)
def test_thinking(thinking: Json, expected: tuple[object, ...]) -> None:
    reasoning = read(generationConfig={"thinkingConfig": thinking}).reasoning
    assert isinstance(reasoning, Reasoning)
    assert (reasoning.effort, reasoning.budget, reasoning.switch, reasoning.show) == expected


def test_structured_output_in_each_of_its_forms() -> None:
    def read_format(**fields: Json) -> Format:
        return expect(Format, read(generationConfig={"responseMimeType": "application/json", **fields}).format)

    schema: Json = {"type": "OBJECT", "properties": {"type": {"type": "STRING", "nullable": True}}}
    assert read_format(responseSchema=schema).schema == {
        "type": "object",
        "properties": {"type": {"type": ["string", "null"]}},
    }
    upper: Json = {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}
    lower = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert read_format(responseJsonSchema=upper).schema == lower
    assert read_format().shape is Shape.JSON


@each_row(
    ("body", "at"),
    [
        ({"contents": []}, "/contents"),
        ({"contents": [{"parts": [{"text": ""}]}]}, "/contents"),
        ({"contents": [{"role": "system", "parts": [{"text": "x"}]}]}, "/contents/0/role"),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "https://youtu.be/1"}}]}]}, "/contents/0/parts/0"),
        ({"cachedContent": "cachedContents/a"}, "/cachedContent"),
        ({"continuation_token": "t"}, "/continuation_token"),
        ({"generationConfig": {"candidateCount": 9}}, "/generationConfig/candidateCount"),
        ({"generationConfig": {"topP": "x"}}, "/generationConfig/topP"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "/generationConfig/responseModalities"),
        (
            {"generationConfig": {"thinkingConfig": {"thinkingLevel": "HUGE"}}},
            "/generationConfig/thinkingConfig/thinkingLevel",
        ),
        ({"tools": [{"functionDeclarations": [{"name": "f"}, {"name": "f"}]}]}, "/tools/0/functionDeclarations/1/name"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "/toolConfig/functionCallingConfig/mode"),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}},
            "/toolConfig/functionCallingConfig/allowedFunctionNames",
        ),
        (
            {"generationConfig": {"responseSchema": {}, "responseJsonSchema": {}}},
            "/generationConfig/responseJsonSchema",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_its_pointer(body: dict[str, Json], at: str) -> None:
    where, message = refusal(**body)
    assert where == at
    assert at in message


@pytest.mark.parametrize(
    "body",
    [
        {"contents": [{"parts": [{"text": "x"}]}]},
        {"generateContentRequest": {"model": "models/m", "contents": [{"parts": [{"text": "x"}]}]}},
        {"contents": [{"parts": [{"text": "x"}]}], "systemInstruction": {"parts": [{"text": "s"}]}, "tools": []},
    ],
)
def test_tokens_are_counted_for_each_form_of_request(body: Json) -> None:
    request = parse_for_count(msgspec.json.encode(body), Ledger())
    assert [part.text for part in request.turns[-1].parts if isinstance(part, Text)] == ["x"]
