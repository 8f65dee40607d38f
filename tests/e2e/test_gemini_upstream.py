"""What a Gemini upstream gets and gives, for clients of other protocols, read by their official SDKs."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator

import anthropic
import msgspec
import openai
import pytest
from anthropic.types import CitationsWebSearchResultLocation
from openai.types.chat import ChatCompletionMessageParam

from e2e.cases import CASES, request_for
from e2e.test_opaque import TURNS, ask_again
from fakes.upstream import Answer
from narrowing import expect
from rig import PROTOCOLS, Rig, run_rig
from scripting import JSON
from sdk_replies import STREAMS, WHOLE, Broke, Halted, Reply, SdkReply, status_error
from wire_json import JsonObject

STATUS_ERRORS = (openai.APIStatusError, anthropic.APIStatusError)
clients = pytest.mark.parametrize("client", PROTOCOLS)
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def chunk(*parts: JsonObject, finish: str | None = None, **fields: object) -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 4, "totalTokenCount": 14}
    if finish is not None:
        candidate |= {"finishReason": finish, "groundingMetadata": fields.pop("grounding", None)}
        candidate |= {"continuationToken": fields.pop("token", None)}
        fields |= {"usageMetadata": counts}
    return {"candidates": [candidate], "modelVersion": "gemini-3.5-flash", "responseId": "r1", **fields}


def reply(stream: bool, *chunks: JsonObject) -> Answer:
    if stream:
        return Answer(b"".join(b"data: %b\r\n\r\n" % msgspec.json.encode(each) for each in chunks))
    parts = [part for each in chunks for part in each["candidates"][0]["content"]["parts"]]
    last = chunks[-1]
    whole = {**last, "candidates": [{**last["candidates"][0], "content": {"role": "model", "parts": parts}}]}
    return Answer(msgspec.json.encode(whole), content_type=JSON)


def refusal(status: int, message: str, word: str) -> Answer:
    error = {"error": {"code": status, "message": message, "status": word}}
    return Answer(msgspec.json.encode(error), status=status, content_type=JSON)


def ask(rig: Rig, client: str, stream: bool, **fields: object) -> Reply:
    read: Callable[..., Reply] = STREAMS[client][-1] if stream else WHOLE[client]
    return read(rig.sdk, request_for(client, rig.model("gemini")) | fields)


def find_failed_status(rig: Rig, client: str, stream: bool) -> tuple[int, bool]:
    """Return the status of a reply that failed before its first byte, and whether its message names the reason."""
    try:
        broken = ask(rig, client, stream)
    except STATUS_ERRORS as raised:
        return raised.status_code, "finishReason" in str(raised)
    error = status_error(broken)
    return error.status_code, "finishReason" in str(error)


@clients
@modes
def test_a_reply_in_parts_continues_in_the_same_reply(rig: Rig, client: str, stream: bool) -> None:
    fake = rig.play(
        "gemini",
        reply(stream, chunk({"text": "One, "}, finish="CONTINUATION", token="tok-1")),
        reply(stream, chunk({"text": "two, "}, finish="CONTINUATION", continuationToken="tok-2")),
        reply(stream, chunk({"text": "three."}, finish="STOP")),
    )
    answer = ask(rig, client, stream)
    assert isinstance(answer, SdkReply), answer
    assert answer.text == "One, two, three."
    assert answer.tokens is not None
    assert (answer.tokens.input, answer.tokens.output) == (30, 12)
    bodies = [call.json for call in fake.calls]
    assert [body.pop("continuationToken", None) for body in bodies] == [None, "tok-1", "tok-2"]
    assert bodies[0] == bodies[1] == bodies[2]


@modes
def test_a_reply_that_never_stops_is_ended_after_sixteen_parts(rig: Rig, stream: bool) -> None:
    part = reply(stream, chunk({"text": "a"}, finish="CONTINUATION", token="tok"))
    fake = rig.play("gemini", part)
    answer = ask(rig, "chat", stream)
    assert isinstance(answer, SdkReply), answer
    assert (answer.text, answer.stop, len(fake.calls)) == ("a" * 17, "length", 17)


CALL: JsonObject = {"functionCall": {"id": "call_a1", "name": "weather", "args": {"city": "Ulm"}}}
SIGNED: JsonObject = {**CALL, "thoughtSignature": "AB+/cd=="}
DUMMY = "skip_thought_signature_validator"
UNSIGNED = (
    "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, "
    "and missing thought_signature may lead to degraded model performance. Additional data, function call "
    "`default_api:Task`, position 2."
)


def first_turns(rig: Rig, client: str, answer: Answer, stream: bool = False) -> tuple[JsonObject, list[JsonObject]]:
    """Return the client's request, and what it appends to its history."""
    rig.play("gemini", answer)
    request = request_for(client, rig.model("gemini"), CASES["sealed reasoning"])
    return request, TURNS[client](rig, request, stream)


