"""Hosted tool runs are translated between Responses and Messages: the input and the result."""

import anthropic
import pytest

from fakes.upstream import Answer
from gateway import KEY
from rig import Rig
from surface.reading import read_reply
from surface.vendor_events import message, response, sse, text_item, write_whole
from wire_json import JsonObject

CODE_ITEM = {
    "id": "ci_1",
    "type": "code_interpreter_call",
    "status": "completed",
    "code": "print(6*7)",
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "42\n"}],
}
MCP_ITEM = {
    "id": "mcp_1",
    "type": "mcp_call",
    "status": "completed",
    "server_label": "wiki",
    "name": "look_up",
    "arguments": '{"q":"cats"}',
    "output": "Cats purr.",
    "error": None,
}
CODE_BLOCKS: tuple[JsonObject, ...] = (
    {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "code_execution",
        "input": {"code": "print(6*7)"},
        "caller": {"type": "direct"},
    },
    {
        "type": "code_execution_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {
            "type": "code_execution_result",
            "stdout": "42\n",
            "stderr": "",
            "return_code": 0,
            "content": [],
        },
    },
)
MCP_BLOCKS: tuple[JsonObject, ...] = (
    {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "look_up", "server_name": "wiki", "input": {"q": "cats"}},
    {
        "type": "mcp_tool_result",
        "tool_use_id": "mcptoolu_1",
        "is_error": False,
        "content": [{"type": "text", "text": "Cats purr."}],
    },
)
ITEMS: dict[str, JsonObject] = {"code": CODE_ITEM, "mcp": MCP_ITEM}
BLOCKS = {"code": CODE_BLOCKS, "mcp": MCP_BLOCKS}

works = pytest.mark.parametrize("work", ["code", "mcp"])
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def responses_answer(item: JsonObject, stream: bool) -> Answer:
    whole = response(item, text_item("So."))
    if not stream:
        return write_whole(whole)
    return Answer(
        sse(
            {"type": "response.created", "response": response(status="in_progress")},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 1, "item": text_item("So.")},
            {"type": "response.completed", "response": whole},
        )
    )


def messages_answer(blocks: tuple[JsonObject, ...], stream: bool) -> Answer:
    whole = message(*blocks, {"type": "text", "text": "So."})
    if not stream:
        return write_whole(whole)
    events: list[JsonObject] = [{"type": "message_start", "message": message()}]
    for index, block in enumerate(whole["content"]):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    ending = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}
    return Answer(sse(*events, ending, {"type": "message_stop"}))


def without_ids(blocks: tuple[JsonObject, ...]) -> list[JsonObject]:
    return [{key: value for key, value in block.items() if key not in ("id", "tool_use_id")} for block in blocks]


@works
@modes
def test_hosted_tools_of_responses_are_use_and_result_in_messages(gate: Rig, work: str, stream: bool) -> None:
    reply = read_reply(gate, "messages", "responses", responses_answer(ITEMS[work], stream), stream)
    assert reply["content"][:2] == without_ids(BLOCKS[work])
    assert reply["content"][2]["text"] == "So."


@works
@modes
def test_hosted_tools_of_messages_are_an_item_in_responses(gate: Rig, work: str, stream: bool) -> None:
    reply = read_reply(gate, "responses", "messages", messages_answer(BLOCKS[work], stream), stream)
    item = {key: value for key, value in ITEMS[work].items() if key != "id"}
    assert reply["output"][0] == {**item, **({"container_id": ""} if work == "code" else {})}


@modes
def test_a_failed_hosted_tool_is_failed_on_the_other_side(gate: Rig, stream: bool) -> None:
    failed = {**MCP_ITEM, "output": None, "error": "no such page"}
    reply = read_reply(gate, "messages", "responses", responses_answer(failed, stream), stream)
    assert reply["content"][1]["is_error"] is True
    assert reply["content"][1]["content"][0]["text"] == "no such page"
    wrong = (MCP_BLOCKS[0], {**MCP_BLOCKS[1], "is_error": True, "content": [{"type": "text", "text": "no such page"}]})
    other = read_reply(gate, "responses", "messages", messages_answer(wrong, stream), stream)
    assert (other["output"][0]["error"], other["output"][0]["output"]) == ("no such page", None)


@works
def test_anthropics_sdk_reads_it(gate: Rig, work: str) -> None:
    gate.play("responses", responses_answer(ITEMS[work], True))
    sdk = anthropic.Anthropic(api_key=KEY, base_url=gate.gateway.url, max_retries=0)
    with sdk.beta.messages.stream(
        model="responses/m", max_tokens=9, messages=[{"role": "user", "content": "x"}]
    ) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == [*(block["type"] for block in BLOCKS[work]), "text"]
    assert final.content[0].to_dict()["input"] == BLOCKS[work][0]["input"]
