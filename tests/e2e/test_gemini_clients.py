"""What Gemini clients rely on, over real sockets: bytes that pass, broken streams, keys, errors, models, counts."""

import base64
import threading
from collections.abc import Iterator

import msgspec
import pytest
from google import genai
from google.genai import types

from dragoman.translate.hub.usage import UsageSource
from e2e.cases import CASES, WEATHER, WORDS
from fakes.upstream import Answer, End, Gate
from gateway import KEY
from raw_http import Answered, dial, get, post, request_bytes
from rig import Rig, run_rig
from scripting import JSON, encode_chat, encode_gemini, write_reply
from scripting.replies import Ending, ScriptedReply, Stop, Text, Thinking, ToolCall
from sdk_replies_gemini import google_client
from wire_json import JsonObject

TEXT = CASES["text"].scripted
BODY = b'{ "contents" : [{"parts":[{"text":"hi"}]}], "futureField": {"a":[1, 2]} }'
SETTINGS = "[server]\nkeep_alive_s = 0.1\n[retry]\nattempts = 1\n"
GENERATE, STREAM, COUNT = "generateContent", "streamGenerateContent", "countTokens"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), SETTINGS, ("m", "n")) as shared:
        yield shared


@pytest.fixture(scope="module")
def sdk(rig: Rig) -> genai.Client:
    return google_client(rig.gateway.url, KEY)


def generate(rig: Rig, path: str, body: bytes = BODY, *fields: str, key: str | None = KEY) -> Answered:
    return post(rig.port, path, body, *fields, key=key)


def json_of(answer: Answered) -> JsonObject:
    return msgspec.json.decode(answer.body, type=JsonObject)


# Bytes that pass


@pytest.mark.parametrize(
    "path",
    [
        "/v1beta/models/gemini/m",
        "/v1/models/gemini/m",
        "/v1beta1/publishers/gemini/models/m",
        "/v1beta/gemini/m",  # as the AI SDK writes a model with a slash
    ],
)
def test_a_whole_reply_of_the_same_protocol_passes_to_the_byte(rig: Rig, path: str) -> None:
    reply = encode_gemini.encode_whole(TEXT).replace(b"{", b'{ "futureField" : null , ', 1)
    fake = rig.play("gemini", Answer(reply, content_type=JSON))
    answer = generate(rig, f"{path}:{GENERATE}?key={KEY}", key=None)
    assert (answer.status, answer.body) == (200, reply)
    assert (fake.calls[-1].path, fake.calls[-1].body) == (f"/v1/models/m:{GENERATE}", BODY)
    assert KEY not in str(fake.calls[-1])


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_streams_of_the_same_protocol_pass_to_the_byte_in_both_framings(rig: Rig, cut: int) -> None:
    events = encode_gemini.encode_stream(TEXT)
    rig.play("gemini", Answer(events, cut=cut))
    answer = generate(rig, f"/v1beta/models/gemini/m:{STREAM}?alt=sse")
    assert (answer.get("content-type"), answer.body) == ("text/event-stream", events)
    array = b"[" + b"\n,\r\n".join(line[6:] for line in events.split(b"\r\n\r\n") if line) + b"\n]\n"
    fake = rig.play("gemini", Answer(array, content_type=JSON, cut=cut))
    answer = generate(rig, f"/v1beta/models/gemini/m:{STREAM}")
    assert answer.body == array
    assert (answer.get("content-type") or "").startswith(JSON)
    assert fake.calls[-1].path == f"/v1/models/m:{STREAM}"


def test_an_array_passes_while_it_is_generated(rig: Rig) -> None:
    chunk = encode_gemini.encode_stream(TEXT).split(b"\r\n\r\n")[0][6:]
    rig.play("gemini", Answer(b"[" + chunk, content_type=JSON, end=End.HANG))
    with dial(rig.port) as sock:
        sock.sendall(request_bytes(f"/v1beta/models/gemini/m:{STREAM}", BODY))
        seen = b""
        while chunk not in seen:
            seen += sock.recv(4096)


# Broken streams


