"""The rounds of a reply between which the gateway searches: order, signatures, limits, failures and cancellation."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from anthropic import APIStatusError
from anthropic.types import TextBlock

from e2e.search_scene import (
    ANSWERS,
    BROKEN,
    FOUND,
    SEARCHES,
    SearchScene,
    run_scene,
    says,
    searches,
    to_answer,
    write_message,
)
from fakes.service import json_answer
from fakes.upstream import Answer, End, Gate
from raw_http import dial, request_bytes
from waiting import wait_until
from wire_json import JsonObject

THOUGHT: JsonObject = {"type": "thinking", "thinking": "Hm, pandas.", "signature": "sig-1+/="}
LOOK: JsonObject = {"type": "text", "text": "Let me look."}
CALL: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": "web_search", "input": {"query": "pandas"}}
DONE = write_message([{"type": "text", "text": "Done."}])
BEGUN = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"So it"}}]}\n\n'
PAIR = ["server_tool_use", "web_search_tool_result"]


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    """A search that ends within 300 seconds has been cancelled; the upstream's own search is not used."""
    settings = "[server]\nkeep_alive_s = 0.1\n"
    directory = tmp_path_factory.mktemp("patient")
    with run_scene(directory, backend='"searxng"', search_settings="timeout_s = 300", settings=settings) as scene:
        yield scene


def read_until(scene: SearchScene, *stages: tuple[bytes, int, threading.Event | None]) -> bytes:
    """Read a stream until each part has come so often, one after the other, and set its event then."""
    seen = b""
    with dial(scene.gateway.port) as sock:
        sock.sendall(request_bytes("/v1/messages", msgspec.json.encode(scene.write_request(stream=True))))
        for part, count, reached in stages:
            begun = len(seen)
            while seen[begun:].count(part) < count:
                seen += (piece := sock.recv(65536))
                assert piece, seen
            if reached is not None:
                reached.set()
    return seen


def test_text_between_rounds_keeps_its_place_and_max_tokens_bounds_each_round(scene: SearchScene) -> None:
    reply = scene.play(SEARCHES, searches("more", "call_2", "Once more. "), says("Done.")).reply()
    shown = [block.text if isinstance(block, TextBlock) else block.type for block in reply.content]
    assert shown == ["Let me look. ", *PAIR, "Once more. ", *PAIR, "Done."]
    assert [turn["role"] for turn in scene.sent[2]["messages"]] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [request["max_completion_tokens"] for request in scene.sent] == [100, 95, 90]


@pytest.mark.parametrize("stream", [True, False])
def test_signatures_reach_the_next_round_as_they_came(patient: SearchScene, stream: bool) -> None:
    foreign = patient.on("anthropic")
    foreign.play(write_message([THOUGHT, LOOK, CALL], "tool_use"), DONE)
    foreign.complete(stream=stream, reasoning_effort="low")
    call, result = foreign.sent[1]["messages"][1:]
    assert call["content"] == [THOUGHT, LOOK, CALL]
    assert result["content"][0]["tool_use_id"] == "toolu_1"
    assert len(foreign.searched) == 1
    foreign.play(write_message([THOUGHT, CALL], "tool_use"), DONE)
    _, response = foreign.respond(stream=stream, reasoning={"effort": "low"})
    assert [item.type for item in response.output] == ["reasoning", "web_search_call", "message"]
    assert foreign.sent[1]["messages"][1]["content"] == [THOUGHT, CALL]


def test_a_call_with_malformed_arguments_can_be_repeated_to_the_upstream(patient: SearchScene) -> None:
    foreign = patient.on("anthropic")
    broken = write_message([CALL], "tool_use").replace(rb"{\"query\": \"pandas\"}", rb"{\"query\": \"pan")
    assert foreign.play(broken, DONE).complete(stream=True).choices[0].message.content == "Done."
    assert foreign.searched == []
    call, result = foreign.sent[1]["messages"][1:]
    assert call["content"][0]["input"] == {"arguments": '{"query": "pan'}
    assert result["content"][0]["is_error"] is True


