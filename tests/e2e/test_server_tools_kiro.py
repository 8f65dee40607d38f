"""Web search over Kiro with the account's own token and nothing configured, judged by the vendors' SDKs."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, WebSearchToolResultBlock

from dragoman.cli.capture import render_timeline
from dragoman.proxy.capture.format import LookupName
from e2e.account_rig import KIRO_MODEL as MODEL
from e2e.account_rig import KiroRig, run_kiro
from e2e.search_scene import content_of, kinds, outcomes
from e2e.test_replays import Kept, assert_same, debug
from fakes.eventstream import event
from fakes.kiro import ARN, SEARCH_TOOL, json_answer, make_framed, refusal, tail, tool, words
from fakes.upstream import Answer, Gate, ReceivedRequest
from wire_json import JsonObject

TOOL: JsonObject = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
CLAUDE_CODE = "Perform a web search for the query: pandas"
PUBLISHED_MS = 1_767_312_000_000  # 2026-01-02
HIT: JsonObject = {
    "title": "One",
    "url": "https://a.example/1",
    "snippet": "Text of one.",
    "publishedDate": PUBLISHED_MS,
    "id": "r1",
    "domain": "a.example",
    "maxVerbatimWordLimit": 30,
    "publicDomain": False,
}
FOUND: JsonObject = {
    "results": [HIT, {**HIT, "title": "Two", "url": "https://b.example/2", "publishedDate": None}],
    "totalResults": 2,
    "query": "pandas",
    "error": None,
}
SEARCHES = make_framed(
    words("Let me look. "),
    tool("tooluse_1", "web_search", input='{"query": "pa'),
    tool("tooluse_1", "web_search", input='ndas"}'),
    tool("tooluse_1", "web_search", stop=True),
    tail("TOOL_USE"),
)
ANSWERS = make_framed(words("See [One"), words("](https://a.example/1)."), tail())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KiroRig]:
    with run_kiro(tmp_path_factory.mktemp("kiro")) as rig:
        rig.gateway.settle()
        yield rig


@pytest.fixture
def rig(shared: KiroRig) -> KiroRig:
    shared.fake.found, shared.fake.has_operations = FOUND, True
    return shared


def ask(**more: object) -> JsonObject:
    user = {"role": "user", "content": CLAUDE_CODE}
    return {"model": MODEL, "max_tokens": 1000, "messages": [user], "tools": [TOOL], **more}


def stream_reply(rig: KiroRig, **more: object) -> Message:
    with rig.sdk.anthropic.messages.stream(**ask(**more)) as stream:
        return stream.get_final_message()


def searches(rig: KiroRig) -> list[ReceivedRequest]:
    """The searches by the MCP operation, by either way."""
    return [request for request in operations(rig) if request.json["method"] == "tools/call"]


def operations(rig: KiroRig) -> list[ReceivedRequest]:
    named = [request for request in rig.fake.requests if request.headers.get("x-amz-target", "").endswith("InvokeMCP")]
    return named + [request for request in rig.fake.requests if request.path == "/mcp"]


def error_code(reply: Message) -> object:
    [code] = outcomes(reply)
    return code


def user_turns(request: ReceivedRequest) -> list[JsonObject]:
    state = request.json["conversationState"]
    turns = [*state.get("history", []), state["currentMessage"]]
    return [turn["userInputMessage"] for turn in turns if "userInputMessage" in turn]


def test_the_accounts_own_search_is_used_without_configuration(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    reply = stream_reply(rig, tool_choice={"type": "tool", "name": "web_search"})
    assert kinds(reply) == ["text", "server_tool_use", "web_search_tool_result", "text", "text", "text"]
    result = reply.content[2]
    assert isinstance(result, WebSearchToolResultBlock)
    assert isinstance(result.content, list)
    assert [(item.url, item.title, item.page_age) for item in result.content] == [
        ("https://a.example/1", "One", "2026-01-02"),
        ("https://b.example/2", "Two", None),
    ]
    assert reply.stop_reason == "end_turn"
    assert reply.usage.server_tool_use is not None
    assert reply.usage.server_tool_use.web_search_requests == 1


def read_declared(request: ReceivedRequest) -> tuple[str, str]:
    """What the model is sent about the search and its argument."""
    [offered] = user_turns(request)[-1]["userInputMessageContext"]["tools"]
    specification = offered["toolSpecification"]
    query = specification["inputSchema"]["json"]["properties"]["query"]
    return specification["description"], query.get("description", "")


def test_the_model_reads_kiros_own_text_about_the_search(tmp_path: Path) -> None:
    with run_kiro(tmp_path) as rig:
        rig.fake.found = FOUND
        own = (SEARCH_TOOL["description"], "The search query to execute")
        rig.play(SEARCHES, ANSWERS)
        stream_reply(rig)
        assert own not in [
            read_declared(request) for request in rig.fake.chats
        ]  # an account without search costs no request
        assert len(operations(rig)) == 1
        rig.play(SEARCHES, ANSWERS, SEARCHES, ANSWERS)
        stream_reply(rig)
        stream_reply(rig)
        assert {read_declared(request) for request in rig.fake.chats} == {own}
        assert len(rig.fake.chats) == 4
        [listed] = [request for request in operations(rig) if request.json["method"] == "tools/list"]
        assert (listed.json["params"], listed.json["profileArn"]) == ({}, ARN)


def test_a_capture_replays_with_kiros_text_and_its_results(tmp_path: Path) -> None:
    with run_kiro(tmp_path, settings=debug(tmp_path / "captures")) as rig:
        kept = Kept(tmp_path / "captures", rig.gateway)
        rig.fake.found = FOUND
        rig.play(SEARCHES, ANSWERS, SEARCHES, ANSWERS)
        for _ in range(2):
            stream_reply(rig)
            [capture] = kept.take_new(1)
    assert LookupName.TOOL_TEXT.value in [lookup.name for lookup in capture.lookups]
    shown = "\n".join(render_timeline(capture, full=True))
    assert '> web_search "pandas", kiro' in shown
    assert "< web_search found 2 pages" in shown
    assert_same([capture])


@pytest.mark.parametrize("tools", [[], [{**SEARCH_TOOL, "name": "other"}], [{**SEARCH_TOOL, "description": None}], [1]])
def test_without_such_a_text_the_gateways_own_is_declared(tmp_path: Path, tools: list[JsonObject]) -> None:
    with run_kiro(tmp_path) as rig:
        rig.fake.found, rig.fake.tools = FOUND, tools
        rig.play(SEARCHES, ANSWERS, ANSWERS)
        for _ in range(2):
            assert stream_reply(rig).stop_reason == "end_turn"
        assert [request.json["method"] for request in operations(rig)] == ["tools/call", "tools/list"]
        assert read_declared(rig.fake.chats[-1])[0].startswith("Search the web.")


def test_the_models_query_is_searched_and_not_the_users_sentence(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    stream_reply(rig)
    [request] = searches(rig)
    assert request.path == "/"
    assert request.headers["x-amz-target"] == "KiroRuntimeService.InvokeMCP"
    assert request.headers["content-type"] == "application/x-amz-json-1.0"
    assert request.json["profileArn"] == ARN
    assert request.json["params"] == {"name": "web_search", "arguments": {"query": "pandas"}}


def test_the_result_goes_back_to_the_model_under_its_call(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    stream_reply(rig)
    first, second = rig.fake.chats
    offered = user_turns(first)[-1]["userInputMessageContext"]["tools"]
    assert [item["toolSpecification"]["name"] for item in offered] == ["web_search"]
    [result] = user_turns(second)[-1]["userInputMessageContext"]["toolResults"]
    assert result["toolUseId"] == "tooluse_1"
    assert "URL: https://a.example/1\nDate: 2026-01-02\nText of one." in json.dumps(result["content"]).replace(
        "\\n", "\n"
    )
    message = second.json["conversationState"]["history"][-1]["assistantResponseMessage"]
    assert message["content"].strip() == "Let me look."
    assert [use["toolUseId"] for use in message["toolUses"]] == ["tooluse_1"]


def test_a_host_without_the_operation_gets_the_request_at_its_path(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    rig.fake.has_operations = False
    reply = stream_reply(rig)
    assert kinds(reply)[1:3] == ["server_tool_use", "web_search_tool_result"]
    request = searches(rig)[-1]
    assert request.path == "/mcp"
    assert request.headers["x-amzn-kiro-profile-arn"] == ARN
    assert request.headers["content-type"] == "application/json"
    assert "profileArn" not in request.json


def test_an_expired_token_is_renewed_once(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    rig.fake.before["/invokeMCP"] = rig.fake.access.clear  # all are revoked before the first search
    rig.fake.before["/refreshToken"] = lambda: rig.fake.before.pop("/invokeMCP")
    try:
        reply = stream_reply(rig)
    finally:
        rig.fake.before.clear()
    assert kinds(reply)[2] == "web_search_tool_result"
    assert len(searches(rig)) == 2
    assert rig.fake.counts["/refreshToken"] == 1
    first, second = (request.headers["authorization"] for request in searches(rig))
    assert first != second
    assert reply.usage.server_tool_use is not None


def test_a_token_that_stays_rejected_is_an_error_result(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    for message in ("The bearer token included in the request is invalid.", "User is not authorized."):
        invalid = refusal(403, message, kind="AccessDeniedException")
        rig.fake.script("/invokeMCP", invalid, invalid)
        reply = stream_reply(rig)
        assert error_code(reply) == "unavailable"
        assert (len(searches(rig)), rig.fake.counts["/refreshToken"]) == (2, 1)
        assert reply.stop_reason == "end_turn"
        rig.play(SEARCHES, ANSWERS)


def rpc(**more: object) -> Answer:
    return json_answer({"jsonrpc": "2.0", "id": "another", **more})


def result_of(text: str, *, is_error: bool = False) -> JsonObject:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


FAILURES: dict[str, tuple[Answer, str]] = {
    "the id of another request": (rpc(result=result_of(json.dumps(FOUND))), "unavailable"),
    "-32602": (rpc(error={"code": -32602, "message": "query is too long"}), "invalid_tool_input"),
    "-32603": (rpc(error={"code": -32603, "message": "internal"}), "unavailable"),
    "429": (refusal(429, "Too many requests", kind="ThrottlingException"), "too_many_requests"),
    "500": (refusal(500, "Internal", kind="InternalServerException"), "unavailable"),
    "HTML": (Answer(b"<html>", content_type="text/html", chunked=False), "unavailable"),
}


def test_a_failed_operation_is_an_error_result(rig: KiroRig) -> None:
    for row, (answer, code) in FAILURES.items():
        rig.play(SEARCHES, ANSWERS)
        rig.fake.script("/invokeMCP", answer)
        reply = stream_reply(rig)
        assert error_code(reply) == code, row
        assert (len(searches(rig)), reply.stop_reason) == (1, "end_turn"), row
        [result] = user_turns(rig.fake.chats[1])[-1]["userInputMessageContext"]["toolResults"]
        assert result["status"] == "error", row


def test_an_error_inside_the_result_is_never_taken_for_no_results(rig: KiroRig) -> None:
    for inner in (result_of("no", is_error=True), result_of(json.dumps({**FOUND, "results": [], "error": "quota"}))):

        def answer(request: ReceivedRequest, inner: JsonObject = inner) -> Answer | None:
            if not request.headers.get("x-amz-target", "").endswith("InvokeMCP"):
                return None
            return json_answer({"jsonrpc": "2.0", "id": request.json["id"], "result": inner})

        rig.play(SEARCHES, ANSWERS)
        rig.fake.intercept = answer
        try:
            assert error_code(stream_reply(rig)) == "unavailable", inner
        finally:
            rig.fake.intercept = None


def test_a_search_that_finds_nothing_is_an_empty_list(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    rig.fake.found = {**FOUND, "results": [], "totalResults": 0}
    assert outcomes(stream_reply(rig)) == [[]]


def test_thinking_and_its_signature_reach_the_next_round_unchanged(rig: KiroRig) -> None:
    thought = event("reasoningContentEvent", {"text": "Hm, pandas.", "signature": "sig-1"})
    rig.play(
        make_framed(
            thought,
            tool("tooluse_1", "web_search", input='{"query": "pandas"}', stop=True),
            tail("TOOL_USE"),
        ),
        ANSWERS,
    )
    reply = stream_reply(rig, model="kiro/claude-opus-4-6", thinking={"type": "adaptive"}, max_tokens=4000)
    assert kinds(reply)[:3] == ["thinking", "server_tool_use", "web_search_tool_result"]
    assert isinstance(reply.content[0], ThinkingBlock)
    assert reply.content[0].thinking == "Hm, pandas."
    message = rig.fake.chats[1].json["conversationState"]["history"][-1]["assistantResponseMessage"]
    assert message["reasoningContent"]["reasoningText"] == {"text": "Hm, pandas.", "signature": "sig-1"}


def test_a_chat_client_gets_annotations(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    user = {"role": "user", "content": "pandas?"}
    request: JsonObject = {"model": MODEL, "messages": [user], "web_search_options": {}}
    reply = rig.sdk.openai.chat.completions.create(**request)
    message = reply.choices[0].message
    assert message.content == "Let me look. See [One](https://a.example/1)."
    assert [each.url_citation.url for each in message.annotations or []] == ["https://a.example/1"]
    assert message.tool_calls is None


def test_text_flows_before_the_search_has_returned(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    shown = threading.Event()
    answer = json_answer({"jsonrpc": "2.0", "id": "x", "result": {}})
    rig.fake.script("/invokeMCP", replace(answer, gate=Gate(shown)))
    seen: list[str] = []
    with rig.sdk.anthropic.messages.stream(**ask()) as stream:
        for each in stream:
            if each.type == "content_block_start":
                seen.append(each.content_block.type)
                if each.content_block.type == "server_tool_use":
                    shown.set()  # else the search would not return
        reply = stream.get_final_message()
    assert seen[:3] == ["text", "server_tool_use", "web_search_tool_result"]
    assert error_code(reply) == "unavailable"
    assert isinstance(reply.content[0], TextBlock)


def test_a_search_of_the_history_is_declared_though_it_is_not_offered_again(rig: KiroRig) -> None:
    rig.play(SEARCHES, ANSWERS)
    history = content_of(stream_reply(rig))
    rig.play(ANSWERS)
    stream_reply(rig, messages=[*ask()["messages"], history, {"role": "user", "content": "more"}], tools=[])
    [request] = rig.fake.chats
    offered = user_turns(request)[-1]["userInputMessageContext"]["tools"]
    assert [item["toolSpecification"]["name"] for item in offered] == ["web_search"]
    results = [turn["userInputMessageContext"].get("toolResults") for turn in user_turns(request)[1:-1]]
    assert "Text of one." in json.dumps(results)