def last_writes(rig: Rig, path: str) -> list[bytes]:
    """Return the chunks of the response's body as they were framed."""
    with dial(rig.port) as sock:
        sock.sendall(request_bytes(path, BODY))
        with sock.makefile("rb") as file:
            assert file.readline().split()[1] == b"200"
            while file.readline().strip():
                pass
            chunks: list[bytes] = []
            while size := int(file.readline(), 16):
                chunks.append(file.read(size))
                file.readline()
            return chunks


@pytest.mark.parametrize("upstream", ["chat", "gemini"])
def test_a_broken_stream_ends_with_the_error_as_an_event_and_then_alone(rig: Rig, upstream: str) -> None:
    broken = ScriptedReply((Text("It was a dark"),), ending=Ending.NONE)
    rig.play(upstream, write_reply(upstream, broken, end=End.CUT))
    *before, bare = last_writes(rig, f"/v1beta/models/{upstream}/m:{STREAM}?alt=sse")
    stream = b"".join(before)
    error = msgspec.json.decode(bare, type=JsonObject)["error"]
    assert bare.startswith(b'{"error":{"code":502,')
    assert stream.endswith(b"data: " + bare + b"\n\n")
    assert b"finishReason" not in stream
    assert error["status"] in ("UNAVAILABLE", "INTERNAL")


def test_a_broken_array_ends_with_the_error_as_its_last_element(rig: Rig) -> None:
    broken = ScriptedReply((Text("It was a dark"),), ending=Ending.NONE)
    rig.play("chat", broken)
    answer = generate(rig, f"/v1beta/models/chat/m:{STREAM}")
    *_, last = msgspec.json.decode(answer.body, type=list[JsonObject])
    assert last["error"]["code"] == 502
    chunks = encode_gemini.encode_stream(broken).split(b"\r\n\r\n")[:-1]
    rig.play("gemini", Answer(b"[" + b",".join(chunk[6:] for chunk in chunks), content_type=JSON))
    answer = generate(rig, f"/v1beta/models/gemini/m:{STREAM}")
    *_, last = msgspec.json.decode(answer.body, type=list[JsonObject])
    assert last["error"]["code"] == 502


def test_a_pause_is_bridged_by_empty_chunks_but_not_before_the_first_token(rig: Rig, sdk: genai.Client) -> None:
    stream = encode_chat.encode_stream(TEXT)
    half = stream.index(b"\n\n", stream.index(b"The q")) + 2
    is_bridged = threading.Event()
    rig.play("chat", Answer(stream, cut=half, gate=Gate(is_bridged, at=half)))
    chunks: list[types.GenerateContentResponse] = []
    for chunk in sdk.models.generate_content_stream(model="chat/m", contents="x"):
        if chunk.candidates and chunk.candidates[0].finish_reason is None:
            chunks.append(chunk)
            if chunk.text == "":
                is_bridged.set()
    assert is_bridged.is_set()
    assert "".join(chunk.text or "" for chunk in chunks) == WORDS
    assert len({(chunk.response_id, chunk.model_version) for chunk in chunks}) == 1
    rig.play("chat", Answer(b'{"error":{"message":"slow"}}', 429, JSON, (("retry-after", "30"),), delay_s=0.5))
    assert generate(rig, f"/v1beta/models/chat/m:{STREAM}?alt=sse").status == 429


# Keys and errors


@pytest.mark.parametrize(
    ("query", "fields", "key"),
    [
        (f"?key={KEY}", (), None),
        ("", (f"x-goog-api-key: {KEY}",), None),
        ("", (), KEY),
        ("", ("x-goog-api-key: ",), KEY),
    ],
    ids=["query", "header", "bearer", "empty header beside bearer"],
)
def test_a_key_is_taken_in_each_of_its_places(rig: Rig, query: str, fields: tuple[str, ...], key: str | None) -> None:
    rig.play("chat", TEXT, stream=False)
    assert generate(rig, f"/v1beta/models/chat/m:{GENERATE}{query}", BODY, *fields, key=key).status == 200


