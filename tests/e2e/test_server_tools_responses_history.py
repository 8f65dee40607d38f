"""Searches of earlier turns of a Responses client, and what each upstream gets of them."""

from pathlib import Path

import msgspec
import pytest
from openai.types.responses import Response

import grammar_responses
from asking import make_body, send
from clients.captured import FOLDER, Captured
from e2e.account_rig import run_codex
from e2e.search_scene import MORE, SEARCHES, URL, USER, SearchScene, calls
from e2e.test_server_tools_responses import ANSWERS, SEARCH, SOURCES, list_offered
from fakes.codex import RESPONSES
from narrowing import expect
from scripting.replies import ScriptedReply, Thinking
from wire_json import JsonObject

CODEX = msgspec.json.decode((FOLDER / "codex" / "01-responses.json").read_bytes(), type=Captured)


def history(response: Response) -> list[JsonObject]:
    return [USER, *(item.model_dump(exclude_unset=True, warnings=False) for item in response.output)]


def think(place: int, scripted: ScriptedReply, seal: str) -> ScriptedReply:
    return ScriptedReply((Thinking(f"thought {place}", f"{seal}-{place}"), *scripted.parts), scripted.stop)


def test_a_search_beside_a_call_of_the_client_comes_back_with_both_results(scene: SearchScene) -> None:
    weather = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    tools = [SEARCH, weather]
    scene.play(calls(("call_1", "web_search", {"query": "x"}), ("call_2", "get_weather", {})))
    _, response = scene.respond(tools=tools, include=[SOURCES])
    assert [item.type for item in response.output] == ["message", "web_search_call", "function_call"]
    assert len(scene.sent) == 1
    output = {"type": "function_call_output", "call_id": "call_2", "output": "sunny"}
    scene.play(ANSWERS).respond(tools=tools, input=[*history(response), output])
    _, call, *results = scene.sent[0]["messages"]
    assert [item["function"]["name"] for item in call["tool_calls"]] == ["web_search", "get_weather"]
    assert [item["tool_call_id"] for item in results] == [item["id"] for item in call["tool_calls"]]
    assert URL in results[0]["content"]


@pytest.mark.parametrize("upstream", ["chat", "responses", "messages", "kiro"])
@pytest.mark.parametrize("included", [True, False])
def test_an_earlier_search_is_a_call_and_its_result(scene: SearchScene, upstream: str, included: bool) -> None:
    there = scene.on(upstream).play(SEARCHES, ANSWERS)
    _, response = there.respond(include=[SOURCES] if included else [])
    there.play(ANSWERS).respond(input=[*history(response), MORE])
    [request] = there.sent
    text = there.requests[0].body.decode()
    if upstream == "chat":
        _, call, result, rest, _ = request["messages"]
        assert call["content"] == "Let me look. "
        assert call["tool_calls"][0]["function"] == {"name": "web_search", "arguments": '{"query":"pandas"}'}
        assert rest["content"].startswith("🐼 See [One]")
        text = result["content"]
    elif upstream == "responses":
        kinds = [item["type"] for item in request["input"]]
        assert kinds == ["message", "message", "function_call", "function_call_output", "message", "message"]
        text = request["input"][3]["output"]
    else:
        assert '"pandas"' in text
        assert "web_search_call" not in text
        text = text.replace(f"[One]({URL})", "")  # the reply itself
    assert (URL in text) is included
    assert "found nothing" not in text


def test_the_reasoning_of_each_round_stays_with_its_round(scene: SearchScene) -> None:
    there = scene.on("messages").play(think(0, SEARCHES, "seal"), think(1, ANSWERS, "seal"))
    _, response = there.respond(reasoning={"effort": "low"})
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "message", "web_search_call", "reasoning", "message"]
    second = there.sent[1]["messages"]
    assert second[1]["content"][0] == {"type": "thinking", "thinking": "thought 0", "signature": "seal-0"}
    there.play(ANSWERS).respond(reasoning={"effort": "low"}, input=[*history(response), MORE])
    later = there.sent[0]["messages"][1:4]
    assert [[part["type"] for part in turn["content"]] for turn in later] == [
        ["thinking", "text", "tool_use"],
        ["tool_result"],
        ["thinking", "text"],
    ]
    signed = [part["signature"] for turn in later for part in turn["content"] if part["type"] == "thinking"]
    assert signed == ["seal-0", "seal-1"]


