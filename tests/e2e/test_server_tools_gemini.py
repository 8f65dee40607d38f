"""Searches and pages for Gemini clients: grounding metadata, one reply over all rounds, judged by google-genai."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.genai import types

from e2e.kiro_rig import MODEL, kiro_rigged
from e2e.search_scene import (
    CHAT_SEARCHES,
    FOUND,
    JSON,
    SearchScene,
    chat_calls,
    chat_text,
    message,
    search_scene,
)
from e2e.test_server_tools_kiro import ANSWERS as KIRO_ANSWERS
from e2e.test_server_tools_kiro import FOUND as KIRO_FOUND
from e2e.test_server_tools_kiro import SEARCHES as KIRO_SEARCHES
from e2e.test_server_tools_pauses import FIRST, LAST
from fakes.upstream import Answer, FakeUpstream, Gate, ReceivedRequest
from gateway import KEY
from raw_http import post
from sdk_replies_gemini import google_client
from wire_json import JsonObject

ANSWERS = chat_text("🐼 See [One", "](https://a.example/1) and [x](https://no.example/).")
URL = "https://a.example/1"
SEARCH = types.Tool(google_search=types.GoogleSearch())
Reply = list[types.GenerateContentResponse]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with FakeUpstream(intercept=_extract) as tavily:
        fetch = f'[tools.web_fetch]\nbackend = "tavily"\nendpoint = "{tavily.url}"\napi_key = "tvly-fake"\n'
        with search_scene(tmp_path_factory.mktemp("gemini"), "chat", settings=fetch) as scene:
            yield scene


def _extract(request: ReceivedRequest) -> Answer:
    found = {"url": request.json["urls"][0], "raw_content": "Pandas eat bamboo.", "title": "Pandas"}
    return Answer(json.dumps({"results": [found]}).encode(), content_type=JSON)


def reply_of(
    scene: SearchScene, *, stream: bool, tool: str = "googleSearch", text: str = "pandas?", id: str | None = None
) -> Reply:
    models = google_client(scene.gateway.url, KEY).models
    fetch = types.Tool(url_context=types.UrlContext())
    options = None if id is None else types.HttpOptions(headers={"x-request-id": id})
    config = types.GenerateContentConfig(tools=[SEARCH if tool == "googleSearch" else fetch], http_options=options)
    if stream:
        return list(models.generate_content_stream(model="up/m", contents=text, config=config))
    return [models.generate_content(model="up/m", contents=text, config=config)]


def stream_of(scene: SearchScene) -> Iterator[types.GenerateContentResponse]:
    models = google_client(scene.gateway.url, KEY).models
    config = types.GenerateContentConfig(tools=[SEARCH])
    yield from models.generate_content_stream(model="up/m", contents="pandas?", config=config)


def text_of(reply: Reply) -> str:
    parts = [part for chunk in reply for part in (_candidate(chunk).content or types.Content()).parts or ()]
    return "".join(part.text or "" for part in parts if not part.thought)


def _candidate(chunk: types.GenerateContentResponse) -> types.Candidate:
    assert chunk.candidates is not None
    [candidate] = chunk.candidates
    return candidate


def grounding_of(reply: Reply) -> types.GroundingMetadata:
    """The metadata, which stands on the last chunk alone."""
    assert all(_candidate(chunk).grounding_metadata is None for chunk in reply[:-1])
    metadata = _candidate(reply[-1]).grounding_metadata
    assert metadata is not None
    return metadata


def sources_of(metadata: types.GroundingMetadata) -> list[tuple[str | None, str | None]]:
    return [(chunk.web.uri, chunk.web.title) for chunk in metadata.grounding_chunks or () if chunk.web is not None]


@pytest.mark.parametrize("stream", [True, False])
def test_a_search_is_grounding_metadata_on_the_last_chunk(scene: SearchScene, stream: bool) -> None:
    scene.play(CHAT_SEARCHES, ANSWERS)
    reply = reply_of(scene, stream=stream)
    text = "Let me look. 🐼 See [One](https://a.example/1) and [x](https://no.example/)."
    assert text_of(reply) == text
    assert _candidate(reply[-1]).finish_reason is types.FinishReason.STOP
    assert len({chunk.response_id for chunk in reply}) == 1
    metadata = grounding_of(reply)
    assert metadata.web_search_queries == ["pandas"]
    assert sources_of(metadata) == [(URL, "One"), ("https://b.example/2", "https://b.example/2")]
    [support] = metadata.grounding_supports or []
    segment = support.segment
    assert segment is not None
    assert text.encode()[segment.start_index or 0 : segment.end_index] == f"[One]({URL})".encode()
    assert support.grounding_chunk_indices == [0]


@pytest.mark.parametrize("stream", [True, False])
def test_what_later_rounds_read_is_counted_as_the_prompt_of_tool_use(scene: SearchScene, stream: bool) -> None:
    scene.play(CHAT_SEARCHES, ANSWERS)
    usage = reply_of(scene, stream=stream, id=f"counted-{stream}")[-1].usage_metadata
    assert usage is not None
    assert (usage.prompt_token_count, usage.tool_use_prompt_token_count) == (10, 30)
    assert (usage.candidates_token_count, usage.total_token_count) == (12, 52)
    counted = scene.gateway.outcome(f"counted-{stream}").usage
    assert counted is not None
    assert counted.input == 40


def test_the_search_is_offered_as_a_function_and_is_no_loss(scene: SearchScene) -> None:
    scene.play(CHAT_SEARCHES, ANSWERS)
    body = {"contents": [{"parts": [{"text": "pandas?"}]}], "tools": [{"googleSearch": {}}]}
    reply = post(scene.gateway.port, "/v1beta/models/up%2Fm:generateContent", json.dumps(body).encode())
    assert dict(reply.headers)["x-dragoman-loss"] == "0"
    assert [tool["function"]["name"] for tool in scene.sent[0]["tools"]] == ["web_search"]
    assert len(scene.searxng.requests) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_page_is_url_context_metadata_and_a_source(scene: SearchScene, stream: bool) -> None:
    call = chat_calls(("call_1", "web_fetch", json.dumps({"url": URL})), text="")
    scene.play(call, chat_text(f"See [it]({URL})."))
    reply = reply_of(scene, stream=stream, tool="urlContext", text=f"Read {URL}")
    last = _candidate(reply[-1])
    assert last.url_context_metadata is not None
    [page] = last.url_context_metadata.url_metadata or []
    assert page.retrieved_url == URL
    assert page.url_retrieval_status is types.UrlRetrievalStatus.URL_RETRIEVAL_STATUS_SUCCESS
    metadata = grounding_of(reply)
    assert sources_of(metadata) == [(URL, "Pandas")]
    assert len(metadata.grounding_supports or ()) == 1


def test_a_page_is_a_source_even_if_it_is_not_cited(scene: SearchScene) -> None:
    scene.play(chat_calls(("call_1", "web_fetch", json.dumps({"url": URL})), text=""), chat_text("Done."))
    metadata = grounding_of(reply_of(scene, stream=True, tool="urlContext", text=f"Read {URL}"))
    assert sources_of(metadata) == [(URL, "Pandas")]
    assert not metadata.grounding_supports


def test_a_page_that_is_not_fetched_is_an_error_in_the_metadata(scene: SearchScene) -> None:
    call = chat_calls(("call_1", "web_fetch", json.dumps({"url": "https://invented.example/"})), text="")
    scene.play(call, chat_text("No."))
    last = _candidate(reply_of(scene, stream=True, tool="urlContext")[-1])
    assert last.url_context_metadata is not None
    [page] = last.url_context_metadata.url_metadata or []
    assert page.url_retrieval_status is types.UrlRetrievalStatus.URL_RETRIEVAL_STATUS_ERROR


def test_a_search_that_fails_leaves_a_reply_without_sources(scene: SearchScene) -> None:
    scene.play(CHAT_SEARCHES, ANSWERS)
    scene.script_search(Answer(b"{}", 500, JSON))
    reply = reply_of(scene, stream=True)
    assert _candidate(reply[-1]).finish_reason is types.FinishReason.STOP
    assert sources_of(grounding_of(reply)) == []
    assert "unavailable" in scene.sent[1]["messages"][-1]["content"]


def test_an_empty_chunk_keeps_the_stream_alive_while_a_search_runs(tmp_path: Path) -> None:
    with search_scene(tmp_path, "chat", settings="[server]\nkeep_alive_s = 0.1") as scene:
        scene.play(CHAT_SEARCHES, ANSWERS)
        kept_alive = threading.Event()
        scene.script_search(Answer(json.dumps(FOUND).encode(), content_type=JSON, gate=Gate(kept_alive)))
        reply: Reply = []
        for chunk in stream_of(scene):
            reply.append(chunk)
            if len([each for each in reply if text_of([each]) == ""]) >= 3:
                kept_alive.set()
    assert text_of(reply).startswith("Let me look. 🐼 See")


@pytest.mark.parametrize("stream", [True, False])
def test_gemini_clis_search_over_kiro_has_text_and_sources(tmp_path: Path, stream: bool) -> None:
    with kiro_rigged(tmp_path) as rig:
        rig.fake.found = KIRO_FOUND
        rig.play(KIRO_SEARCHES, KIRO_ANSWERS)
        body = {"contents": [{"role": "user", "parts": [{"text": "pandas"}]}], "tools": [{"googleSearch": {}}]}
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        path = f"/v1beta/models/{MODEL.replace('/', '%2F')}:{verb}"
        answer = post(rig.gateway.port, path, json.dumps(body).encode()).body
    chunks = [json.loads(line[5:]) for line in answer.splitlines() if line.startswith(b"data:")] or [json.loads(answer)]
    last = chunks[-1]["candidates"][0]
    assert last["finishReason"] == "STOP"
    assert [chunk["web"] for chunk in last["groundingMetadata"]["groundingChunks"]] == [
        {"uri": "https://a.example/1", "title": "One"},
        {"uri": "https://b.example/2", "title": "Two"},
    ]
    texts = [part.get("text", "") for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(texts) == "Let me look. See [One](https://a.example/1)."


@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_that_anthropic_pauses_continues(tmp_path: Path, stream: bool) -> None:
    with search_scene(tmp_path, "messages", searches=False) as native:
        native.play(message(FIRST, "pause_turn", 10, 5), message(LAST, "end_turn", 30, 7))
        reply = reply_of(native, stream=stream)
        assert len(native.upstream.calls) == 2
    assert text_of(reply) == "Look: one, two."
    metadata = grounding_of(reply)
    assert metadata.web_search_queries == ["q1", "q2"]
    assert sources_of(metadata) == [("https://v.example/", "V")]


def test_the_history_of_a_gemini_client_holds_no_trace_of_a_search(scene: SearchScene) -> None:
    chat = google_client(scene.gateway.url, KEY).chats.create(
        model="up/m", config=types.GenerateContentConfig(tools=[types.Tool(google_search=types.GoogleSearch())])
    )
    scene.play(CHAT_SEARCHES, ANSWERS, chat_text("More."))
    list(chat.send_message_stream("pandas?"))
    assert text_of(list(chat.send_message_stream("and?"))) == "More."
    roles = [turn["role"] for turn in scene.sent[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_a_function_of_the_client_beside_the_search_ends_the_reply(scene: SearchScene) -> None:
    weather = ("call_2", "get_weather", '{"city": "Rome"}')
    scene.play(chat_calls(("call_1", "web_search", '{"query": "pandas"}'), weather))
    declared: JsonObject = {"name": "get_weather", "parameters": {"type": "OBJECT"}}
    body = {
        "contents": [{"parts": [{"text": "pandas?"}]}],
        "tools": [{"googleSearch": {}}, {"functionDeclarations": [declared]}],
    }
    reply = post(scene.gateway.port, "/v1beta/models/up%2Fm:generateContent", json.dumps(body).encode())
    [candidate] = json.loads(reply.body)["candidates"]
    calls = [part["functionCall"]["name"] for part in candidate["content"]["parts"] if "functionCall" in part]
    assert calls == ["get_weather"]
    assert candidate["groundingMetadata"]["webSearchQueries"] == ["pandas"]
    assert len(scene.upstream.calls) == 1