@pytest.mark.parametrize(
    ("path", "key", "status", "word"),
    [
        (f"/v1beta/models/chat/m:{GENERATE}", "dgm_wrong", 401, "UNAUTHENTICATED"),
        ("/v1beta/models/chat/m:embedContent", KEY, 404, "NOT_FOUND"),
        ("/v1/models/chat/m:doSomething", KEY, 404, "NOT_FOUND"),
        ("/v1beta/interactions", KEY, 404, "NOT_FOUND"),
        ("/v1beta1/projects/p/unknown", KEY, 404, "NOT_FOUND"),
        (f"/v1beta1/projects/p/endpoints/7:{GENERATE}", KEY, 404, "NOT_FOUND"),
    ],
)
def test_errors_have_googles_shape(rig: Rig, path: str, key: str, status: int, word: str) -> None:
    answer = generate(rig, path, key=key)
    error = json_of(answer)["error"]
    assert (answer.status, error["code"], error["status"]) == (status, status, word)
    assert answer.get("content-type") == JSON


@pytest.mark.parametrize(
    ("status", "raised", "code"),
    [(429, genai.errors.ClientError, 429), (400, genai.errors.ClientError, 400), (500, genai.errors.ServerError, 500)],
)
def test_the_sdk_raises_the_right_class(
    rig: Rig, sdk: genai.Client, status: int, raised: type[Exception], code: int
) -> None:
    rig.play("chat", Answer(b'{"error":{"message":"no"}}', status, JSON, (("retry-after", "20"),)))
    for call in (
        sdk.models.generate_content,
        lambda **request: list(sdk.models.generate_content_stream(**request)),
    ):
        with pytest.raises(raised) as caught:
            call(model="chat/m", contents="x")
        assert isinstance(caught.value, genai.errors.APIError)
        assert caught.value.code == code
    if status == 429:
        details = json_of(generate(rig, f"/v1beta/models/chat/m:{GENERATE}"))["error"]["details"]
        assert [detail["retryDelay"] for detail in details if "retryDelay" in detail] == ["20s"]


TYPE = "type.googleapis.com/google.rpc."
DAILY = (
    b'{"error": {"code": 429, "message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED", "details": ['
    b'{"@type": "%bQuotaFailure", "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]},'
    b' {"@type": "%bHelp", "links": []}, {"@type": "%bRetryInfo", "retryDelay": "7s"}]}}' % ((TYPE.encode(),) * 3)
)


@pytest.mark.parametrize("form", [b"%b", b"[%b]", b"[%b\n]\n", b" [ %b ] "])
def test_an_error_of_google_keeps_its_details_alone_or_in_a_list(rig: Rig, sdk: genai.Client, form: bytes) -> None:
    rig.play("gemini", Answer(form % DAILY, 429, "application/json; charset=UTF-8"))
    for path in (f"gemini/m:{GENERATE}", f"gemini/m:{STREAM}?alt=sse", f"gemini/m:{STREAM}"):
        answer = generate(rig, f"/v1beta/models/{path}")
        assert (answer.status, answer.body, answer.get("retry-after")) == (429, DAILY, "7")
    with pytest.raises(genai.errors.ClientError, match="Quota exceeded") as caught:
        list(sdk.models.generate_content_stream(model="gemini/m", contents="x"))
    assert "PerDay" in str(caught.value.details)
    chat = b'{"model": "gemini/m", "messages": [{"role": "user", "content": "hi"}]}'
    translated = post(rig.port, "/v1/chat/completions", chat)
    assert (translated.status, translated.get("retry-after")) == (429, "7")


def test_an_error_in_a_list_is_read_by_clients_of_chat(rig: Rig) -> None:
    """Google's compatible endpoint writes it so."""
    error = b'{"error":{"code":429,"message":"Slow down.","status":"RESOURCE_EXHAUSTED"}}'
    rig.play("chat", Answer(b"[%b\n]" % error, 429, JSON))
    chat = b'{"model": "chat/m", "messages": [{"role": "user", "content": "hi"}]}'
    answer = post(rig.port, "/v1/chat/completions", chat)
    assert (answer.status, answer.body) == (429, error)