@clients
@modes
def test_a_signature_of_a_call_returns_byte_for_byte(rig: Rig, client: str, stream: bool) -> None:
    """With text between the thought and the call, as Gemini sends it."""
    thought, text = {"text": "Weigh it up.", "thought": True}, {"text": "Let me look."}
    chunks = (chunk(thought), chunk(text), chunk(SIGNED), chunk({"text": ""}, finish="STOP"))
    request, turns = first_turns(rig, client, reply(stream, *chunks), stream)
    [_, model, user] = ask_again(rig, client, "gemini", request, turns)["contents"]
    assert model["parts"][-1] == SIGNED
    assert text in model["parts"]
    answered = {"id": "call_a1", "name": "weather", "response": {"output": "sunny"}}
    assert user["parts"] == [{"functionResponse": answered}]


def test_a_chat_client_that_keeps_only_calls_keeps_their_signatures(rig: Rig) -> None:
    request, [message, answered] = first_turns(rig, "chat", reply(False, chunk(SIGNED, finish="STOP")))
    [call] = message["tool_calls"]
    assert call["extra_content"]["google"]["thought_signature"].startswith("dgm1.")
    bare = {"role": "assistant", "tool_calls": [call]}
    body = ask_again(rig, "chat", "gemini", request, [bare, answered])
    assert body["contents"][1]["parts"] == [SIGNED]


@clients
@pytest.mark.parametrize("why", ["Corrupted thought signature.", "Invalid thought signature."])
def test_a_rejected_signature_is_replaced_by_the_placeholder_once(rig: Rig, client: str, why: str) -> None:
    seal = b64encode(f"{client}: {why}".encode()).decode()  # the session remembers what was rejected
    signed, unsigned = ({**CALL, "thoughtSignature": value} for value in (seal, DUMMY))
    request, turns = first_turns(rig, client, reply(False, chunk(signed, finish="STOP")))
    rejected = refusal(400, why, "INVALID_ARGUMENT")
    with pytest.raises(STATUS_ERRORS, match="signature") as raised:
        ask_again(rig, client, "gemini", request, turns, rejected, rejected)
    assert (getattr(raised.value, "status_code", None), list_last_parts(rig)) == (400, [signed, unsigned])
    body = ask_again(rig, client, "gemini", request, turns, rejected)
    assert list_last_parts(rig) == [signed, unsigned]
    assert body["contents"][0] == {"role": "user", "parts": [{"text": "Go on."}]}
    ask_again(rig, client, "gemini", request, turns)
    assert list_last_parts(rig) == [unsigned]


def list_last_parts(rig: Rig) -> list[JsonObject]:
    return [call.json["contents"][1]["parts"][-1] for call in rig.fakes["gemini"].calls]


