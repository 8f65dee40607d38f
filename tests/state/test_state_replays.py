"""Captures of requests that are stored or refer to what is stored: a replay needs no store, and is the same."""

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from websockets.sync.client import connect

from dragoman.operate import AdminError
from dragoman.operate.captures.replay.difference import compare_captures
from dragoman.operate.captures.replay.rerun import rerun
from dragoman.proxy.capture.format import Capture
from dragoman.server.handler import replay_site
from raw_http import dial
from rig import ONCE
from scripting.replies import Part, Text, Thinking
from state.parked_rig import parking
from state.state_rig import StateRig, state_rigged
from waiting import wait_until

HELLO: list[Part] = [Thinking("A greeting.", "seal"), Text("Hello.")]
AGAIN: list[Part] = [Text("Hello again.")]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[StateRig]:
    with state_rigged(tmp_path, ONCE + make_debug(tmp_path)) as opened:
        yield opened


def make_debug(directory: Path) -> str:
    return f'[debug]\ncapture = "all"\ndirectory = "{directory}/captures"\n'


def captures(rig: StateRig, count: int) -> list[Capture]:
    """Return the captures of the first requests, in order."""
    wait_until(lambda: len(rig.gateway.outcomes) == count)
    outcomes = sorted(rig.gateway.outcomes, key=lambda outcome: outcome.started_at)
    return [rig.gateway.capture(outcome.request_id) for outcome in outcomes]


def assert_same(capture: Capture) -> None:
    parts = compare_captures(capture, rerun(capture, replay_site))
    assert [(part.name, change) for part in parts for change in part.changes] == []


@pytest.mark.parametrize(("upstream", "stream"), [("chat", False), ("messages", True), ("kiro", False), ("kiro", True)])
def test_a_chain_of_stored_responses_is_replayed_without_the_store(rig: StateRig, upstream: str, stream: bool) -> None:
    rig.play(upstream, HELLO, AGAIN, stream=stream)
    first = rig.create(stream=stream, model=rig.model(upstream), input="Hi", instructions="Be kind.")
    rig.create(stream=stream, model=rig.model(upstream), input="Again", previous_response_id=first.id)
    stored, chained = captures(rig, 2)
    assert b"Hello." in chained.upstream_requests[0].body
    assert_same(stored)
    assert_same(chained)


def test_items_that_a_request_refers_to_are_in_its_capture(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN)
    first = rig.create(model="chat/m", input="Hi")
    reference = {"type": "item_reference", "id": first.output[-1].id}
    rig.create(model="chat/m", input=[reference, {"role": "user", "content": "Again"}], store=False)
    for capture in captures(rig, 2):
        assert_same(capture)


def test_a_conversation_is_replayed(rig: StateRig) -> None:
    rig.play("messages", HELLO, AGAIN, stream=True)
    conversation = rig.openai.conversations.create(items=[{"role": "user", "content": "My name is Ada."}])
    for text in ("Hi", "Again"):
        rig.create(stream=True, model=rig.model("messages"), input=text, conversation=conversation.id)
    for capture in captures(rig, 2):
        assert b"Ada" in capture.upstream_requests[0].body
        assert_same(capture)


def test_a_reference_to_nothing_is_refused_in_the_replay_too(rig: StateRig) -> None:
    with pytest.raises(openai.BadRequestError):
        rig.create(model="chat/m", input="Hi", previous_response_id="resp_" + "0" * 48)
    [capture] = captures(rig, 1)
    assert capture.upstream_requests == ()
    assert_same(capture)


def test_a_response_that_its_upstream_keeps_is_replayed(rig: StateRig) -> None:
    rig.play("openai", HELLO, AGAIN, stream=True)
    first = rig.create(stream=True, model="openai/m", input="Hi")
    rig.create(stream=True, model="openai/m", input="Again", previous_response_id=first.id)
    for capture in captures(rig, 2):
        assert capture.passthrough
        assert_same(capture)