@pytest.mark.parametrize("upstream", ["chat", "messages", "responses"])
def test_two_calls_with_one_id_reach_the_upstream_as_two_with_their_own_results(rig: Rig, upstream: str) -> None:
    calls = [{"functionCall": {"id": "same", "name": "weather", "args": {"city": city}}} for city in ("Oslo", "Ulm")]
    results = [
        {"functionResponse": {"id": "same", "name": "weather", "response": {"output": f"It {what}s."}}}
        for what in ("snow", "rain")
    ]
    contents = [{"parts": [{"text": "hi"}]}, {"role": "model", "parts": calls}, {"parts": results}]
    rig.play(upstream, TEXT, stream=False)
    body = msgspec.json.encode({"contents": contents})
    answer = generate(rig, f"/v1beta/models/{upstream}/m:{GENERATE}", body, "x-dragoman-explain: 1")
    assert answer.status == 200
    assert "/contents/1/parts/1/functionCall/id" in str(answer.headers)
    sent = str(rig.calls(upstream)[-1].json)
    assert (sent.count("'same'"), sent.count("'call_1'")) == (2, 2)
    places = [sent.index(word) for word in ("Oslo", "Ulm", "It snows.", "It rains.")]
    assert places == sorted(places)


def test_a_loss_is_counted_explained_and_refused_in_strict_mode(rig: Rig) -> None:
    rig.play("chat", TEXT, stream=False)
    answer = generate(rig, f"/v1beta/models/chat/m:{GENERATE}", BODY, "x-dragoman-explain: 1")
    assert answer.get("x-dragoman-loss") == "1"
    assert '"/futureField"' in (answer.get("x-dragoman-loss-detail") or "")
    strict = generate(rig, f"/v1beta/models/chat/m:{GENERATE}", BODY, "x-dragoman-strict: 1")
    error = json_of(strict)["error"]
    assert (strict.status, error["status"]) == (400, "INVALID_ARGUMENT")
    assert "futureField" in str(error["details"])


# Models and counts


def test_models_are_listed_in_pages_and_one_by_one(rig: Rig, sdk: genai.Client) -> None:
    rig.gateway.settle()
    assert {"models/chat/m", "models/chat/n"} <= {model.name for model in sdk.models.list()}
    first = json_of(get(rig.port, "/v1beta/models?pageSize=1", key=KEY))
    assert len(first["models"]) == 1
    rest = json_of(get(rig.port, f"/v1beta/models?pageToken={first['nextPageToken']}", key=KEY))
    assert "nextPageToken" not in rest
    assert sdk.models.get(model="chat/m").name == "models/chat/m"
    for path in ("/v1beta/models/chat/m", "/v1beta/models/chat%2Fm", "/v1beta1/publishers/google/models/chat/m"):
        assert json_of(get(rig.port, path, key=KEY))["name"] == "models/chat/m"
    missing = get(rig.port, "/v1beta/models/chat/none", key=KEY)
    assert (missing.status, json_of(missing)["error"]["status"]) == (404, "NOT_FOUND")


def test_tokens_are_counted_upstream_or_estimated(rig: Rig) -> None:
    fake = rig.play("gemini", Answer(b'{ "totalTokens": 31 }', content_type=JSON))
    answer = generate(rig, f"/v1beta/models/gemini/m:{COUNT}")
    assert (answer.body, answer.get("x-dragoman-estimate")) == (b'{ "totalTokens": 31 }', None)
    assert fake.calls[-1].path == f"/v1/models/m:{COUNT}"
    estimated = generate(rig, f"/v1/models/chat/m:{COUNT}")
    assert estimated.get("x-dragoman-estimate") == "1"
    few = json_of(estimated)["totalTokens"]
    long = {"contents": [{"parts": [{"text": "x"}]}], "systemInstruction": {"parts": [{"text": "word " * 100}]}}
    more = json_of(generate(rig, f"/v1/models/chat/m:{COUNT}", msgspec.json.encode({"generateContentRequest": long})))
    assert more["totalTokens"] > few + 50


