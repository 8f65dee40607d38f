"""Searches that a client's history leaves without a result: they run before the model gets the request."""

import json
from collections.abc import Iterator

import pytest
from anthropic import APIStatusError
from anthropic.types import Message, ServerToolUseBlock, WebSearchToolResultBlock

from e2e.search_scene import CHAT_ANSWERS, JSON, SearchScene, message, search_scene
from fakes.upstream import Answer
from wire_json import JsonObject

TOOL: JsonObject = {"type": "web_search_20250305", "name": "web_search"}
WEATHER: JsonObject = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
USER: JsonObject = {"role": "user", "content": "pandas?"}
USE: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_p", "name": "web_search", "input": {"query": "pandas"}}
PAUSED: JsonObject = {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, USE]}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with search_scene(tmp_path_factory.mktemp("chat"), "chat") as scene:
        yield scene


def ask(*history: JsonObject, **more: object) -> JsonObject:
    return {"model": "up/m", "max_tokens": 100, "messages": [USER, *history], "tools": [TOOL], **more}


def reply_to(scene: SearchScene, *history: JsonObject, stream: bool = True, **more: object) -> Message:
    if not stream:
        whole = scene.sdk.anthropic.messages.create(**ask(*history, **more))
        assert isinstance(whole, Message)
        return whole
    with scene.sdk.anthropic.messages.stream(**ask(*history, **more)) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [True, False])
def test_a_paused_search_runs_and_the_reply_continues(chat: SearchScene, stream: bool) -> None:
    chat.play(CHAT_ANSWERS)
    reply = reply_to(chat, PAUSED, stream=stream)
    assert [block.type for block in reply.content][:3] == ["server_tool_use", "web_search_tool_result", "text"]
    use, result = reply.content[:2]
    assert isinstance(use, ServerToolUseBlock)
    assert isinstance(result, WebSearchToolResultBlock)
    assert use.id == result.tool_use_id == "srvtoolu_p"
    assert reply.stop_reason == "end_turn"
    assert reply.usage.server_tool_use is not None
    assert reply.usage.server_tool_use.web_search_requests == 1
    assert reply.usage.input_tokens == 30
    [sent] = chat.sent
    _, call, found = sent["messages"]
    assert (call["role"], call["content"], found["role"]) == ("assistant", "Let me look.", "tool")
    assert call["tool_calls"][0]["id"] == found["tool_call_id"]
    assert "Text of one." in found["content"]


def test_a_search_beside_a_call_of_the_client_runs_when_its_result_comes(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    history = {"role": "assistant", "content": [USE, call]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]}
    reply = reply_to(chat, history, result, tools=[TOOL, WEATHER])
    assert [block.type for block in reply.content][:2] == ["server_tool_use", "web_search_tool_result"]
    _, message, *found = chat.sent[0]["messages"]
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["web_search", "get_weather"]
    assert [each["tool_call_id"] for each in found] == [each["id"] for each in message["tool_calls"]]
    assert "Text of one." in found[0]["content"]
    assert found[1]["content"] == "sunny"


@pytest.mark.parametrize("merged", [True, False])
def test_a_search_that_ran_so_is_not_run_again(chat: SearchScene, merged: bool) -> None:
    chat.play(CHAT_ANSWERS)
    rest = [block.model_dump(exclude_unset=True) for block in reply_to(chat, PAUSED).content]
    chat.play(CHAT_ANSWERS)
    history = [{"role": "assistant", "content": [*PAUSED["content"], *rest]}]
    if not merged:
        history = [PAUSED, {"role": "assistant", "content": rest}]
    reply_to(chat, *history, {"role": "user", "content": "more"})
    assert chat.searxng.requests == []
    _, call, found, message, _ = chat.sent[0]["messages"]
    assert [each["function"]["name"] for each in call["tool_calls"]] == ["web_search"]
    assert "Text of one." in found["content"]
    assert message["content"].startswith("See [One]")


def test_a_result_in_the_vendors_next_message_belongs_to_its_search(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    hit = {"type": "web_search_result", "url": "https://v.example/", "title": "V", "encrypted_content": "x"}
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_p", "content": [hit]}
    went_on = {"role": "assistant", "content": [result, {"type": "text", "text": "So."}]}
    reply_to(chat, PAUSED, went_on, {"role": "user", "content": "more"})
    assert chat.searxng.requests == []
    assert "https://v.example/" in chat.sent[0]["messages"][2]["content"]


def test_the_limit_of_uses_applies(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    history = {"role": "assistant", "content": [USE, {**USE, "id": "srvtoolu_q"}]}
    reply = reply_to(chat, history, tools=[{**TOOL, "max_uses": 1}])
    results = [block for block in reply.content if isinstance(block, WebSearchToolResultBlock)]
    assert isinstance(results[0].content, list)
    assert not isinstance(results[1].content, list)
    assert results[1].content.error_code == "max_uses_exceeded"
    assert not chat.sent[0].get("tools")


def test_without_the_tool_in_the_request_it_does_not_run(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    reply_to(chat, PAUSED, {"role": "user", "content": "more"}, tools=[WEATHER])
    assert chat.searxng.requests == []
    assert "not run" in chat.sent[0]["messages"][2]["content"]


def test_a_forced_search_stays_forced_in_the_first_round(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    reply_to(chat, PAUSED, tool_choice={"type": "tool", "name": "web_search"})
    assert chat.sent[0]["tool_choice"] == {"type": "function", "function": {"name": "web_search"}}


def test_an_upstream_that_fails_then_is_the_streams_error(chat: SearchScene) -> None:
    chat.play(Answer(json.dumps({"error": {"message": "broken"}}).encode(), status=500, content_type=JSON))
    with pytest.raises(APIStatusError):
        reply_to(chat, PAUSED)


def test_the_vendor_gets_its_own_search_unchanged(tmp_path_factory: pytest.TempPathFactory) -> None:
    with search_scene(tmp_path_factory.mktemp("native"), "messages") as scene:
        scene.play(message([{"type": "text", "text": "Fine."}], "end_turn"))
        reply_to(scene, PAUSED)
        assert scene.sent[0]["messages"][1] == PAUSED
        assert scene.searxng.requests == []