def test_a_response_that_could_not_be_stored_says_so_in_the_replay_too(rig: StateRig) -> None:
    rig.break_store()
    rig.play("chat", HELLO, stream=True)
    assert rig.create(stream=True, model="chat/m", input="Hi").to_dict()["store"] is False
    assert_same(captures(rig, 1)[0])


def test_the_memory_of_a_websocket_is_in_the_captures_of_its_requests(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, stream=True)
    key = rig.gateway.keys["alice"]
    url = f"ws://127.0.0.1:{rig.gateway.port}/v1/responses"
    with connect(url, additional_headers={"authorization": f"Bearer {key}"}) as opened:
        previous = None
        for text in ("Hi", "Again"):
            fields = {"model": "chat/m", "input": text, "store": False, "previous_response_id": previous}
            opened.send(json.dumps({"type": "response.create", **fields}))
            while (event := json.loads(opened.recv(timeout=60)))["type"] != "response.completed":
                pass
            previous = event["response"]["id"]
    for capture in captures(rig, 2):
        assert_same(capture)


@pytest.mark.parametrize("stream", [False, True])
def test_a_parked_reply_whose_client_left_is_captured_whole(tmp_path: Path, stream: bool) -> None:
    with parking(tmp_path, make_debug(tmp_path)) as rig:
        with rig.hold():
            with dial(rig.gateway.port) as opened:
                opened.sendall(rig.request("chat", "messages", "x-dragoman-park: 1", stream=stream))
                wait_until(lambda: rig.calls("messages") == 1)
            rig.wait_left()
        wait_until(lambda: len(rig.gateway.outcomes) == 1)
        capture = rig.gateway.capture(rig.gateway.outcomes[0].request_id)
        assert capture.response is not None
        assert b"word" in b"".join(chunk.data for chunk in capture.response.chunks)
        assert_same(capture)


@pytest.mark.parametrize(("upstream", "stream"), [("chat", False), ("messages", True), ("kiro", True)])
def test_a_compaction_and_a_count_of_tokens_are_replayed(rig: StateRig, upstream: str, stream: bool) -> None:
    rig.play(upstream, HELLO, AGAIN, AGAIN)
    model = rig.model(upstream)
    first = rig.create(model=model, input="Hi")
    trigger = [{"role": "user", "content": "Go on."}, {"type": "compaction_trigger"}]
    fields = {"model": model, "previous_response_id": first.id}
    replies = [
        rig.http("POST", "/responses/compact", body={**fields, "input": "Go on."}),
        rig.http("POST", "/responses", body={**fields, "input": trigger, "stream": stream}),
        rig.http("POST", "/responses/input_tokens", body={**fields, "input": "Go on."}),
    ]
    assert [reply.status for reply in replies] == [200, 200, 200]
    for reply in replies:
        assert_same(rig.gateway.capture(reply.headers["x-request-id"]))


def test_a_background_response_is_replayed(rig: StateRig) -> None:
    rig.play("messages", HELLO, stream=True)
    made = rig.http("POST", "/responses", body={"model": rig.model("messages"), "input": "Hi", "background": True})
    wait_until(lambda: rig.http("GET", f"/responses/{made.json['id']}").json["status"] == "completed")
    wait_until(lambda: len(rig.gateway.capture(made.headers["x-request-id"]).upstream_requests) == 1)
    capture = rig.gateway.capture(made.headers["x-request-id"])
    assert_same(capture)


def test_a_request_that_got_the_reply_of_another_one_is_not_replayed(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    body, key = {"model": "chat/m", "input": "Hi"}, {"idempotency-key": "once"}
    rig.http("POST", "/responses", body=body, headers=key)
    again = rig.http("POST", "/responses", body=body, headers=key)
    wait_until(lambda: len(rig.gateway.outcomes) == 2)
    with pytest.raises(AdminError, match="the reply of an earlier one"):
        rerun(rig.gateway.capture(again.headers["x-request-id"]), replay_site)
