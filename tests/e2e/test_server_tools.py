"""Web search that the gateway runs for an upstream that has none, judged by the vendors' SDKs."""

import json
from collections.abc import Iterator

import pytest
from anthropic.types import (
    CitationsWebSearchResultLocation,
    Message,
    ServerToolUseBlock,
    TextBlock,
    WebSearchToolResultBlock,
)

from e2e.search_scene import CHAT_ANSWERS, CHAT_SEARCHES, SearchScene, chat_calls, search_scene
from fakes.upstream import Answer
from wire_json import JsonObject

TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with search_scene(tmp_path_factory.mktemp("tools"), "chat") as scene:
        yield scene


WEATHER = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


def ask(**more: object) -> JsonObject:
    user = {"role": "user", "content": "pandas?"}
    return {"model": "up/m", "max_tokens": 100, "messages": [user], "tools": [TOOL], **more}


def stream_reply(scene: SearchScene, **more: object) -> tuple[list[str], Message]:
    with scene.sdk.anthropic.messages.stream(**ask(**more)) as stream:
        return [event.type for event in stream], stream.get_final_message()


def kinds(message: Message) -> list[str]:
    return [block.type for block in message.content]


def outcomes(message: Message) -> list[object]:
    """What each search returned: its URLs, or its error code."""
    found: list[object] = []
    for block in message.content:
        if isinstance(block, WebSearchToolResultBlock):
            content = block.content
            found.append([item.url for item in content] if isinstance(content, list) else content.error_code)
    return found


