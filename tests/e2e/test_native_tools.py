"""Searches and pages of an upstream's own tools, shown to clients of another protocol and judged by the SDKs."""

from anthropic.types import Message

from e2e.search_scene import HIT, SearchScene, write_message
from fakes.service import json_answer
from wire_json import JsonObject

ADDRESS = "https://v.example/"
PAGE: JsonObject = {
    "type": "web_fetch_result",
    "url": ADDRESS,
    "retrieved_at": "2026-11-01T00:00:00Z",
    "content": {
        "type": "document",
        "title": "P",
        "source": {"type": "text", "media_type": "text/plain", "data": "All of it."},
        "citations": {"enabled": False},
    },
}
SEARCHED: JsonObject = {"type": "search", "query": "q", "queries": ["q"]}
OPENED: JsonObject = {"type": "open_page", "url": ADDRESS}
# What Anthropic's tool returned -> the status and the action of a Responses item
DONE: dict[str, tuple[str, object, str, JsonObject]] = {
    "search": ("web_search", [HIT], "completed", SEARCHED | {"sources": [{"type": "url", "url": HIT["url"]}]}),
    "failed search": ("web_search", "unavailable", "failed", SEARCHED),
    "page": ("web_fetch", PAGE, "completed", OPENED),
    "failed page": ("web_fetch", "url_not_accessible", "failed", OPENED),
}


def test_a_responses_client_sees_what_anthropic_did(scene: SearchScene) -> None:
    for row, (tool, content, status, action) in DONE.items():
        failed = {"type": f"{tool}_tool_result_error", "error_code": content}
        given = {"query": "q"} if tool == "web_search" else {"url": ADDRESS}
        blocks: list[JsonObject] = [
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": tool, "input": given},
            {
                "type": f"{tool}_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": failed if isinstance(content, str) else content,
            },
            {"type": "text", "text": "So."},
        ]
        for stream in (True, False):
            there = scene.on("anthropic").play(write_message(blocks))
            events, reply = there.respond(stream=stream, include=["web_search_call.action.sources"])
            item = reply.output[0].model_dump(exclude_none=True, warnings=False)
            assert (item["type"], item["status"], item["action"]) == ("web_search_call", status, action), (row, stream)
            assert len(reply.output) == 2, (row, stream)
            completed = [event for event in events if event["type"] == "response.web_search_call.completed"]
            assert len(completed) == (stream and status == "completed"), (row, stream)


def show_openai(scene: SearchScene, *items: JsonObject) -> tuple[Message, list[JsonObject]]:
    """Return what a Messages client reads of a reply of OpenAI's with these searches, and its blocks."""
    text = {"type": "output_text", "text": "So.", "annotations": [], "logprobs": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    output = [{"id": f"ws_{number}", "type": "web_search_call", **item} for number, item in enumerate(items)]
    reply = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "tools": []}
    counts = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    there = scene.on("openai").play(json_answer({**reply, "output": [*output, message], "usage": counts}))
    read = there.reply(stream=False)
    return read, [block.model_dump(exclude_none=True) for block in read.content]


def test_a_messages_client_sees_what_openai_did(scene: SearchScene) -> None:
    found: JsonObject = {"status": "completed", "action": {"type": "search", "query": "q"}}
    opened: JsonObject = {"status": "completed", "action": OPENED}
    reply, blocks = show_openai(scene, found, opened)
    assert [block["type"] for block in blocks] == [
        *("server_tool_use", "web_search_tool_result", "server_tool_use", "web_fetch_tool_result", "text")
    ]
    assert (blocks[2]["name"], blocks[2]["input"]) == ("web_fetch", {"url": ADDRESS})
    page = blocks[3]["content"]
    assert (page["type"], page["url"], page["content"]["title"]) == ("web_fetch_result", ADDRESS, ADDRESS)
    assert page["retrieved_at"]
    assert reply.usage.server_tool_use is not None
    assert reply.usage.server_tool_use.web_search_requests == 1
    for item, tool in ((found, "web_search"), (opened, "web_fetch")):
        _, (use, result, text) = show_openai(scene, {**item, "status": "failed"})
        assert use["input"] == ({"query": "q"} if tool == "web_search" else {"url": ADDRESS}), tool
        assert result["tool_use_id"] == use["id"], tool
        assert result["content"] == {"type": f"{tool}_tool_result_error", "error_code": "unavailable"}
        assert text["text"] == "So.", tool
