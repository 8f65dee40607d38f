"""Replies that Anthropic pauses: continued for clients without a pause, passed to those that have one."""

import json
from collections.abc import Iterator

import pytest
from openai.types.responses import Response

from e2e.search_scene import SearchScene, message, search_scene
from raw_http import post
from wire_json import JsonObject

USER: JsonObject = {"role": "user", "content": "pandas?"}
THOUGHT: JsonObject = {"type": "thinking", "thinking": "Hm.", "signature": "sig-1+/="}
HIT: JsonObject = {
    "type": "web_search_result",
    "url": "https://v.example/",
    "title": "V",
    "encrypted_content": "vendor-secret",
    "page_age": None,
}
CITED: JsonObject = {
    "type": "web_search_result_location",
    "url": "https://v.example/",
    "title": "V",
    "encrypted_index": "vendor-index",
    "cited_text": "c",
}
MODEL = "up/claude-sonnet-4-5"


def search(number: int) -> list[JsonObject]:
    id = f"srvtoolu_{number}"
    return [
        {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": f"q{number}"}},
        {"type": "web_search_tool_result", "tool_use_id": id, "content": [HIT]},
    ]


SECOND_THOUGHT: JsonObject = {"type": "thinking", "thinking": "More.", "signature": "sig-2"}
FIRST: list[JsonObject] = [
    THOUGHT,
    {"type": "text", "text": "Look: "},
    *search(1),
    SECOND_THOUGHT,
    {"type": "text", "text": "one, ", "citations": [CITED]},
]
LAST: list[JsonObject] = [*search(2), {"type": "text", "text": "two."}]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with search_scene(tmp_path_factory.mktemp("native"), "messages", searches=False) as scene:
        yield scene


def ask_chat(scene: SearchScene, *, stream: bool) -> JsonObject:
    request: JsonObject = {"model": MODEL, "messages": [USER], "web_search_options": {}, "reasoning_effort": "low"}
    if not stream:
        return scene.sdk.openai.chat.completions.create(**request).model_dump()
    with scene.sdk.openai.chat.completions.stream(**request, stream_options={"include_usage": True}) as events:
        return events.get_final_completion().model_dump()


@pytest.mark.parametrize("stream", [True, False])
def test_a_paused_reply_continues_in_the_same_reply_to_a_chat_client(native: SearchScene, stream: bool) -> None:
    native.play(message(FIRST, "pause_turn", 10, 5), message(LAST, "end_turn", 30, 7))
    reply = ask_chat(native, stream=stream)
    assert reply["choices"][0]["message"]["content"] == "Look: one, two."
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (40, 12)


def test_the_usage_row_counts_the_rounds(native: SearchScene) -> None:
    native.play(message(FIRST, "pause_turn"), message(LAST, "end_turn"))
    request = {"model": MODEL, "messages": [USER], "web_search_options": {}}
    reply = post(native.gateway.port, "/v1/chat/completions", json.dumps(request).encode())
    assert native.gateway.outcome(dict(reply.headers)["x-request-id"]).rounds == 2


def test_the_reply_so_far_is_sent_back_unchanged(native: SearchScene) -> None:
    native.play(message(FIRST, "pause_turn"), message(LAST, "pause_turn"), message(LAST, "end_turn"))
    ask_chat(native, stream=True)
    first, second, third = native.sent
    assert second["messages"][:-1] == first["messages"]
    assert second["messages"][-1] == {"role": "assistant", "content": FIRST}
    assert third["messages"][-1] == {"role": "assistant", "content": [*FIRST, *LAST]}
    assert [second[key] for key in ("tools", "thinking", "model")] == [
        first[key] for key in ("tools", "thinking", "model")
    ]


def test_a_search_that_had_not_run_goes_back_without_a_result(native: SearchScene) -> None:
    use, result = search(1)
    content: list[JsonObject] = [{"type": "text", "text": "Look: "}, use]
    native.play(message(content, "pause_turn"), message([result, {"type": "text", "text": "two."}], "end_turn"))
    reply = ask_chat(native, stream=True)
    assert native.sent[1]["messages"][-1]["content"] == content
    assert reply["choices"][0]["message"]["content"] == "Look: two."


def test_a_reply_is_continued_five_times_at_most(native: SearchScene) -> None:
    native.play(message([{"type": "text", "text": "on "}, *search(1)], "pause_turn"))
    reply = ask_chat(native, stream=True)
    assert len(native.upstream.calls) == 6
    assert reply["choices"][0]["message"]["content"] == "on " * 6
    assert reply["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
def test_a_responses_client_gets_both_searches_in_one_response(native: SearchScene, stream: bool) -> None:
    native.play(message(FIRST, "pause_turn", 10, 5), message(LAST, "end_turn", 30, 7))
    request: JsonObject = {"model": MODEL, "input": "pandas?", "tools": [{"type": "web_search"}]}
    reply: Response
    if stream:
        with native.sdk.openai.responses.stream(**request) as events:
            seen = [each.type for each in events]
            reply = events.get_final_response()
        assert seen.count("response.created") == seen.count("response.completed") == 1
    else:
        reply = native.sdk.openai.responses.create(**request)
    assert reply.status == "completed"
    assert [item.type for item in reply.output].count("web_search_call") == 2
    assert reply.output_text == "Look: one, two."
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (40, 12)


def test_a_messages_client_gets_the_pause_itself(native: SearchScene) -> None:
    paused = message(FIRST, "pause_turn")
    native.play(paused)
    tool = {"type": "web_search_20250305", "name": "web_search"}
    request = {"model": MODEL, "max_tokens": 100, "messages": [USER], "tools": [tool], "stream": True}
    reply = post(native.gateway.port, "/v1/messages", json.dumps(request).encode())
    assert reply.body == paused
    assert len(native.upstream.calls) == 1
