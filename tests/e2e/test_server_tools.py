"""Web search that the gateway runs for a Messages client over an upstream that has none, judged by Anthropic's SDK."""

import pytest
from anthropic import BadRequestError
from anthropic.types import CitationsWebSearchResultLocation, ServerToolUseBlock, TextBlock, WebSearchToolResultBlock

from dragoman.translate.hub.server_tools import unseal_source
from e2e.search_scene import (
    ANSWERS,
    FETCH,
    OTHER,
    SEARCH,
    SEARCHES,
    URL,
    USER,
    WEATHER,
    SearchScene,
    calls,
    content_of,
    kinds,
    outcomes,
    searches,
)
from fakes.service import json_answer
from narrowing import expect
from wire_json import JsonObject

PAIR = ["server_tool_use", "web_search_tool_result"]
WEATHER_CALL = ("call_2", "get_weather", {"city": "Rome"})


def list_offered(scene: SearchScene, place: int = 0) -> list[str]:
    return [tool["function"]["name"] for tool in scene.sent[place].get("tools", ())]


def test_a_stream_has_use_result_and_cited_text_in_one_message(scene: SearchScene) -> None:
    scene.play(SEARCHES, ANSWERS)
    with scene.sdk.anthropic.messages.stream(**scene.write_request()) as stream:
        types = [event.type for event in stream]
        message = stream.get_final_message()
    assert (types.count("message_start"), types.count("input_json")) == (1, 1)
    assert kinds(message) == ["text", *PAIR, "text", "text", "text"]
    assert message.stop_reason == "end_turn"
    use, result = expect(ServerToolUseBlock, message.content[1]), expect(WebSearchToolResultBlock, message.content[2])
    assert (use.name, use.input) == ("web_search", {"query": "pandas"})
    assert use.id.startswith("srvtoolu_")
    assert result.tool_use_id == use.id
    found = expect(list, result.content)
    assert [(item.url, item.title, item.page_age) for item in found] == [
        (URL, "One", "2026-01-02"),
        (OTHER, OTHER, None),
    ]
    sources = [unseal_source(item.encrypted_content) for item in found]
    assert [source and source.text for source in sources] == ["Text of one.", "Text of two."]
    cited = expect(TextBlock, message.content[4])
    assert cited.text == f"[One]({URL})"
    [citation] = cited.citations or []
    assert isinstance(citation, CitationsWebSearchResultLocation)
    assert (citation.url, citation.title, citation.cited_text) == (URL, "One", "Text of one.")
    index = unseal_source(citation.encrypted_index)
    assert index is not None
    assert index.text == "Text of one."
    text = "".join(block.text for block in message.content if isinstance(block, TextBlock))
    assert text == f"Let me look. See [One]({URL}) and [x](https://no.example/)."
    assert (message.usage.input_tokens, message.usage.output_tokens) == (40, 12)
    assert message.usage.server_tool_use is not None
    assert message.usage.server_tool_use.web_search_requests == 1
    scene.play(SEARCHES, ANSWERS)
    whole = scene.reply(stream=False)
    assert (kinds(whole), whole.usage, outcomes(whole)) == (kinds(message), message.usage, outcomes(message))


def test_an_upstream_that_does_not_stream_is_read_the_same(scene: SearchScene) -> None:
    scene.rig.play("chat", searches(text=""), ANSWERS, stream=False)
    scene.script_search(json_answer({"results": [{"url": URL, "title": "One", "content": "Text of one."}]}))
    reply = scene.reply(stream=False)
    assert kinds(reply) == [*PAIR, "text", "text", "text"]
    assert reply.usage.output_tokens == 12


def test_the_next_round_repeats_the_reply_as_it_came_and_adds_the_results(scene: SearchScene) -> None:
    scene.play(SEARCHES, ANSWERS).reply()
    first, second = scene.sent
    assert second["messages"][:1] == first["messages"]
    call, result = second["messages"][1:]
    assert call["content"] == "Let me look. "
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "call_1"
    assert f"1. One\nURL: {URL}\nDate: 2026-01-02\nText of one." in result["content"]
    assert second["max_completion_tokens"] == 95