FAILURES = {"500": BROKEN, "cut": Answer(BEGUN, end=End.CUT), "reset": Answer(b"", end=End.RESET)}


def test_a_failure_of_a_later_round_is_the_streams_error_event_or_a_status(scene: SearchScene) -> None:
    for row, second in FAILURES.items():
        events = scene.play(SEARCHES, second).ask("messages", stream=True).events
        found = [event["type"] for event in events]
        assert (found.count("message_start"), found[-1], "message_stop" in found) == (1, "error", False), row
        opened = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
        assert opened[:3] == ["text", *PAIR], row
        assert (len(scene.searched), len(scene.sent)) == (1, 2), row
    with pytest.raises(APIStatusError) as failed:
        scene.play(SEARCHES, BROKEN).reply(stream=False)
    assert failed.value.status_code >= 500


def test_the_client_gets_pings_while_a_search_runs(patient: SearchScene) -> None:
    pinged = threading.Event()
    patient.play(SEARCHES, ANSWERS).script_search(replace(json_answer(FOUND), gate=Gate(pinged)))
    called = (b'"type":"server_tool_use"', 1, None)
    seen = read_until(patient, called, (b"event: ping", 3, pinged), (b"event: message_stop", 1, None))
    pings = [place for place, line in enumerate(seen.split(b"\n\n")) if b"event: ping" in line]
    [result] = [place for place, line in enumerate(seen.split(b"\n\n")) if b'"web_search_tool_result"' in line]
    assert len([place for place in pings if place < result]) >= 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_search_and_a_later_round_end_when_the_client_leaves(patient: SearchScene, stream: bool) -> None:
    def leave_at(request: JsonObject, count: int) -> None:
        with dial(patient.gateway.port) as sock:
            sock.sendall(request_bytes("/v1/messages", msgspec.json.encode(request)))
            wait_until(lambda: len(patient.services.requests) + len(patient.sent) == count)

    patient.play(SEARCHES, ANSWERS).script_search(Answer(end=End.HANG, headless=True))
    patient.services.closed.clear()
    leave_at(patient.write_request(stream=stream), 2)
    wait_until(lambda: patient.services.closed)
    assert len(patient.sent) == 1
    patient.play(SEARCHES, Answer(BEGUN, end=End.HANG))
    patient.upstream.closed.clear()
    leave_at(patient.write_request(stream=stream), 3)
    wait_until(lambda: patient.upstream.closed)


def test_another_target_is_not_tried_after_the_first_round(tmp_path: Path) -> None:
    route = '[[models]]\nname = "both"\nto = ["chat/m", "responses/m"]\n'
    with run_scene(tmp_path, settings=route) as scene:
        spare = scene.on("responses").play(ANSWERS)
        request = scene.write_request(model="both", stream=True)
        reply = scene.play(SEARCHES, BROKEN).rig.send("POST", "/v1/messages", request)
        assert reply.events[-1]["type"] == "error"
        assert spare.sent == []


def test_the_timeout_of_the_first_token_holds_in_the_first_round_only(tmp_path: Path) -> None:
    settings = "[server]\nfirst_token_timeout_s = 1\nidle_timeout_s = 60\n"
    with run_scene(tmp_path, settings=settings) as scene:
        scene.play(SEARCHES, replace(to_answer("chat", ANSWERS), delay_s=1.3))
        assert scene.reply().stop_reason == "end_turn"


def test_a_later_round_may_be_repeated_before_its_first_word(tmp_path: Path) -> None:
    with run_scene(tmp_path, attempts=2) as scene:
        events = scene.play(SEARCHES, BROKEN, ANSWERS).ask("messages", stream=True).events
        assert [event["index"] for event in events if event["type"] == "content_block_start"] == list(range(6))
        assert events[-1]["type"] == "message_stop"
        assert events[-2]["usage"]["input_tokens"] == 40
        assert len(scene.searched) == 1
        assert scene.sent[1] == scene.sent[2]
