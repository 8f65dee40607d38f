"""The rounds of a reply between which the gateway searches: order, signatures, limits, failures and cancellation."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from anthropic import APIStatusError
from anthropic.types import Message, TextBlock

from e2e.search_scene import (
    CHAT_ANSWERS,
    CHAT_SEARCHES,
    FOUND,
    JSON,
    SearchScene,
    chat_calls,
    chat_text,
    chunk,
    message,
    search_scene,
)
from fakes.upstream import Answer, End, FakeUpstream, Gate
from gateway import provider_section
from raw_http import dial, post, request_bytes
from waiting import wait_until
from wire_json import JsonObject

TOOL: JsonObject = {"type": "web_search_20250305", "name": "web_search"}
USER: JsonObject = {"role": "user", "content": "pandas?"}
THOUGHT: JsonObject = {"type": "thinking", "thinking": "Hm, pandas.", "signature": "sig-1+/="}
CALL: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": "web_search", "input": {"query": "pandas"}}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    patient = "timeout_s = 300"  # a search that ends earlier has been cancelled
    with search_scene(tmp_path_factory.mktemp("chat"), "chat", search_settings=patient) as scene:
        yield scene


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    """A Messages upstream whose own search is not used."""
    with search_scene(tmp_path_factory.mktemp("foreign"), "messages", native=False) as scene:
        yield scene


def ask(**more: object) -> JsonObject:
    return {"model": "up/m", "max_tokens": 100, "messages": [USER], "tools": [TOOL], **more}


def stream_reply(scene: SearchScene, **more: object) -> Message:
    with scene.sdk.anthropic.messages.stream(**ask(**more)) as stream:
        return stream.get_final_message()


def events_of(body: bytes) -> list[JsonObject]:
    return [json.loads(line[5:]) for line in body.splitlines() if line.startswith(b"data:")]


def test_text_between_rounds_keeps_its_place(chat: SearchScene) -> None:
    again = chat_calls(("call_2", "web_search", '{"query": "more"}'), text="Once more. ")
    chat.play(CHAT_SEARCHES, again, chat_text("Done."))
    reply = stream_reply(chat)
    shown = [block.text if isinstance(block, TextBlock) else block.type for block in reply.content]
    pair = ["server_tool_use", "web_search_tool_result"]
    assert shown == ["Let me look. ", *pair, "Once more. ", *pair, "Done."]
    roles = [turn["role"] for turn in chat.sent[2]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


def test_what_is_left_of_max_tokens_bounds_each_round(chat: SearchScene) -> None:
    again = chat_calls(("call_2", "web_search", '{"query": "more"}'))
    chat.play(CHAT_SEARCHES, again, chat_text("Done."))
    stream_reply(chat)
    assert [request["max_completion_tokens"] for request in chat.sent] == [100, 95, 90]


@pytest.mark.parametrize("stream", [True, False])
def test_signatures_reach_the_next_round_as_they_came(foreign: SearchScene, stream: bool) -> None:
    foreign.play(
        message([THOUGHT, {"type": "text", "text": "Let me look."}, CALL], "tool_use"),
        message([{"type": "text", "text": "See [One](https://a.example/1)."}], "end_turn"),
    )
    request = {"model": "up/claude-sonnet-4-5", "messages": [USER], "web_search_options": {}, "reasoning_effort": "low"}
    reply = post(foreign.gateway.port, "/v1/chat/completions", json.dumps({**request, "stream": stream}).encode())
    assert reply.status == 200, reply.body
    call, result = foreign.sent[1]["messages"][1:]
    assert call["content"] == [THOUGHT, {"type": "text", "text": "Let me look."}, CALL]
    assert result["content"][0]["tool_use_id"] == "toolu_1"
    assert len(foreign.searxng.requests) == 1


@pytest.mark.parametrize(
    "second",
    [
        Answer(b'{"error":{"message":"broken","type":"server_error"}}', status=500, content_type=JSON),
        Answer(chunk({"role": "assistant", "content": "So it"}), end=End.CUT),
        Answer(b"", end=End.RESET),
    ],
    ids=["500", "cut", "reset"],
)
def test_a_failure_of_a_later_round_is_the_streams_error_event(chat: SearchScene, second: Answer) -> None:
    chat.play(CHAT_SEARCHES, second)
    body = json.dumps(ask(stream=True)).encode()
    events = events_of(post(chat.gateway.port, "/v1/messages", body).body)
    kinds = [event["type"] for event in events]
    assert kinds.count("message_start") == 1
    assert kinds[-1] == "error"
    assert "message_stop" not in kinds
    opened = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert opened[:3] == ["text", "server_tool_use", "web_search_tool_result"]
    assert len(chat.searxng.requests) == 1
    assert len(chat.upstream.calls) == 2


def test_a_failure_of_a_later_round_is_an_error_status_for_a_whole_reply(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, Answer(b'{"error":{"message":"broken"}}', status=500, content_type=JSON))
    with pytest.raises(APIStatusError) as failed:
        chat.sdk.anthropic.messages.create(**ask())
    assert failed.value.status_code >= 500


def _leave_when(scene: SearchScene, begun: Callable[[], bool], *, stream: bool) -> None:
    """Send a request, and close the connection once the condition holds."""
    with dial(scene.gateway.port) as sock:
        sock.sendall(request_bytes("/v1/messages", json.dumps(ask(stream=stream)).encode()))
        wait_until(begun)


def test_the_client_gets_pings_while_a_search_runs(tmp_path: Path) -> None:
    with search_scene(tmp_path, "chat", settings="[server]\nkeep_alive_s = 0.1") as scene:
        scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
        pinged = threading.Event()
        scene.script_search(Answer(json.dumps(FOUND).encode(), content_type=JSON, gate=Gate(pinged)))
        seen = b""
        with dial(scene.gateway.port) as sock:
            sock.sendall(request_bytes("/v1/messages", json.dumps(ask(stream=True)).encode()))
            while seen.partition(b'"type":"server_tool_use"')[2].count(b"event: ping") < 3:
                seen += (piece := sock.recv(65536))
                assert piece, seen
            assert b"web_search_tool_result" not in seen
            pinged.set()
            while b"event: message_stop" not in seen:
                seen += (piece := sock.recv(65536))
                assert piece, seen
        assert b"web_search_tool_result" in seen


@pytest.mark.parametrize("stream", [True, False])
def test_a_search_ends_when_its_client_leaves(chat: SearchScene, stream: bool) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    chat.script_search(Answer(json.dumps(FOUND).encode(), end=End.HANG, headless=True))
    chat.searxng.closed.clear()
    _leave_when(chat, lambda: bool(chat.searxng.requests), stream=stream)
    wait_until(lambda: bool(chat.searxng.closed))
    assert len(chat.upstream.calls) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_later_round_ends_when_its_client_leaves(chat: SearchScene, stream: bool) -> None:
    chat.play(CHAT_SEARCHES, replace(Answer(chunk({"role": "assistant", "content": "So it"})), end=End.HANG))
    chat.upstream.closed.clear()
    _leave_when(chat, lambda: len(chat.upstream.calls) == 2, stream=stream)
    wait_until(lambda: bool(chat.upstream.closed))


def test_another_target_is_not_tried_after_the_first_round(tmp_path: Path) -> None:
    with FakeUpstream() as spare:
        spare.answers = [Answer(CHAT_ANSWERS)]
        route = '[[models]]\nname = "both"\nto = ["up/m", "spare/m"]\n'
        settings = route + provider_section("chat", spare.url, "spare")
        with search_scene(tmp_path, "chat", settings=settings) as scene:
            scene.play(CHAT_SEARCHES, Answer(b'{"error":{"message":"broken"}}', status=500, content_type=JSON))
            body = json.dumps(ask(model="both", stream=True)).encode()
            events = events_of(post(scene.gateway.port, "/v1/messages", body).body)
            assert events[-1]["type"] == "error"
            assert spare.calls == []


def test_the_timeout_of_the_first_token_holds_in_the_first_round_only(tmp_path: Path) -> None:
    settings = "[server]\nfirst_token_timeout_s = 1\nidle_timeout_s = 60\n"
    with search_scene(tmp_path, "chat", settings=settings) as scene:
        scene.play(CHAT_SEARCHES, replace(Answer(CHAT_ANSWERS), delay_s=1.3))
        assert stream_reply(scene).stop_reason == "end_turn"


def test_a_search_that_the_choice_forbids_is_not_offered(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    reply = stream_reply(chat, tool_choice={"type": "none"})
    assert reply.stop_reason == "end_turn"
    assert "tools" not in chat.sent[0]
    assert "tool_choice" not in chat.sent[0]


def test_a_call_with_malformed_arguments_can_be_repeated_to_the_upstream(foreign: SearchScene) -> None:
    broken = message([CALL], "tool_use").replace(rb"{\"query\": \"pandas\"}", rb"{\"query\": \"pan")
    foreign.play(broken, message([{"type": "text", "text": "Done."}], "end_turn"))
    request = {"model": "up/claude-sonnet-4-5", "messages": [USER], "web_search_options": {}, "stream": True}
    reply = post(foreign.gateway.port, "/v1/chat/completions", json.dumps(request).encode())
    assert b"Done." in reply.body
    assert foreign.searxng.requests == []
    call, result = foreign.sent[1]["messages"][1:]
    assert call["content"][0]["input"] == {"arguments": '{"query": "pan'}
    assert result["content"][0]["is_error"] is True


def test_a_later_round_may_be_repeated_before_its_first_word(tmp_path: Path) -> None:
    failed = Answer(b'{"error":{"message":"broken"}}', status=500, content_type=JSON)
    with search_scene(tmp_path, "chat", attempts=2) as scene:
        scene.play(CHAT_SEARCHES, failed, CHAT_ANSWERS)
        events = events_of(post(scene.gateway.port, "/v1/messages", json.dumps(ask(stream=True)).encode()).body)
        opened = [event["index"] for event in events if event["type"] == "content_block_start"]
        assert opened == list(range(6))
        assert events[-1]["type"] == "message_stop"
        assert events[-2]["usage"]["input_tokens"] == 40
        assert len(scene.searxng.requests) == 1
        assert scene.sent[1] == scene.sent[2]


def test_signatures_reach_the_next_round_of_a_responses_client(foreign: SearchScene) -> None:
    foreign.play(message([THOUGHT, CALL], "tool_use"), message([{"type": "text", "text": "Done."}], "end_turn"))
    request: JsonObject = {"model": "up/claude-sonnet-4-5", "input": "pandas?", "tools": [{"type": "web_search"}]}
    with foreign.sdk.openai.responses.stream(**request, reasoning={"effort": "low"}) as stream:
        reply = stream.get_final_response()
    assert [item.type for item in reply.output] == ["reasoning", "web_search_call", "message"]
    assert foreign.sent[1]["messages"][1]["content"] == [THOUGHT, CALL]