def test_a_stream_has_use_result_and_cited_text_in_one_message(scene: SearchScene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    types, message = stream_reply(scene)
    assert types.count("message_start") == 1
    assert kinds(message) == ["text", "server_tool_use", "web_search_tool_result", "text", "text", "text"]
    assert message.stop_reason == "end_turn"
    use, result, cited = message.content[1], message.content[2], message.content[4]
    assert isinstance(use, ServerToolUseBlock)
    assert isinstance(result, WebSearchToolResultBlock)
    assert (use.name, use.input) == ("web_search", {"query": "pandas"})
    assert use.id.startswith("srvtoolu_")
    assert result.tool_use_id == use.id
    assert isinstance(result.content, list)
    assert [(item.url, item.title, item.page_age) for item in result.content] == [
        ("https://a.example/1", "One", "2026-01-02"),
        ("https://b.example/2", "https://b.example/2", None),
    ]
    assert isinstance(cited, TextBlock)
    assert cited.text == "[One](https://a.example/1)"
    [citation] = cited.citations or []
    assert isinstance(citation, CitationsWebSearchResultLocation)
    assert (citation.url, citation.title, citation.cited_text) == ("https://a.example/1", "One", "Text of one.")
    text = "".join(block.text for block in message.content if isinstance(block, TextBlock))
    assert text == "Let me look. See [One](https://a.example/1) and [x](https://no.example/)."
    assert types.count("input_json") == 1


def test_a_whole_reply_has_the_same_content_as_a_stream(scene: SearchScene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    _, message = stream_reply(scene)
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    whole = scene.sdk.anthropic.messages.create(**ask())
    assert isinstance(whole, Message)
    assert kinds(whole) == kinds(message)
    assert whole.usage == message.usage
    assert outcomes(whole) == outcomes(message)


def test_usage_is_summed_over_rounds_and_counts_the_search(scene: SearchScene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    _, message = stream_reply(scene)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (40, 12)
    assert message.usage.server_tool_use is not None
    assert message.usage.server_tool_use.web_search_requests == 1


def test_the_next_round_repeats_the_reply_as_it_came_and_adds_the_results(scene: SearchScene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    stream_reply(scene)
    first, second = scene.sent
    assert second["messages"][:1] == first["messages"]
    call, result = second["messages"][1:]
    assert call["content"] == "Let me look. "
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "call_1"
    assert "1. One\nURL: https://a.example/1\nDate: 2026-01-02\nText of one." in result["content"]
    assert second["max_completion_tokens"] == 95


def test_a_forced_search_is_forced_in_the_first_round_only(scene: SearchScene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    stream_reply(scene, tool_choice={"type": "tool", "name": "web_search"})
    first, second = scene.sent
    assert first["tool_choice"] == {"type": "function", "function": {"name": "web_search"}}
    assert second.get("tool_choice", "auto") == "auto"


def test_a_function_of_the_client_with_the_same_name_is_never_taken_for_the_search(scene: SearchScene) -> None:
    own = {"name": "web_search", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}}
    hosted = {**TOOL, "name": "search"}
    scene.play(chat_calls(("call_1", "web_search", '{"q": "x"}')))
    _, message = stream_reply(scene, tools=[own, hosted])
    names = [tool["function"]["name"] for tool in scene.sent[0]["tools"]]
    assert names == ["web_search", "gateway_web_search"]
    assert kinds(message) == ["text", "tool_use"]
    assert scene.searxng.requests == []
    scene.play(chat_calls(("call_1", "gateway_web_search", '{"query": "x"}')), CHAT_ANSWERS)
    _, message = stream_reply(scene, tools=[own, hosted])
    assert kinds(message)[:3] == ["text", "server_tool_use", "web_search_tool_result"]


def test_two_searches_of_one_round_come_out_in_the_order_of_their_calls(scene: SearchScene) -> None:
    both = (("call_1", "web_search", '{"query": "first"}'), ("call_2", "web_search", '{"query": "second"}'))
    scene.play(chat_calls(*both), CHAT_ANSWERS)
    _, message = stream_reply(scene)
    assert kinds(message)[1:5] == ["server_tool_use", "web_search_tool_result"] * 2
    queries = [block.input["query"] for block in message.content if isinstance(block, ServerToolUseBlock)]
    assert queries == ["first", "second"]
    answers = [m["tool_call_id"] for m in scene.sent[1]["messages"] if m["role"] == "tool"]
    assert answers == ["call_1", "call_2"]


def test_a_search_beside_a_call_of_the_client_ends_the_turn_and_both_come_back_later(scene: SearchScene) -> None:
    both = (("call_1", "web_search", '{"query": "x"}'), ("call_2", "get_weather", '{"city": "Rome"}'))
    scene.play(chat_calls(*both))
    _, message = stream_reply(scene, tools=[TOOL, WEATHER])
    assert kinds(message) == ["text", "server_tool_use", "web_search_tool_result", "tool_use"]
    assert message.stop_reason == "tool_use"
    assert message.usage.server_tool_use is not None
    assert message.usage.server_tool_use.web_search_requests == 1
    assert len(scene.upstream.calls) == 1
    scene.play(CHAT_ANSWERS)
    content = [block.model_dump(exclude_none=True) for block in message.content]
    result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "sunny"}
    history = [*ask()["messages"], {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    stream_reply(scene, messages=history, tools=[TOOL, WEATHER])
    _, call, *results = scene.sent[0]["messages"]
    assert [item["function"]["name"] for item in call["tool_calls"]] == ["web_search", "get_weather"]
    assert [item["role"] for item in results] == ["tool", "tool"]
    assert [item["tool_call_id"] for item in results] == [item["id"] for item in call["tool_calls"]]
    assert "Text of one." in results[0]["content"]


def test_a_call_beyond_max_uses_is_an_error_result_and_the_next_round_has_no_search(scene: SearchScene) -> None:
    again = chat_calls(("call_2", "web_search", '{"query": "again"}'))
    scene.play(CHAT_SEARCHES, again, CHAT_ANSWERS)
    _, message = stream_reply(scene, tools=[{**TOOL, "max_uses": 1}])
    assert outcomes(message) == [["https://a.example/1", "https://b.example/2"], "max_uses_exceeded"]
    first, second, third = scene.sent
    assert [bool(request.get("tools")) for request in (first, second, third)] == [True, True, False]
    assert message.stop_reason == "end_turn"
    assert len(scene.searxng.requests) == 1


@pytest.mark.parametrize(("status", "code"), [(500, "unavailable"), (403, "unavailable"), (429, "too_many_requests")])
def test_a_failure_of_the_search_service_is_a_result(scene: SearchScene, status: int, code: str) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    scene.script_search(Answer(b"{}", status=status, content_type="application/json"))
    _, message = stream_reply(scene)
    assert outcomes(message) == [code]
    assert message.stop_reason == "end_turn"
    assert message.usage.server_tool_use is None
    assert "Error" in scene.sent[1]["messages"][2]["content"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"query": ""}', "invalid_tool_input"),
        ("{}", "invalid_tool_input"),
        (json.dumps({"query": "x" * 4097}), "query_too_long"),
    ],
)
def test_a_bad_query_is_an_error_result_and_is_not_sent(scene: SearchScene, arguments: str, code: str) -> None:
    scene.play(chat_calls(("call_1", "web_search", arguments)), CHAT_ANSWERS)
    _, message = stream_reply(scene)
    assert outcomes(message) == [code]
    assert scene.searxng.requests == []


def test_a_reply_that_searches_comes_back_as_call_and_result(scene: SearchScene) -> None:
    scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
    _, message = stream_reply(scene)
    content = [block.model_dump(exclude_none=True) for block in message.content]
    history = [*ask()["messages"], {"role": "assistant", "content": content}, {"role": "user", "content": "more"}]
    scene.play(CHAT_ANSWERS)
    stream_reply(scene, messages=history)
    _, call, result, rest, _ = scene.sent[0]["messages"]
    assert call["tool_calls"][0]["function"]["name"] == "web_search"
    assert "Text of one." in result["content"]
    assert rest["content"] == "See [One](https://a.example/1) and [x](https://no.example/)."


def test_a_request_without_the_tool_passes_no_search_to_the_model(scene: SearchScene) -> None:
    scene.play(CHAT_ANSWERS)
    _, message = stream_reply(scene, tools=[WEATHER])
    assert [tool["function"]["name"] for tool in scene.sent[0]["tools"]] == ["get_weather"]
    assert kinds(message) == ["text"]