@pytest.mark.parametrize("upstream", ["chat", "gemini"])
def test_usage_is_noted_as_reported_with_thoughts_and_cached_tokens(rig: Rig, upstream: str) -> None:
    scripted = CASES["cached and reasoning tokens"].scripted
    rig.play(upstream, scripted)
    path = f"/v1beta/models/{upstream}/m:{STREAM}?alt=sse"
    assert generate(rig, path, BODY, f"x-request-id: usage-{upstream}").status == 200
    outcome = rig.gateway.outcome(f"usage-{upstream}")
    usage, tokens = outcome.usage, scripted.tokens
    assert usage is not None
    assert (usage.input, usage.output, usage.cache_read) == (tokens.input, tokens.output, tokens.cached)
    assert (usage.reasoning, usage.source) == (tokens.reasoning, UsageSource.REPORTED)
    assert (outcome.client_protocol, outcome.passthrough) == ("gemini", upstream == "gemini")


# Reasoning over several turns


def test_signed_reasoning_comes_back_exact_through_the_sdks_own_chat(rig: Rig, sdk: genai.Client) -> None:
    seal = base64.b64encode(b"signed by the vendor").decode()
    first = ScriptedReply((Thinking("Weigh it.", seal), Text("Let me look."), WEATHER), Stop.TOOL)
    fake = rig.play(
        "messages",
        first,
        "Sunny.",
    )
    chat = sdk.chats.create(
        model="messages/claude-sonnet-4-5",
        config={
            "tools": [{"function_declarations": [{"name": "weather"}]}],
            "thinking_config": {"thinking_budget": 2048, "include_thoughts": True},
        },
    )
    list(chat.send_message_stream("What is the weather?"))
    answer = types.Part.from_function_response(name="weather", response={"output": "sun"})
    assert "".join(chunk.text or "" for chunk in chat.send_message_stream(answer)) == "Sunny."
    assistant, results = fake.calls[-1].json["messages"][1:]
    thinking, content, use = assistant["content"]
    assert (thinking["thinking"], thinking["signature"]) == ("Weigh it.", seal)
    assert (content["text"], use["name"], use["id"]) == ("Let me look.", "weather", WEATHER.id)
    assert [block["tool_use_id"] for block in results["content"]] == [WEATHER.id]


def test_reasoning_survives_a_client_that_keeps_only_the_signature_of_a_call(rig: Rig) -> None:
    seal = base64.b64encode(b"signed").decode()
    first = ScriptedReply(
        (Thinking("Weigh it.", seal), Text("Let me look."), ToolCall("call_9", "weather", "{}")), Stop.TOOL
    )
    fake = rig.play("messages", first, stream=False)
    path = f"/v1beta/models/messages/claude-sonnet-4-5:{GENERATE}"
    content = json_of(generate(rig, path))["candidates"][0]["content"]
    calls = [part for part in content["parts"] if "functionCall" in part]
    contents = [
        {"parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"text": "Let me look."}, *calls]},
        {"parts": [{"functionResponse": {"id": "call_9", "name": "weather", "response": {"output": "sun"}}}]},
    ]
    assert generate(rig, path, msgspec.json.encode({"contents": contents})).status == 200
    kinds = [block["type"] for block in fake.calls[-1].json["messages"][1]["content"]]
    assert kinds == ["thinking", "text", "tool_use"]


def test_an_envelope_of_another_vendor_never_reaches_a_gemini_upstream(rig: Rig) -> None:
    seal = base64.b64encode(b"signed").decode()
    first = ScriptedReply((Thinking("Weigh it.", seal), ToolCall("call_9", "weather", "{}")), Stop.TOOL)
    rig.play("messages", first, stream=False)
    content = json_of(generate(rig, f"/v1beta/models/messages/claude-sonnet-4-5:{GENERATE}"))["candidates"][0][
        "content"
    ]
    contents = [
        {"parts": [{"text": "hi"}]},
        content,
        {"parts": [{"functionResponse": {"id": "call_9", "name": "weather", "response": {}}}]},
    ]
    fake = rig.play("gemini", TEXT, stream=False)
    assert (
        generate(rig, f"/v1beta/models/gemini/m:{GENERATE}", msgspec.json.encode({"contents": contents})).status == 200
    )
    assert b"ZGdtMS" not in fake.calls[-1].body
    assert b"functionCall" in fake.calls[-1].body