def test_a_compatible_server_gets_its_own_reasoning_back_in_every_round(scene: SearchScene) -> None:
    there = scene.on("responses").play(think(0, SEARCHES, "sealed"), think(1, ANSWERS, "sealed"))
    included = ["reasoning.encrypted_content"]
    _, response = there.respond(include=included)
    assert [item["type"] for item in there.sent[1]["input"]] == [
        *("message", "reasoning", "message", "function_call", "function_call_output"),
    ]
    there.play(ANSWERS).respond(include=included, input=[*history(response), MORE])
    items = there.sent[0]["input"]
    assert [item["encrypted_content"] for item in items if item["type"] == "reasoning"] == ["sealed-0", "sealed-1"]
    kinds = [item["type"] for item in items]
    assert kinds.index("function_call_output") < len(kinds) - 1 - kinds[::-1].index("reasoning")


def test_an_earlier_search_without_the_tool_and_without_an_id_is_still_a_call(scene: SearchScene) -> None:
    item = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "pandas"}}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Ok."}]}
    scene.play(ANSWERS).respond(tools=[], input=[MORE, item, message, MORE])
    _, call, result, *_ = scene.sent[0]["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] != ""


def test_bytes_pass_to_who_has_the_tool_and_where_there_is_none(scene: SearchScene) -> None:
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
    rows: dict[str, JsonObject] = {
        "openai": {"input": [USER, item, MORE], "tools": [SEARCH]},
        "responses": {"tools": []},
    }
    for upstream, fields in rows.items():
        there = scene.on(upstream).play(ANSWERS)
        there.ask("responses", stream=True, **fields)
        assert there.got_bytes(make_body("responses", there.model, "pandas?", stream=True) | fields), upstream


def test_a_compatible_server_without_the_tool_is_offered_a_function(scene: SearchScene) -> None:
    there = scene.on("responses").play(SEARCHES, ANSWERS)
    there.respond()
    first, second = there.sent
    assert (list_offered(first), first["tools"][0]["type"]) == (["web_search"], "function")
    assert [item["type"] for item in second["input"]] == ["message", "message", "function_call", "function_call_output"]


@pytest.mark.parametrize("upstream", ["chat", "messages", "kiro"])
def test_the_request_of_codex_searches(scene: SearchScene, upstream: str) -> None:
    assert any(tool["type"] == "web_search" for tool in expect(list, CODEX.json["tools"]))
    there = scene.on(upstream).play(SEARCHES, ANSWERS)
    answer = send(scene.gateway, "POST", "/v1/responses", CODEX.json | {"model": there.model, "stream": True})
    assert answer.status == 200, answer.body
    response = grammar_responses.fold(answer.body)
    assert [item["type"] for item in response["output"]] == ["message", "web_search_call", "message"]
    assert len(scene.searched) == 1


def test_a_chatgpt_plan_runs_its_own_search_whatever_the_gateway_has(tmp_path: Path) -> None:
    settings = '[tools.web_search]\nbackend = ["searxng"]\nendpoint = "http://127.0.0.1:9"\n'
    action = {"type": "search", "query": "pandas", "sources": [{"type": "url", "url": URL}]}
    earlier = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    body = CODEX.json | {"input": [*expect(list, CODEX.json["input"]), earlier]}
    with run_codex(tmp_path, settings=settings) as rig:
        request = {**body, "model": "codex/gpt-5.5", "stream": True}
        answer = send(rig.gateway, "POST", "/v1/responses", request)
        assert answer.status == 200, answer.body
        [sent] = rig.fake.at(RESPONSES)
    assert (sent.json["tools"], sent.json["input"]) == (body["tools"], body["input"])