@clients
def test_a_call_without_a_signature_is_sent_with_the_placeholder_at_once(rig: Rig, client: str) -> None:
    """So an upstream that demands one does not refuse the request; if it does, the client gets its sentence."""
    request, turns = first_turns(rig, client, reply(False, chunk(CALL, finish="STOP")))
    ask_again(rig, client, "gemini", request, turns)
    assert list_last_parts(rig) == [{**CALL, "thoughtSignature": DUMMY}]
    with pytest.raises(STATUS_ERRORS, match="is missing a thought_signature") as raised:
        ask_again(rig, client, "gemini", request, turns, refusal(400, UNSIGNED, "INVALID_ARGUMENT"))
    assert (getattr(raised.value, "status_code", None), len(rig.fakes["gemini"].calls)) == (400, 1)


@modes
@pytest.mark.parametrize("declared", ["Bash", "default_api:Bash"])
def test_a_call_has_the_name_that_the_client_declared(rig: Rig, stream: bool, declared: str) -> None:
    rig.play("gemini", reply(stream, chunk({"functionCall": {"name": "default_api:Bash"}}, finish="STOP")))
    answer = ask(rig, "chat", stream, tools=[{"type": "function", "function": {"name": declared}}])
    assert isinstance(answer, SdkReply), answer
    assert [name for _, name, _ in answer.calls] == [declared]


@pytest.fixture(scope="module")
def retrying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    settings = "[retry]\nattempts = 2\nbase_s = 0.01\n"
    with run_rig(tmp_path_factory.mktemp("retrying"), settings, upstreams=["gemini"]) as shared:
        yield shared


@clients
@modes
@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "OTHER"])
def test_a_reply_without_output_that_failed_is_tried_again(
    retrying: Rig, client: str, stream: bool, finish: str
) -> None:
    failed = reply(stream, chunk(finish=finish))
    fake = retrying.play("gemini", failed, reply(stream, chunk({"text": "Now."}, finish="STOP")))
    answer = ask(retrying, client, stream)
    assert isinstance(answer, SdkReply), answer
    assert (answer.text, len(fake.calls)) == ("Now.", 2)
    retrying.play("gemini", failed)
    assert find_failed_status(retrying, client, stream) == (502, True)


@clients
def test_a_failed_call_after_text_is_an_error_event(rig: Rig, client: str) -> None:
    rig.play("gemini", reply(True, chunk({"text": "Let me "}), chunk({"text": "see."}, finish="UNEXPECTED_TOOL_CALL")))
    broken = ask(rig, client, True)
    assert isinstance(broken, Broke), broken
    assert broken.text == "Let me see."
    assert "UNEXPECTED_TOOL_CALL" in str(broken.error)


@clients
def test_an_error_without_data_before_it_ends_the_stream(rig: Rig, client: str) -> None:
    begun = reply(True, chunk({"text": "It was"})).body
    failure = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    error = json.dumps(failure, indent=2).encode()
    for cut in (0, 1, 7):
        rig.play("gemini", Answer(begun + error, cut=cut))
        broken = ask(rig, client, True)
        assert isinstance(broken, Broke), broken
        assert broken.text == "It was"
        assert "The model is overloaded." in str(broken.error)


@clients
@pytest.mark.parametrize(
    ("status", "word", "message", "seen"),
    [
        (400, "INVALID_ARGUMENT", "Unknown name.", 400),
        (400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8).", 400),
        (401, "UNAUTHENTICATED", "No.", 502),
        (403, "PERMISSION_DENIED", "Not yours.", 403),
        (404, "NOT_FOUND", "No such model.", 404),
        (429, "RESOURCE_EXHAUSTED", "Slow down.", 429),
        (500, "INTERNAL", "It overheated.", 500),
    ],
)
def test_an_error_has_the_status_of_the_clients_protocol(
    rig: Rig, client: str, status: int, word: str, message: str, seen: int
) -> None:
    rig.play("gemini", refusal(status, message, word))
    with pytest.raises(STATUS_ERRORS) as raised:
        ask(rig, client, False)
    assert getattr(raised.value, "status_code", None) == seen
    if "exceeds" in message:
        words = "prompt is too long" if client == "messages" else "context_length_exceeded"
        assert words in f"{raised.value} {getattr(raised.value, 'code', '')}"


