"""Searches and pages of an upstream's own tools, shown to clients of another protocol and judged by the SDKs."""

import json
from collections.abc import Iterator

import pytest
from anthropic.types import Message
from openai.types.responses import Response

from e2e.responses_tools_rig import SOURCES
from e2e.search_scene import JSON, SearchScene, message, search_scene
from fakes.upstream import Answer
from wire_json import JsonObject

PAGE: JsonObject = {
    "type": "web_fetch_result",
    "url": "https://v.example/p",
    "retrieved_at": "2026-11-01T00:00:00Z",
    "content": {
        "type": "document",
        "title": "P",
        "source": {"type": "text", "media_type": "text/plain", "data": "All of it."},
        "citations": {"enabled": False},
    },
}
HIT: JsonObject = {
    "type": "web_search_result",
    "url": "https://v.example/",
    "title": "V",
    "encrypted_content": "vendor-secret",
    "page_age": None,
}
TEXT: JsonObject = {"type": "text", "text": "So."}


def make_use(kind: str, given: JsonObject, content: object) -> list[JsonObject]:
    return [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": kind, "input": given},
        {"type": f"{kind}_tool_result", "tool_use_id": "srvtoolu_1", "content": content},
        TEXT,
    ]


@pytest.fixture(scope="module")
def anthropic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with search_scene(tmp_path_factory.mktemp("anthropic"), "messages", searches=False) as scene:
        yield scene


@pytest.fixture(scope="module")
def openai(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with search_scene(tmp_path_factory.mktemp("openai"), "openai", searches=False) as scene:
        yield scene


def respond(scene: SearchScene) -> Response:
    request: JsonObject = {"model": "up/claude-sonnet-4-5", "input": "pandas?", "tools": [{"type": "web_search"}]}
    with scene.sdk.openai.responses.stream(**request | {"include": [SOURCES]}) as events:
        seen = [event.type for event in events]
        reply = events.get_final_response()
    item = reply.output[0]
    assert item.type == "web_search_call"
    assert seen.count("response.web_search_call.completed") == (item.status == "completed")
    assert [output.id for output in scene.sdk.openai.responses.create(**request).output][1:] != []
    return reply


@pytest.mark.parametrize(
    ("blocks", "status", "action"),
    [
        (
            make_use("web_search", {"query": "q"}, [HIT]),
            "completed",
            {"type": "search", "query": "q", "queries": ["q"], "sources": [{"type": "url", "url": HIT["url"]}]},
        ),
        (
            make_use(
                "web_search", {"query": "q"}, {"type": "web_search_tool_result_error", "error_code": "unavailable"}
            ),
            "failed",
            {"type": "search", "query": "q", "queries": ["q"]},
        ),
        (
            make_use("web_fetch", {"url": "https://v.example"}, PAGE),
            "completed",
            {"type": "open_page", "url": PAGE["url"]},
        ),
        (
            make_use(
                "web_fetch", {"url": "https://v.example"}, {"type": "web_fetch_tool_result_error", "error_code": "x"}
            ),
            "failed",
            {"type": "open_page", "url": "https://v.example"},
        ),
    ],
    ids=["search", "failed search", "page", "failed page"],
)
def test_a_responses_client_sees_what_anthropic_did(
    anthropic: SearchScene, blocks: list[JsonObject], status: str, action: JsonObject
) -> None:
    anthropic.play(message(blocks, "end_turn"))
    item = respond(anthropic).output[0].model_dump(exclude_none=True)
    assert (item["status"], item["action"]) == (status, action)


def ask_messages(scene: SearchScene, *items: JsonObject) -> Message:
    text = {"type": "output_text", "text": "So.", "annotations": [], "logprobs": []}
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    output = [{"id": f"ws_{number}", "type": "web_search_call", **item} for number, item in enumerate(items)]
    counts = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    reply = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "tools": []}
    body = {**reply, "output": [*output, answer], "usage": counts}
    scene.play(Answer(json.dumps(body).encode(), content_type=JSON))
    tool = {"type": "web_search_20250305", "name": "web_search"}
    user = {"role": "user", "content": "pandas?"}
    request: JsonObject = {"model": "up/gpt-5.5", "max_tokens": 99, "messages": [user], "tools": [tool]}
    answered = scene.sdk.anthropic.messages.create(**request)
    assert isinstance(answered, Message)
    return answered


def test_a_messages_client_sees_that_a_search_of_openai_failed(openai: SearchScene) -> None:
    reply = ask_messages(openai, {"status": "failed", "action": {"type": "search", "query": "q"}})
    use, result, text = (block.model_dump(exclude_none=True) for block in reply.content)
    assert use["input"] == {"query": "q"}
    assert result["tool_use_id"] == use["id"]
    assert result["content"] == {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    assert text["text"] == "So."


def test_a_messages_client_sees_which_page_openai_opened(openai: SearchScene) -> None:
    opened = {"status": "completed", "action": {"type": "open_page", "url": "https://v.example/"}}
    found = {"status": "completed", "action": {"type": "search", "query": "q"}}
    reply = ask_messages(openai, found, opened)
    blocks = [block.model_dump(exclude_none=True) for block in reply.content]
    assert [block["type"] for block in blocks] == [
        *("server_tool_use", "web_search_tool_result", "server_tool_use", "web_fetch_tool_result", "text")
    ]
    assert (blocks[2]["name"], blocks[2]["input"]) == ("web_fetch", {"url": "https://v.example/"})
    page = blocks[3]["content"]
    assert (page["type"], page["url"]) == ("web_fetch_result", "https://v.example/")
    assert page["content"]["title"] == "https://v.example/"
    assert page["retrieved_at"]
    assert reply.usage.server_tool_use is not None
    assert reply.usage.server_tool_use.web_search_requests == 1


def test_a_page_that_openai_could_not_open_is_an_error_result(openai: SearchScene) -> None:
    reply = ask_messages(openai, {"status": "failed", "action": {"type": "open_page", "url": "https://v.example/"}})
    result = reply.content[1].model_dump(exclude_none=True)
    assert result["content"] == {"type": "web_fetch_tool_result_error", "error_code": "unavailable"}
