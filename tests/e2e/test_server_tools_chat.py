"""Web search for Chat clients: annotations and nothing else, judged by OpenAI's SDK."""

import json
from collections.abc import Iterator

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from e2e.search_scene import (
    CHAT_ANSWERS,
    CHAT_SEARCHES,
    JSON,
    SearchScene,
    chat_calls,
    chat_text,
    message,
    search_scene,
)
from fakes.upstream import Answer
from raw_http import post
from wire_json import JsonObject

USER: JsonObject = {"role": "user", "content": "pandas?"}
LINK = "[One](https://a.example/1)"
TEXT = f"Let me look. See {LINK} and [x](https://no.example/)."
WEATHER: JsonObject = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with search_scene(tmp_path_factory.mktemp("chat"), "chat") as scene:
        yield scene


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with search_scene(tmp_path_factory.mktemp("without"), "chat", searches=False) as scene:
        yield scene


def ask(**more: object) -> JsonObject:
    return {"model": "up/m", "messages": [USER], "web_search_options": {}, **more}


def chunks(scene: SearchScene, **more: object) -> list[ChatCompletionChunk]:
    options = {"include_usage": True}
    request = ask(stream_options=options, **more)
    return list(scene.sdk.openai.chat.completions.create(**request, stream=True))


def deltas(events: list[ChatCompletionChunk]) -> list[JsonObject]:
    return [choice.delta.model_dump(exclude_none=True) for event in events for choice in event.choices]


def whole(scene: SearchScene, **more: object) -> ChatCompletion:
    reply = scene.sdk.openai.chat.completions.create(**ask(**more))
    assert isinstance(reply, ChatCompletion)
    return reply


def annotation(start: int) -> JsonObject:
    place = {"url": "https://a.example/1", "title": "One", "start_index": start, "end_index": start + len(LINK)}
    return {"type": "url_citation", "url_citation": place}