def test_a_search_is_forced_in_the_first_round_only_and_not_offered_if_forbidden(scene: SearchScene) -> None:
    scene.play(SEARCHES, ANSWERS).reply(tool_choice={"type": "tool", "name": "web_search"})
    first, second = scene.sent
    assert first["tool_choice"] == {"type": "function", "function": {"name": "web_search"}}
    assert second.get("tool_choice", "auto") == "auto"
    scene.play(ANSWERS).reply(tool_choice={"type": "none"})
    assert not scene.sent[0].keys() & {"tools", "tool_choice"}


def test_a_function_of_the_client_with_the_same_name_is_never_taken_for_the_search(scene: SearchScene) -> None:
    tools = [{**WEATHER, "name": "web_search"}, {**SEARCH, "name": "search"}]
    message = scene.play(calls(("call_1", "web_search", {"q": "x"}))).reply(tools=tools)
    assert list_offered(scene) == ["web_search", "gateway_web_search"]
    assert kinds(message) == ["text", "tool_use"]
    assert scene.searched == []
    message = scene.play(calls(("call_1", "gateway_web_search", {"query": "x"})), ANSWERS).reply(tools=tools)
    assert kinds(message)[:3] == ["text", *PAIR]


def test_two_searches_of_one_round_come_out_in_the_order_of_their_calls(scene: SearchScene) -> None:
    both = calls(("call_1", "web_search", {"query": "first"}), ("call_2", "web_search", {"query": "second"}))
    message = scene.play(both, ANSWERS).reply()
    assert kinds(message)[1:5] == PAIR * 2
    queries = [block.input["query"] for block in message.content if isinstance(block, ServerToolUseBlock)]
    assert queries == ["first", "second"]
    assert [turn["tool_call_id"] for turn in scene.sent[1]["messages"] if turn["role"] == "tool"] == [
        "call_1",
        "call_2",
    ]


def test_a_search_beside_a_call_of_the_client_ends_the_turn_and_both_come_back_later(scene: SearchScene) -> None:
    scene.play(calls(("call_1", "web_search", {"query": "x"}), WEATHER_CALL))
    message = scene.reply(tools=[SEARCH, WEATHER])
    assert (kinds(message), message.stop_reason) == (["text", *PAIR, "tool_use"], "tool_use")
    assert message.usage.server_tool_use is not None
    assert message.usage.server_tool_use.web_search_requests == 1
    assert len(scene.sent) == 1
    history = content_of(message)
    result = {"type": "tool_result", "tool_use_id": history["content"][-1]["id"], "content": "sunny"}
    scene.play(ANSWERS).reply(history, {"role": "user", "content": [result]}, tools=[SEARCH, WEATHER])
    _, call, *results = scene.sent[0]["messages"]
    assert [item["function"]["name"] for item in call["tool_calls"]] == ["web_search", "get_weather"]
    assert [item["role"] for item in results] == ["tool", "tool"]
    assert [item["tool_call_id"] for item in results] == [item["id"] for item in call["tool_calls"]]
    assert "Text of one." in results[0]["content"]


def test_a_call_beyond_max_uses_is_an_error_result_and_the_next_round_has_no_search(scene: SearchScene) -> None:
    scene.play(SEARCHES, searches("again", "call_2"), ANSWERS)
    message = scene.reply(tools=[{**SEARCH, "max_uses": 1}])
    assert outcomes(message) == [[URL, OTHER], "max_uses_exceeded"]
    assert [bool(request.get("tools")) for request in scene.sent] == [True, True, False]
    assert message.stop_reason == "end_turn"
    assert len(scene.searched) == 1


def test_a_failure_of_the_search_service_is_a_result(scene: SearchScene) -> None:
    for status, code in ((500, "unavailable"), (403, "unavailable"), (429, "too_many_requests")):
        scene.play(SEARCHES, ANSWERS).script_search(json_answer({}, status))
        message = scene.reply()
        assert outcomes(message) == [code], status
        assert (message.stop_reason, message.usage.server_tool_use) == ("end_turn", None), status
        assert "Error" in scene.sent[1]["messages"][2]["content"], status


def test_a_bad_query_is_an_error_result_and_is_not_sent(scene: SearchScene) -> None:
    bad: list[tuple[JsonObject, str]] = [({"query": ""}, "invalid_tool_input"), ({}, "invalid_tool_input")]
    for given, code in [*bad, ({"query": "x" * 4097}, "query_too_long")]:
        assert outcomes(scene.play(calls(("call_1", "web_search", given)), ANSWERS).reply()) == [code], given
        assert scene.searched == [], given