@clients
@modes
def test_a_refusal_explains_itself(rig: Rig, client: str, stream: bool) -> None:
    blocked = chunk(finish="PROHIBITED_CONTENT")
    blocked["candidates"][0] |= {"finishMessage": "It is about weapons."}
    rig.play("gemini", reply(stream, blocked))
    answer = ask(rig, client, stream)
    if isinstance(answer, Halted):
        assert answer.stop == "content_filter"
        return
    assert isinstance(answer, SdkReply), answer
    expected = {"chat": "content_filter", "responses": "incomplete content_filter", "messages": "refusal"}
    assert answer.stop == expected[client]


SUPPORT: JsonObject = {"segment": {"startIndex": 8, "endIndex": 17, "text": "is sunny."}, "groundingChunkIndices": [0]}
GROUNDING: JsonObject = {
    "webSearchQueries": ["weather zurich"],
    "groundingChunks": [{"web": {"uri": "https://a.example/1", "title": "a.example"}}],
    "groundingSupports": [SUPPORT],
}
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather?"}]


def test_googles_search_serves_every_client(rig: Rig) -> None:
    fake = rig.play("gemini", reply(False, chunk({"text": "Zürich is sunny."}, finish="STOP", grounding=GROUNDING)))
    model = rig.model("gemini")
    chat = rig.sdk.openai.chat.completions.create(model=model, messages=USER, web_search_options={})
    [cited] = chat.choices[0].message.annotations or []
    assert (cited.url_citation.start_index, cited.url_citation.end_index) == (7, 16)
    response = rig.sdk.openai.responses.create(model=model, input="Weather?", tools=[{"type": "web_search"}])
    assert [item.type for item in response.output] == ["message", "web_search_call"]
    message = rig.sdk.anthropic.messages.create(
        model=model,
        max_tokens=99,
        messages=[{"role": "user", "content": "Weather?"}],
        tools=[{"type": "web_search_20250305", "name": "web_search"}],
    )
    assert [block.type for block in message.content] == ["text", "text", "server_tool_use", "web_search_tool_result"]
    assert message.usage.server_tool_use is not None
    assert message.usage.server_tool_use.web_search_requests == 1
    assert [call.json["tools"] for call in fake.calls] == [[{"googleSearch": {}}]] * 3


SEARCH: JsonObject = {"type": "web_search_20250305", "name": "web_search"}


def test_a_messages_client_sees_which_words_of_a_whole_reply_are_cited(rig: Rig) -> None:
    """Also where it streams and the upstream does not."""
    sources = [{"web": {"uri": f"https://{name}.example", "title": name}} for name in ("a", "b")]
    places = ((0, 7, [0]), (8, 17, [0, 1]))
    supports = [
        {"segment": {"startIndex": start, "endIndex": end}, "groundingChunkIndices": which}
        for start, end, which in places
    ]
    grounding = {"webSearchQueries": ["w"], "groundingChunks": sources, "groundingSupports": supports}
    whole = reply(False, chunk({"text": "Zürich is sunny. So they say."}, finish="STOP", grounding=grounding))
    rig.play("gemini", whole, whole)
    user: anthropic.types.MessageParam = {"role": "user", "content": "Weather?"}
    request: JsonObject = {"model": rig.model("gemini"), "max_tokens": 99, "messages": [user], "tools": [SEARCH]}
    message = rig.sdk.anthropic.messages.create(**request)
    texts = [block for block in message.content if block.type == "text"]
    cited = [
        (text.text, [expect(CitationsWebSearchResultLocation, one).url for one in text.citations or ()])
        for text in texts
    ]
    a, b = "https://a.example", "https://b.example"
    assert cited == [("Zürich ", [a]), ("is sunny.", [a, b]), (" So they say.", [])]
    with rig.sdk.anthropic.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    assert [block.to_dict() for block in streamed.content if block.type == "text"] == [text.to_dict() for text in texts]