def test_a_stream_has_one_chunk_of_annotations_before_the_finish_reason(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    events = chunks(chat)
    seen = deltas(events)
    assert "".join(delta.get("content") or "" for delta in seen) == TEXT
    assert [place for place, delta in enumerate(seen) if "annotations" in delta] == [len(seen) - 2]
    assert seen[-2]["annotations"] == [annotation(TEXT.index(LINK))]
    assert [choice.finish_reason for event in events for choice in event.choices][-1] == "stop"
    assert not any("tool_calls" in delta for delta in seen)
    assert len({event.id for event in events}) == 1
    assert sum(delta.get("role") == "assistant" for delta in seen) == 1
    counts = events[-1].usage
    assert counts is not None
    assert (counts.prompt_tokens, counts.completion_tokens) == (40, 12)


def test_the_stream_helper_reads_text_and_annotations(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    with chat.sdk.openai.chat.completions.stream(**ask()) as stream:
        reply = stream.get_final_completion()
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"


def test_a_whole_reply_has_annotations_in_its_message(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    reply = whole(chat)
    message = reply.choices[0].message
    assert message.content == TEXT
    assert [each.model_dump() for each in message.annotations or []] == [annotation(TEXT.index(LINK))]
    assert message.tool_calls is None
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 52


def test_offsets_count_code_points(chat: SearchScene) -> None:
    chat.play(chat_calls(("call_1", "web_search", '{"query": "x"}'), text="🐼 é "), chat_text("🐼🐼 ", LINK, " 🐼"))
    text = f"🐼 é 🐼🐼 {LINK} 🐼"
    [cited] = [delta for delta in deltas(chunks(chat)) if "annotations" in delta]
    assert cited["annotations"] == [annotation(text.index(LINK))]
    chat.play(chat_calls(("call_1", "web_search", '{"query": "x"}'), text="🐼 é "), chat_text("🐼🐼 ", LINK, " 🐼"))
    assert [each.model_dump() for each in whole(chat).choices[0].message.annotations or []] == cited["annotations"]


def test_the_request_is_translated_though_the_protocol_is_the_same(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    chunks(chat, tools=[WEATHER], web_search_options={"search_context_size": "low"})
    first, second = chat.sent
    assert "web_search_options" not in first
    assert [tool["function"]["name"] for tool in first["tools"]] == ["get_weather", "web_search"]
    assert second["messages"][1]["tool_calls"][0]["id"] == second["messages"][2]["tool_call_id"]


def test_a_search_beside_a_call_of_the_client_shows_the_clients_call_alone(chat: SearchScene) -> None:
    both = (("call_1", "web_search", '{"query": "x"}'), ("call_2", "get_weather", '{"city": "Rome"}'))
    chat.play(chat_calls(*both))
    reply = whole(chat, tools=[WEATHER])
    calls = [call.model_dump() for call in reply.choices[0].message.tool_calls or []]
    assert [(call["id"], call["function"]["name"]) for call in calls] == [("call_2", "get_weather")]
    assert reply.choices[0].finish_reason == "tool_calls"
    chat.play(chat_calls(*both))
    events = chunks(chat, tools=[WEATHER])
    named = [call["function"].get("name") for delta in deltas(events) for call in delta.get("tool_calls", [])]
    assert [name for name in named if name] == ["get_weather"]
    assert [choice.finish_reason for event in events for choice in event.choices][-1] == "tool_calls"


def test_a_search_that_the_gateway_runs_is_no_loss(chat: SearchScene) -> None:
    silent = chat_calls(("call_1", "web_search", '{"query": "pandas"}'), text="")
    chat.play(silent, CHAT_ANSWERS)
    reply = post(chat.gateway.port, "/v1/chat/completions", json.dumps(ask()).encode(), "x-dragoman-explain: 1")
    headers = dict(reply.headers)
    assert (headers["x-dragoman-loss"], headers.get("x-dragoman-loss-detail", "[]")) == ("0", "[]")


def test_a_search_that_fails_is_not_seen(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    chat.script_search(Answer(b"{}", status=500, content_type=JSON))
    reply = whole(chat)
    assert reply.choices[0].message.content == TEXT
    assert not reply.choices[0].message.annotations
    assert "Error (unavailable)" in chat.sent[1]["messages"][2]["content"]


def test_without_a_backend_the_bytes_pass(without: SearchScene) -> None:
    without.play(CHAT_ANSWERS)
    body = json.dumps(ask(stream=True, web_search_options={"search_context_size": "low"})).encode()
    reply = post(without.gateway.port, "/v1/chat/completions", body)
    assert without.upstream.calls[0].body == body.replace(b'"up/m"', b'"m"')
    assert reply.body == CHAT_ANSWERS


def test_a_request_without_search_passes_where_a_backend_is_configured(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    body = json.dumps({"model": "up/m", "messages": [USER], "stream": True}).encode()
    reply = post(chat.gateway.port, "/v1/chat/completions", body)
    assert chat.upstream.calls[0].body == body.replace(b'"up/m"', b'"m"')
    assert reply.body == CHAT_ANSWERS


def test_a_messages_upstream_with_the_tool_searches_itself(tmp_path_factory: pytest.TempPathFactory) -> None:
    hit = {"type": "web_search_result", "url": "https://v.example/", "title": "V", "encrypted_content": "x"}
    cited: JsonObject = {
        "type": "web_search_result_location",
        "url": "https://v.example/",
        "title": "V",
        "encrypted_index": "i",
        "cited_text": "c",
    }
    blocks: list[JsonObject] = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{**hit, "page_age": None}]},
        {"type": "text", "text": "So it is.", "citations": [cited]},
    ]
    with search_scene(tmp_path_factory.mktemp("native"), "messages") as scene:
        scene.play(message(blocks, "end_turn"))
        seen = deltas(chunks(scene))
        assert scene.searxng.requests == []
        assert scene.sent[0]["tools"][0]["type"].startswith("web_search_")
        assert [delta["annotations"] for delta in seen if "annotations" in delta] == [
            [
                {
                    "type": "url_citation",
                    "url_citation": {"url": "https://v.example/", "title": "V", "start_index": 0, "end_index": 9},
                }
            ]
        ]