def test_a_request_without_the_tool_passes_no_search_to_the_model(scene: SearchScene) -> None:
    message = scene.play(ANSWERS).reply(tools=[WEATHER])
    assert (list_offered(scene), kinds(message)) == (["get_weather"], ["text"])


# Tools and their settings


def test_every_version_of_a_tool_is_offered_once(scene: SearchScene) -> None:
    for version in ("web_search_20250305", "web_search_20260209", "web_search_20260318"):
        tool = {**SEARCH, "type": version, "allowed_callers": ["direct"]}
        assert kinds(scene.play(SEARCHES, ANSWERS).reply(tools=[tool]))[1:3] == PAIR, version
    for version in ("web_fetch_20250910", "web_fetch_20260209", "web_fetch_20260309", "web_fetch_20260318"):
        tool = {**FETCH, "type": version, "max_uses": 2, "allowed_domains": ["a.example"]}
        scene.play(ANSWERS).reply(tools=[tool])
        [offered] = [offered["function"] for offered in scene.sent[0]["tools"]]
        assert (offered["name"], list(offered["parameters"]["properties"])) == ("web_fetch", ["url"]), version
    scene.play(ANSWERS).reply(tools=[{**SEARCH, "type": "web_search_20260209"}, SEARCH])
    assert list_offered(scene) == ["web_search"]


def test_what_the_gateway_cannot_do_is_approximated_and_a_search_that_it_runs_is_no_loss(scene: SearchScene) -> None:
    callers = {**SEARCH, "type": "web_search_20260209", "allowed_callers": ["direct", "code_execution_20250825"]}
    sources = {**FETCH, "type": "web_fetch_20260318", "allowed_callers": ["direct"], "url_sources": {"type": "none"}}
    rows: list[tuple[JsonObject, list[str]]] = [
        (SEARCH, []),
        ({**SEARCH, "user_location": {"type": "approximate", "city": "Rome"}}, ["user_location"]),
        ({**SEARCH, "type": "web_search_20260318"}, ["type"]),
        ({**FETCH, "max_content_tokens": 500}, ["max_content_tokens"]),
        (sources, ["url_sources"]),
        (callers, ["allowed_callers", "type"]),
    ]
    for tool, fields in rows:
        scene.play(SEARCHES if tool is SEARCH else ANSWERS, ANSWERS)
        losses = scene.ask("messages", stream=True, tools=[tool]).losses
        assert losses == [(f"/tools/0/{name}", "approximated") for name in fields], tool


def test_domain_lists_filter_what_is_shown_and_exclude_each_other(scene: SearchScene) -> None:
    reply = scene.play(SEARCHES, ANSWERS).reply(tools=[{**SEARCH, "blocked_domains": ["a.example"]}])
    assert outcomes(reply) == [[OTHER]]
    assert "a.example" not in scene.sent[1]["messages"][2]["content"]
    for tool in (SEARCH, FETCH):
        scene.play(SEARCHES, ANSWERS)
        with pytest.raises(BadRequestError, match="allowed_domains"):
            scene.reply(tools=[{**tool, "allowed_domains": ["a.example"], "blocked_domains": ["b.example"]}])
        assert (scene.sent, scene.searched) == ([], []), tool


# Searches of earlier replies


def test_a_reply_that_searched_comes_back_as_call_and_result_and_may_be_cited(scene: SearchScene) -> None:
    history = content_of(scene.play(SEARCHES, ANSWERS).reply())
    reply = scene.play(ANSWERS).reply(history, USER)
    _, call, result, rest, _ = scene.sent[0]["messages"]
    assert call["tool_calls"][0]["function"]["name"] == "web_search"
    assert "Text of one." in result["content"]
    assert rest["content"] == f"See [One]({URL}) and [x](https://no.example/)."
    cited = [block for block in reply.content if isinstance(block, TextBlock) and block.citations]
    assert [block.text for block in cited] == [f"[One]({URL})"]
    assert [citation.cited_text for block in cited for citation in block.citations or ()] == ["Text of one."]
    first = scene.requests[0].body
    scene.play(ANSWERS).reply(history, USER, {"role": "assistant", "content": "Yes."}, USER)
    turns = first.index(b'"messages":'), first.index(b'"content":"pandas?"}]')
    assert first[slice(*turns)] in scene.requests[0].body, "the same bytes as before, which a vendor has cached"
