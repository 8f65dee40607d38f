"""Searches of earlier turns of a Responses client, and what each upstream gets of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from openai.types.responses import Response

import grammar_responses
from clients.captured import FOLDER, Captured
from e2e.account_rig import codex_rigged
from e2e.responses_tools_rig import ANSWERS, SEARCHES, SOURCES, Scene, ask, calls, tools_rigged
from fakes.codex import RESPONSES
from narrowing import expect
from raw_http import post
from scripting.replies import ScriptedReply, Thinking, ToolCall
from wire_json import JsonObject


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with tools_rigged(tmp_path_factory.mktemp("tools")) as shared:
        yield shared


def test_a_search_beside_a_call_of_the_client_comes_back_with_both_results(scene: Scene) -> None:
    weather = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "web_search"}, weather]
    both = (ToolCall("call_1", "web_search", '{"query": "x"}'), ToolCall("call_2", "get_weather", "{}"))
    scene.play("chat", calls(*both))
    _, response = scene.stream("chat", tools=tools, include=[SOURCES])
    assert [item.type for item in response.output] == ["message", "web_search_call", "function_call"]
    assert len(scene.list_sent("chat")) == 1
    scene.play("chat", ANSWERS)
    output = {"type": "function_call_output", "call_id": "call_2", "output": "sunny"}
    scene.stream("chat", tools=tools, input=[*history(response), output])
    _, call, *results = scene.list_sent("chat")[0]["messages"]
    assert [item["function"]["name"] for item in call["tool_calls"]] == ["web_search", "get_weather"]
    assert [item["tool_call_id"] for item in results] == [item["id"] for item in call["tool_calls"]]
    assert "https://a.example/1" in results[0]["content"]


def history(response: Response) -> list[JsonObject]:
    items = [item.model_dump(exclude_unset=True, warnings=False) for item in response.output]
    return [{"role": "user", "content": "pandas?"}, *items]


@pytest.mark.parametrize("upstream", ["chat", "responses"])
@pytest.mark.parametrize("included", [True, False])
def test_an_earlier_search_is_a_call_and_its_result(scene: Scene, upstream: str, included: bool) -> None:
    scene.play(upstream, SEARCHES, ANSWERS)
    _, response = scene.stream(upstream, include=[SOURCES] if included else [])
    scene.play(upstream, ANSWERS)
    scene.stream(upstream, input=[*history(response), {"role": "user", "content": "more"}])
    request = scene.list_sent(upstream)[0]
    if upstream == "chat":
        _, call, result, rest, _ = request["messages"]
        assert call["content"] == "Let me look. "
        assert call["tool_calls"][0]["function"] == {"name": "web_search", "arguments": '{"query":"pandas"}'}
        assert rest["content"].startswith("🐼 See [One]")
        text = result["content"]
    else:
        kinds = [item["type"] for item in request["input"]]
        assert kinds == ["message", "message", "function_call", "function_call_output", "message", "message"]
        text = request["input"][3]["output"]
    assert ("https://a.example/1" in text) is included
    assert "found nothing" not in text


@pytest.mark.parametrize("upstream", ["messages", "kiro"])
def test_an_earlier_search_reaches_other_upstreams_too(scene: Scene, upstream: str) -> None:
    scene.play(upstream, SEARCHES, ANSWERS)
    _, response = scene.stream(upstream, include=[SOURCES])
    scene.play(upstream, ANSWERS)
    scene.stream(upstream, input=[*history(response), {"role": "user", "content": "more"}])
    body = json.dumps(scene.list_sent(upstream)[0])
    assert "https://a.example/1" in body
    assert '"pandas"' in body
    assert "web_search_call" not in body


def test_the_reasoning_of_each_round_stays_with_its_round(scene: Scene) -> None:
    rounds = [
        ScriptedReply((Thinking(f"thought {number}", f"seal-{number}"), *scripted.parts), scripted.stop)
        for number, scripted in enumerate((SEARCHES, ANSWERS))
    ]
    scene.play("messages", *rounds)
    _, response = scene.stream("messages", reasoning={"effort": "low"})
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "message", "web_search_call", "reasoning", "message"]
    second = scene.list_sent("messages")[1]["messages"]
    scene.play("messages", ANSWERS)
    more = {"role": "user", "content": "more"}
    scene.stream("messages", reasoning={"effort": "low"}, input=[*history(response), more])
    later = scene.list_sent("messages")[0]["messages"]
    assert [[part["type"] for part in turn["content"]] for turn in later[1:4]] == [
        ["thinking", "text", "tool_use"],
        ["tool_result"],
        ["thinking", "text"],
    ]
    signed = [part["signature"] for turn in later[1:4] for part in turn["content"] if part["type"] == "thinking"]
    assert signed == ["seal-0", "seal-1"]
    assert second[1]["content"][0] == {"type": "thinking", "thinking": "thought 0", "signature": "seal-0"}


def test_a_compatible_server_gets_its_own_reasoning_back_in_every_round(scene: Scene) -> None:
    rounds = [
        ScriptedReply((Thinking(f"thought {number}", f"sealed-{number}"), *scripted.parts), scripted.stop)
        for number, scripted in enumerate((SEARCHES, ANSWERS))
    ]
    scene.play("responses", *rounds)
    included = ["reasoning.encrypted_content"]
    _, response = scene.stream("responses", include=included)
    assert [item["type"] for item in scene.list_sent("responses")[1]["input"]] == [
        *("message", "reasoning", "message", "function_call", "function_call_output"),
    ]
    scene.play("responses", ANSWERS)
    scene.stream("responses", include=included, input=[*history(response), {"role": "user", "content": "more"}])
    items = scene.list_sent("responses")[0]["input"]
    assert [item["encrypted_content"] for item in items if item["type"] == "reasoning"] == ["sealed-0", "sealed-1"]
    kinds = [item["type"] for item in items]
    assert kinds.index("function_call_output") < len(kinds) - 1 - kinds[::-1].index("reasoning")


def test_an_earlier_search_without_the_tool_and_without_an_id_is_still_a_call(scene: Scene) -> None:
    scene.play("chat", ANSWERS)
    action = {"type": "search", "query": "pandas"}
    item = {"type": "web_search_call", "status": "completed", "action": action}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Ok."}]}
    user = {"role": "user", "content": "more"}
    scene.stream("chat", tools=[], input=[user, item, message, user])
    _, call, result, *_ = scene.list_sent("chat")[0]["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] != ""


def test_a_vendor_that_has_the_tool_is_sent_the_clients_bytes(scene: Scene) -> None:
    scene.play("openai", ANSWERS)
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
    body = ask("openai", input=[{"role": "user", "content": "x"}, item, {"role": "user", "content": "y"}], stream=True)
    post(scene.gateway.port, "/v1/responses", msgspec.json.encode(body))
    [request] = scene.fakes["openai"].calls
    assert request.body == msgspec.json.encode({**body, "model": "m"})


def test_a_compatible_server_without_the_tool_is_offered_a_function(scene: Scene) -> None:
    scene.play("responses", SEARCHES, ANSWERS)
    scene.stream("responses")
    first, second = scene.list_sent("responses")
    assert [(tool["type"], tool["name"]) for tool in first["tools"]] == [("function", "web_search")]
    assert [item["type"] for item in second["input"]] == ["message", "message", "function_call", "function_call_output"]


def test_a_request_without_the_tool_passes_to_a_compatible_server_unchanged(scene: Scene) -> None:
    scene.play("responses", ANSWERS)
    body = ask("responses", tools=[], stream=True)
    post(scene.gateway.port, "/v1/responses", msgspec.json.encode(body))
    [request] = scene.fakes["responses"].calls
    assert request.body == msgspec.json.encode({**body, "model": "m"})


@pytest.mark.parametrize("upstream", ["chat", "messages", "kiro"])
def test_the_request_of_codex_searches(scene: Scene, upstream: str) -> None:
    file = FOLDER / "codex" / "01-responses.json"
    body = msgspec.json.decode(file.read_bytes(), type=Captured).json
    tools = expect(list, body["tools"])
    assert any(tool["type"] == "web_search" for tool in tools)
    scene.play(upstream, SEARCHES, ANSWERS)
    answer = post(
        scene.gateway.port,
        "/v1/responses",
        msgspec.json.encode({**body, "model": ask(upstream)["model"], "stream": True}),
    )
    assert answer.status == 200, answer.body
    response = grammar_responses.fold(answer.body)
    assert [item["type"] for item in response["output"]] == ["message", "web_search_call", "message"]
    assert len(scene.searxng.requests) == 1


def test_a_chatgpt_plan_runs_its_own_search_whatever_the_gateway_has(tmp_path: Path) -> None:
    settings = '[tools.web_search]\nbackend = ["searxng"]\nendpoint = "http://127.0.0.1:9"\n'
    file = FOLDER / "codex" / "01-responses.json"
    body = msgspec.json.decode(file.read_bytes(), type=Captured).json
    action = {"type": "search", "query": "pandas", "sources": [{"type": "url", "url": "https://a.example/1"}]}
    earlier = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    body["input"] = [*expect(list, body["input"]), earlier]
    with codex_rigged(tmp_path, settings=settings) as rig:
        request = {**body, "model": "codex/gpt-5.5", "stream": True}
        answer = post(rig.gateway.port, "/v1/responses", msgspec.json.encode(request))
        assert answer.status == 200, answer.body
        [sent] = rig.fake.at(RESPONSES)
    assert sent.json["tools"] == body["tools"]
    assert sent.json["input"] == body["input"]
