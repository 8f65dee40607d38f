"""Searches in the history of a Messages client: the gateway's own, the vendor's, and those that have no result yet."""

import pytest
from anthropic import APIStatusError
from anthropic.types import WebSearchToolResultBlock

from asking import send
from e2e.search_scene import (
    ANSWERS,
    BROKEN,
    HIT,
    MORE,
    SEARCH,
    SEARCHES,
    URL,
    USER,
    WEATHER,
    SearchScene,
    content_of,
    kinds,
    outcomes,
    vendor_search,
    write_message,
)
from narrowing import expect
from wire_json import JsonObject

PLAIN = write_message([{"type": "text", "text": "Fine."}])
THEIRS: JsonObject = {"role": "assistant", "content": [*vendor_search(content=[HIT]), {"type": "text", "text": "So."}]}
USE: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_p", "name": "web_search", "input": {"query": "pandas"}}
PAUSED: JsonObject = {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, USE]}


# To the vendor's own API, and from it


def test_our_own_search_reaches_the_vendor_as_text_without_a_token(scene: SearchScene) -> None:
    ours = content_of(scene.play(SEARCHES, ANSWERS).reply())
    native = scene.on("anthropic").play(PLAIN)
    native.reply(THEIRS, USER, ours, MORE)
    [request] = native.requests
    assert b"dgm1." not in request.body
    assert request.json["messages"][1] == THEIRS, "the vendor's own stays as it was"
    blocks = request.json["messages"][3]["content"]
    assert [block["type"] for block in blocks] == ["text"] * 5
    assert "pandas" in blocks[1]["text"]
    assert f"1. One\nURL: {URL}\nDate: 2026-01-02\nText of one." in blocks[1]["text"]
    assert all("citations" not in block for block in blocks)
    assert request.json["tools"] == [SEARCH]
    losses = native.play(PLAIN).ask("messages", stream=True, messages=[USER, ours, MORE]).losses
    assert losses == [("/messages/1/content/1", "approximated"), ("/messages/1/content/4/citations", "dropped")]


def test_the_vendors_own_search_passes_byte_for_byte(scene: SearchScene) -> None:
    native = scene.on("anthropic").play(PLAIN)
    body = native.write_request(THEIRS, USER)
    send(scene.gateway, "POST", "/v1/messages", body)
    assert native.got_bytes(body)


def test_the_vendors_search_is_call_and_result_with_titles_for_others(scene: SearchScene) -> None:
    losses = scene.play(ANSWERS).ask("messages", stream=True, messages=[USER, THEIRS, USER]).losses
    assert losses == [("/messages/1/content/0", "approximated")]
    _, call, result, rest, _ = scene.sent[0]["messages"]
    assert call["tool_calls"][0]["function"] == {"name": "web_search", "arguments": '{"query":"q"}'}
    assert "1. V\nURL: https://v.example/" in result["content"]
    assert "vendor-secret" not in result["content"]
    assert rest["content"] == "So."
    failed = vendor_search(content={"type": "web_search_tool_result_error", "error_code": "too_many_requests"})
    scene.play(ANSWERS).reply({"role": "assistant", "content": [*failed, {"type": "text", "text": "So."}]}, USER)
    assert "too_many_requests" in scene.sent[0]["messages"][2]["content"]


# Searches without a result: they run before the model gets the request


@pytest.mark.parametrize("stream", [True, False])
def test_a_paused_search_runs_and_the_reply_continues(scene: SearchScene, stream: bool) -> None:
    reply = scene.play(ANSWERS).reply(PAUSED, stream=stream)
    assert kinds(reply)[:2] == ["web_search_tool_result", "text"], "the client has the call"
    assert expect(WebSearchToolResultBlock, reply.content[0]).tool_use_id == "srvtoolu_p"
    assert reply.stop_reason == "end_turn"
    assert reply.usage.server_tool_use is not None
    assert (reply.usage.server_tool_use.web_search_requests, reply.usage.input_tokens) == (1, 30)
    [sent] = scene.sent
    _, call, found = sent["messages"]
    assert (call["role"], call["content"], found["role"]) == ("assistant", "Let me look.", "tool")
    assert call["tool_calls"][0]["id"] == found["tool_call_id"]
    assert "Text of one." in found["content"]


def test_a_search_beside_a_call_of_the_client_runs_when_its_result_comes(scene: SearchScene) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]}
    scene.play(ANSWERS)
    reply = scene.reply({"role": "assistant", "content": [USE, call]}, result, tools=[SEARCH, WEATHER])
    assert kinds(reply)[:2] == ["web_search_tool_result", "text"]
    _, message, *found = scene.sent[0]["messages"]
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["web_search", "get_weather"]
    assert [each["tool_call_id"] for each in found] == [each["id"] for each in message["tool_calls"]]
    assert "Text of one." in found[0]["content"]
    assert found[1]["content"] == "sunny"
    ran = scene.sent[0]["messages"]
    scene.play(ANSWERS).reply(
        {"role": "assistant", "content": [USE, call]}, result, content_of(reply), MORE, tools=[SEARCH, WEATHER]
    )
    assert (scene.searched, scene.sent[0]["messages"][: len(ran)]) == ([], ran)


@pytest.mark.parametrize("merged", [True, False])
def test_a_search_that_ran_so_is_not_run_again(scene: SearchScene, merged: bool) -> None:
    rest = content_of(scene.play(ANSWERS).reply(PAUSED))
    together = {"role": "assistant", "content": [*PAUSED["content"], *rest["content"]]}
    scene.play(ANSWERS).reply(*([together] if merged else [PAUSED, rest]), MORE)
    assert scene.searched == []
    _, call, found, message, _ = scene.sent[0]["messages"]
    assert [each["function"]["name"] for each in call["tool_calls"]] == ["web_search"]
    assert "Text of one." in found["content"]
    assert message["content"].startswith("See [One]")


def test_a_result_in_the_vendors_next_message_belongs_to_its_search(scene: SearchScene) -> None:
    _, result = vendor_search("srvtoolu_p", content=[HIT])
    went_on = {"role": "assistant", "content": [result, {"type": "text", "text": "So."}]}
    scene.play(ANSWERS).reply(PAUSED, went_on, MORE)
    assert scene.searched == []
    assert "https://v.example/" in scene.sent[0]["messages"][2]["content"]


def test_limits_and_choices_hold_for_it_too(scene: SearchScene) -> None:
    twice = {"role": "assistant", "content": [USE, {**USE, "id": "srvtoolu_q"}]}
    first, second = outcomes(scene.play(ANSWERS).reply(twice, tools=[{**SEARCH, "max_uses": 1}]))
    assert (isinstance(first, list), second) == (True, "max_uses_exceeded")
    assert not scene.sent[0].get("tools")
    scene.play(ANSWERS).reply(PAUSED, MORE, tools=[WEATHER])
    assert scene.searched == [], "the request has no search"
    assert "not run" in scene.sent[0]["messages"][2]["content"]
    scene.play(ANSWERS).reply(PAUSED, tool_choice={"type": "tool", "name": "web_search"})
    assert scene.sent[0]["tool_choice"] == {"type": "function", "function": {"name": "web_search"}}
    with pytest.raises(APIStatusError):
        scene.play(BROKEN).reply(PAUSED)


def test_the_vendor_gets_its_own_search_unchanged(scene: SearchScene) -> None:
    native = scene.on("anthropic").play(PLAIN)
    native.reply(PAUSED)
    assert native.sent[0]["messages"][1] == PAUSED
    assert native.searched == []
