"""Responses over a WebSocket, judged by the `websockets` client that OpenAI's SDK uses."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from dragoman.server.responses import ResponsesApi
from fakes.upstream import Answer, Gate
from narrowing import expect
from state.socket_rig import ASK, error, receive, response, run, socket
from state.state_rig import AGAIN, CALL, HELLO, STATELESS, WEATHER, StateRig, state_rigged
from tables import each_row
from waiting import wait_until

upstreams = pytest.mark.parametrize("upstream", STATELESS)


@upstreams
def test_a_connection_remembers_what_is_not_stored(rig: StateRig, upstream: str) -> None:
    rig.play(upstream, CALL, AGAIN, stream=True)
    with socket(rig) as opened:
        warm = run(
            opened, model=rig.model(upstream), generate=False, input=[{"role": "developer", "content": "Be brief."}]
        )
        assert [event["type"] for event in warm] == ["response.created", "response.in_progress", "response.completed"]
        assert not rig.calls(upstream)
        first = run(
            opened, model=rig.model(upstream), previous_response_id=response(warm)["id"], tools=[WEATHER], stream=True
        )
        assert [event["sequence_number"] for event in first] == list(range(len(first)))
        assert response(first)["previous_response_id"] == response(warm)["id"]
        assert b"Be brief." in rig.calls(upstream)[-1].body
        result = {"type": "function_call_output", "call_id": "call_1", "output": "Rain."}
        more = {"input": [result], "previous_response_id": response(first)["id"], "tools": [WEATHER]}
        second = run(opened, model=rig.model(upstream), **more)
        assert second[-1]["type"] == "response.completed"
        assert b"Rain." in rig.calls(upstream)[-1].body
    assert rig.http("GET", f"/responses/{response(first)['id']}").status == 404
    with socket(rig) as another:
        assert error(run(another, **more))["code"] == "previous_response_not_found"
    files = [file for file in rig.directory.rglob("*") if file.is_file()]
    assert not any(b"Rain." in file.read_bytes() for file in files)


def test_what_is_stored_is_continued_on_another_connection_and_over_http(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, stream=True)
    with socket(rig) as opened:
        first = response(run(opened, store=True))
    with socket(rig) as opened:
        second = response(run(opened, previous_response_id=first["id"], store=True))
    assert rig.openai.responses.retrieve(str(second["id"])).previous_response_id == first["id"]


def test_a_stored_response_without_output_counts_as_stored(rig: StateRig) -> None:
    def count() -> int:
        return expect(ResponsesApi, rig.gateway.app.site.responses).service.counts["kept"]

    before = count()
    with socket(rig) as opened:
        stored = response(run(opened, generate=False, store=True))
    assert rig.openai.responses.retrieve(str(stored["id"])).output == []
    assert count() == before + 1


def test_a_continuation_that_fails_forgets_its_parent(rig: StateRig) -> None:
    rig.play("chat", HELLO, HELLO, HELLO, stream=True)
    with socket(rig) as opened:
        first = response(run(opened))
        refused = run(opened, previous_response_id=first["id"], input=[{"type": "item_reference", "id": "msg_x"}])
        assert (refused[-1]["status"], error(refused)["param"]) == (404, "input")
        assert error(run(opened, previous_response_id=first["id"]))["code"] == "previous_response_not_found"
        assert run(opened)[-1]["type"] == "response.completed"


def test_a_continuation_that_the_upstream_refuses_forgets_its_parent(rig: StateRig) -> None:
    rig.play("chat", HELLO, stream=True)
    with socket(rig) as opened:
        first = response(run(opened))
        rig.fakes["chat"].answers = [Answer(b'{"error":{"message":"no"}}', status=500, content_type="application/json")]
        assert run(opened, previous_response_id=first["id"])[-1]["status"] == 500
        assert error(run(opened, previous_response_id=first["id"]))["code"] == "previous_response_not_found"


def test_a_fork_that_fails_in_another_lane_leaves_the_parent(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, stream=True)
    with socket(rig) as opened:
        first = response(run(opened))
        unknown = [{"type": "item_reference", "id": "msg_x"}]
        assert run(opened, stream_id="fork", previous_response_id=first["id"], input=unknown)[-1]["status"] == 404
        assert run(opened, previous_response_id=first["id"])[-1]["type"] == "response.completed"


def test_an_upstreams_error_is_an_error_frame_with_its_headers(rig: StateRig) -> None:
    body, headers = b'{"error":{"message":"no"}}', (("retry-after", "9"),)
    rig.fakes["chat"].answers = [Answer(body, status=429, content_type="application/json", headers=headers)]
    with socket(rig) as opened:
        refused = run(opened, stream_id="lane")
        assert (refused[-1]["status"], error(refused)["code"]) == (429, "rate_limit_exceeded")
        assert (refused[-1]["stream_id"], refused[-1]["headers"]["retry-after"]) == ("lane", "9")
        assert error(refused)["headers"] == refused[-1]["headers"]
        rig.play("chat", HELLO, stream=True)
        assert run(opened)[-1]["type"] == "response.completed"


def test_a_reply_that_breaks_off_ends_with_one_event_and_no_number_is_missing(rig: StateRig) -> None:
    rig.play("chat", HELLO, stream=True)
    whole = rig.fakes["chat"].answers[0].body
    rig.fakes["chat"].answers = [Answer(whole[: whole.index(b'"finish_reason":"stop"')])]
    with socket(rig) as opened:
        broken = run(opened)
        assert broken[-1]["type"] == "response.failed"
        assert [event["sequence_number"] for event in broken] == list(range(len(broken)))
        rig.play("chat", HELLO, stream=True)
        assert run(opened)[-1]["type"] == "response.completed"


@each_row(
    ("message", "param"),
    [
        ("{not json", None),
        ('{"type":"other"}', "type"),
        ("[]", None),
        (json.dumps({**ASK, "stream_id": "a b"}), "stream_id"),
        (json.dumps({**ASK, "background": True}), "background"),
        (json.dumps({"type": "response.create", "input": "Hi"}), "model"),
        (json.dumps({"type": "response.create", "input": "Hi", "generate": False}), "model"),
    ],
)
def test_a_bad_message_costs_an_error_frame_and_not_the_connection(rig: StateRig, message: str, param: object) -> None:
    rig.play("chat", HELLO, stream=True)
    with socket(rig) as opened:
        opened.send(message)
        refused = receive(opened)
        assert (refused["type"], refused["status"], error([refused])["param"]) == ("error", 400, param)
        assert run(opened)[-1]["type"] == "response.completed"


def test_lanes_run_side_by_side_and_name_their_events(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, stream=True)
    answers, quick_has_ended = rig.fakes["chat"].answers, threading.Event()
    answers[0] = replace(answers[0], gate=Gate(quick_has_ended))
    with socket(rig) as opened:
        opened.send(json.dumps({**ASK, "stream_id": "slow"}))
        wait_until(lambda: bool(rig.calls("chat")))
        opened.send(json.dumps({**ASK, "stream_id": "quick"}))
        ended: list[object] = []
        while len(ended) < 2:
            event = receive(opened)
            assert event["stream_id"] in ("slow", "quick")
            if event["type"] == "response.completed":
                ended.append(event["stream_id"])
                quick_has_ended.set()
    assert ended == ["quick", "slow"]


def test_a_connection_has_at_most_32_named_lanes(rig: StateRig) -> None:
    with socket(rig) as opened:
        for number in range(33):
            opened.send(json.dumps({**ASK, "generate": False, "stream_id": f"lane-{number}"}))
        found = [receive(opened) for _ in range(3 * 32 + 1)]
    [refused] = [event for event in found if event["type"] == "error"]
    assert (error([refused])["code"], refused["stream_id"]) == ("websocket_stream_limit_reached", "lane-32")


def test_steering_is_declined(rig: StateRig) -> None:
    with socket(rig) as opened:
        opened.send(json.dumps({"type": "response.steer", "previous_response_id": "resp_x", "input": "No."}))
        declined = receive(opened)
    assert declined["type"] == "response.steer.failed"
    assert declined["steer"] == {"input": "No.", "previous_response_id": "resp_x"}


def test_a_handshake_needs_a_key_a_known_origin_and_the_right_path(rig: StateRig) -> None:
    url = f"ws://127.0.0.1:{rig.gateway.port}/v1"
    key = {"authorization": f"Bearer {rig.gateway.keys['alice']}"}
    for path, headers, status in (
        ("/responses", {}, 401),
        ("/responses", {**key, "origin": "https://evil.example"}, 403),
        ("/chat/completions", key, 426),
        ("/models", key, 426),
    ):
        with pytest.raises(InvalidStatus) as refused, connect(url + path, additional_headers=headers):
            pass
        assert refused.value.response.status_code == status
    assert rig.http("GET", "/responses").status == 426


def test_the_handshake_carries_a_request_id(rig: StateRig) -> None:
    with socket(rig) as opened:
        assert opened.response is not None
        assert opened.response.headers["x-request-id"].startswith("req_")


def test_a_key_that_is_revoked_starts_no_more_requests_on_its_connections(tmp_path: Path) -> None:
    with state_rigged(tmp_path) as rig:
        fake = rig.play("chat", HELLO, stream=True)
        with socket(rig, "bob") as opened:
            assert run(opened)[-1]["type"] == "response.completed"
            revoking = rig.gateway.app.keyring.revoke("bob")
            asyncio.run_coroutine_threadsafe(revoking, rig.gateway.loop).result(60)
            for generate in (True, False):
                refused = run(opened, generate=generate)
                assert (refused[-1]["status"], error(refused)["code"]) == (401, "invalid_api_key")
                assert refused[-1]["headers"]["x-should-retry"] == "false"
        assert len(fake.calls) == 1
