"""Background responses over upstreams that know nothing of them."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dragoman.state.service import remove_old_events
from fakes.upstream import Gate
from raw_http import dial, request_bytes
from scripting import write_error, write_reply
from scripting.replies import ScriptedReply, Stop, Text
from state.state_rig import (
    BACKGROUND_SETTINGS,
    CALL,
    HELLO,
    STATELESS,
    WEATHER,
    OpenStream,
    StateRig,
    endless,
    state_rigged,
)
from store.stories import open_at
from waiting import wait_until
from wire_json import JsonObject


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateRig]:
    with state_rigged(tmp_path_factory.mktemp("background"), BACKGROUND_SETTINGS) as shared:
        yield shared


@pytest.mark.parametrize("upstream", STATELESS)
def test_a_background_response_is_queued_at_once_and_polled_to_its_end(rig: StateRig, upstream: str) -> None:
    rig.play(upstream, HELLO, HELLO)
    body = {"model": rig.model(upstream), "input": "Hi", "background": True, "metadata": {"a": "b"}}
    queued = rig.http("POST", "/responses", body=body).json
    assert (queued["status"], queued["background"], queued["store"]) == ("queued", True, True)
    assert (queued["output"], queued["usage"], queued["error"]) == ([], None, None)
    ended = rig.wait_for_end(queued["id"])
    assert (ended["status"], ended["background"], ended["metadata"]) == ("completed", True, {"a": "b"})
    assert "Hello Ada." in str(ended["output"])
    assert ended["created_at"] == queued["created_at"]
    assert len(rig.calls(upstream)) == 1
    listed = rig.http("GET", f"/responses/{queued['id']}/input_items").json
    assert "Hi" in str(listed["data"])
    more = {"model": rig.model(upstream), "input": "More", "previous_response_id": queued["id"]}
    assert rig.http("POST", "/responses", body=more).status == 200
    assert b"Hello Ada." in rig.calls(upstream)[-1].body


def test_a_streamed_background_response_can_be_left_and_followed_again(rig: StateRig) -> None:
    has_left = threading.Event()
    words = " ".join(f"word{number}" for number in range(60))
    rig.play("chat", write_reply("chat", words, cut=200, gate=Gate(has_left, at=6000)))
    body = {"model": "chat/m", "input": "Hi", "background": True, "stream": True}
    first = OpenStream(rig, "POST", "/responses", body)
    begun = []
    for event in first.events():
        begun.append(event)
        if len(begun) == 8:
            break
    first.leave()
    has_left.set()
    assert [event["type"] for event in begun[:3]] == ["response.created", "response.queued", "response.in_progress"]
    id = begun[0]["response"]["id"]
    rest = rig.http("GET", f"/responses/{id}?stream=true&starting_after=7").events
    events = [*begun, *rest]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert "word59" in str(events[-1]["response"]["output"])
    assert {event["response"]["id"] for event in events if "response" in event} == {id}
    assert len({event["response"]["created_at"] for event in events if "response" in event}) == 1
    assert len(rig.calls("chat")) == 1
    whole = rig.http("GET", f"/responses/{id}?stream=true")
    assert whole.events == events
    assert whole.body.endswith(b"data: [DONE]\n\n")
    assert rig.http("GET", f"/responses/{id}?stream=true&starting_after={len(events)}").events == []
    assert rig.http("GET", f"/responses/{id}").json["output"] == events[-1]["response"]["output"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_response_is_run_though_its_client_leaves_after_the_last_byte(tmp_path: Path, stream: bool) -> None:
    with state_rigged(tmp_path, BACKGROUND_SETTINGS) as rig:
        fake = rig.play("chat", HELLO, stream=True)
        body = {"model": "chat/m", "input": "Hi", "background": True, "stream": stream}
        request = request_bytes("/v1/responses", json.dumps(body).encode(), key=rig.gateway.keys["alice"])
        for _ in range(200):
            with dial(rig.port) as client:
                client.sendall(request)
        wait_until(lambda: len(fake.calls) == 200)
        wait_until(lambda: not rig.gateway.app.server.connections)


def test_several_followers_get_the_same_events_while_it_runs(rig: StateRig) -> None:
    are_both_there = threading.Event()
    rig.play("chat", write_reply("chat", "one two three", cut=200, gate=Gate(are_both_there, at=600)))
    body = {"model": "chat/m", "input": "Hi", "background": True, "stream": True}
    first = OpenStream(rig, "POST", "/responses", body)
    created = next(first.events())
    second = OpenStream(rig, "GET", f"/responses/{created['response']['id']}?stream=true")
    are_both_there.set()
    assert [created, *first.events()] == list(second.events())


def test_cancelling_closes_the_upstream_request_and_is_final(rig: StateRig) -> None:
    fake = rig.fakes["chat"]
    fake.answers = [endless()]
    fake.closed.clear()
    body = {"model": "chat/m", "input": "Hi", "background": True, "stream": True}
    follower = OpenStream(rig, "POST", "/responses", body)
    events = follower.events()
    id = next(events)["response"]["id"]
    while next(events)["type"] != "response.output_text.delta":
        pass
    cancelled = rig.http("POST", f"/responses/{id}/cancel")
    assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
    assert (cancelled.json["output"], cancelled.json["error"]) == ([], None)
    *_, last = events
    assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")
    wait_until(lambda: fake.closed)
    assert rig.http("POST", f"/responses/{id}/cancel").json["status"] == "cancelled"
    assert rig.http("GET", f"/responses/{id}").json["status"] == "cancelled"


def test_a_response_that_has_ended_or_was_not_queued_cannot_be_cancelled(rig: StateRig) -> None:
    rig.play("chat", HELLO, HELLO)
    id = rig.http("POST", "/responses", body={"model": "chat/m", "input": "Hi", "background": True}).json["id"]
    rig.wait_for_end(id)
    refused = rig.http("POST", f"/responses/{id}/cancel")
    assert (refused.status, b"Cannot cancel a completed response." in refused.body) == (400, True)
    made = rig.create(model="chat/m", input="Hi")
    refused = rig.http("POST", f"/responses/{made.id}/cancel")
    assert (refused.status, b"Cannot cancel a synchronous response." in refused.body) == (400, True)
    for one, missing in ((id, b"stream=true"), (made.id, b"background=true")):
        refused = rig.http("GET", f"/responses/{one}?stream=true")
        assert (refused.status, missing in refused.body, b'"param":"stream"' in refused.body) == (400, True, True)
        assert rig.http("GET", f"/responses/{one}?stream=false").status == 200
    refused = rig.http("GET", "/responses/resp_x?stream=true&starting_after=x")
    assert (refused.status, b'"param":"starting_after"' in refused.body) == (400, True)


def test_deleting_a_running_response_closes_its_upstream_request(rig: StateRig) -> None:
    fake = rig.fakes["chat"]
    fake.answers = [endless()]
    fake.requests.clear()
    id = rig.http("POST", "/responses", body={"model": "chat/m", "input": "Hi", "background": True}).json["id"]
    wait_until(lambda: fake.calls)
    fake.closed.clear()
    assert rig.http("DELETE", f"/responses/{id}").json["deleted"] is True
    assert rig.http("GET", f"/responses/{id}").status == 404
    wait_until(lambda: fake.closed)


def test_a_failure_of_the_upstream_is_a_failed_response(rig: StateRig) -> None:
    rig.play("chat", write_error(500, "out of order"))
    for stream in (False, True):
        body = {"model": "chat/m", "input": "Hi", "background": True, "stream": stream}
        reply = rig.http("POST", "/responses", body=body)
        assert reply.status == 200
        id = reply.events[0]["response"]["id"] if stream else reply.json["id"]
        ended = rig.wait_for_end(id)
        assert (ended["status"], ended["error"]["code"]) == ("failed", "server_error")
        if stream:
            assert [event["type"] for event in reply.events][-1] == "response.failed"
            assert reply.events[-1]["response"]["error"] == ended["error"]


def test_a_reply_that_was_cut_off_is_incomplete(rig: StateRig) -> None:
    rig.play("chat", ScriptedReply((Text("Hello"),), Stop.CAP))
    body = {"model": "chat/m", "input": "Hi", "background": True, "max_output_tokens": 16}
    ended = rig.wait_for_end(rig.http("POST", "/responses", body=body).json["id"])
    assert (ended["status"], ended["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_a_stream_that_is_dropped_at_once_does_not_stay_queued(rig: StateRig) -> None:
    has_left = threading.Event()
    rig.play("chat", write_reply("chat", "one two", gate=Gate(has_left)))
    connection = HTTPConnection("127.0.0.1", rig.gateway.port, timeout=60)
    body = json.dumps({"model": "chat/m", "input": "dropped", "background": True, "stream": True})
    connection.request("POST", "/v1/responses", body, {"authorization": f"Bearer {rig.gateway.keys['alice']}"})
    wait_until(lambda: rig.gateway.app.site.under_way)
    connection.close()
    has_left.set()

    async def read_statuses() -> set[str]:
        async with open_at(f"sqlite:///{rig.directory}/store.db") as store:
            return {row.status for row in await store.responses.list_responses(None, 1000, 0)}

    wait_until(lambda: not {"queued", "in_progress"} & asyncio.run(read_statuses()))


def test_a_malformed_request_is_refused_at_once(rig: StateRig) -> None:
    rig.fakes["chat"].requests.clear()
    table: list[tuple[JsonObject, bytes]] = [
        ({"store": False}, b"background"),
        ({"background": "yes"}, b"background"),
        ({"input": 7}, b"input"),
        ({"previous_response_id": "resp_unknown"}, b"previous_response_id"),
        ({"input": [{"type": "compaction_trigger"}]}, b"background"),
    ]
    for fields, param in table:
        body = {"model": "chat/malformed", "input": "Hi", "background": True, **fields}
        reply = rig.http("POST", "/responses", body=body)
        assert (reply.status, b'"param":"%b"' % param in reply.body) == (400, True), fields
    assert not any(b"malformed" in request.body for request in rig.calls("chat"))


def test_a_strict_request_with_a_loss_is_refused_at_once(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    body = {"model": "chat/m", "input": "Hi", "background": True, "truncation": "auto"}
    refused = rig.http("POST", "/responses", body=body, headers={"x-dragoman-strict": "1"})
    assert (refused.status, b"translation_loss" in refused.body, b"/truncation" in refused.body) == (400, True, True)
    body["truncation"] = "disabled"
    queued = rig.http("POST", "/responses", body=body, headers={"x-dragoman-strict": "1"}).json
    assert rig.wait_for_end(queued["id"])["status"] == "completed"


def test_a_conversation_is_locked_until_its_background_response_ends(rig: StateRig) -> None:
    conversation = rig.http("POST", "/conversations", body={}).json["id"]
    rig.fakes["chat"].answers = [endless()]
    body = {"model": "chat/m", "input": "Hi", "background": True, "conversation": conversation}
    id = rig.http("POST", "/responses", body={**body, "stream": False}).json["id"]
    locked = rig.http("POST", "/responses", body=body)
    assert (locked.status, b"conversation_locked" in locked.body) == (400, True)
    rig.http("POST", f"/responses/{id}/cancel")
    assert rig.http("GET", f"/conversations/{conversation}/items").json["data"] == []
    rig.play("chat", HELLO)
    id = rig.http("POST", "/responses", body=body).json["id"]
    assert rig.wait_for_end(id)["conversation"] == {"id": conversation}
    items = rig.http("GET", f"/conversations/{conversation}/items?order=asc").json["data"]
    assert ["Hi" in str(items[0]), "Hello Ada." in str(items[1]), len(items)] == [True, True, 2]


def test_a_tool_turn_goes_on_from_a_background_response(rig: StateRig) -> None:
    rig.play("messages", CALL, (Text("It rains."),))
    body = {"model": rig.model("messages"), "input": "Weather?", "tools": [WEATHER], "background": True}
    first = rig.wait_for_end(rig.http("POST", "/responses", body=body).json["id"])
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "rain"}
    body |= {"input": [output], "previous_response_id": first["id"]}
    second = rig.wait_for_end(rig.http("POST", "/responses", body=body).json["id"])
    assert second["previous_response_id"] == first["id"]
    assert "It rains." in str(second["output"])


def test_one_usage_row_is_written_for_each_upstream_call(rig: StateRig) -> None:
    rig.play("chat", HELLO, HELLO, stream=True)
    body = {"model": "chat/m", "input": "Hi", "background": True, "stream": True}
    reply = rig.http("POST", "/responses", body=body)
    again = rig.http("GET", f"/responses/{reply.events[0]['response']['id']}?stream=true")
    outcome = rig.gateway.outcome(reply.headers["x-request-id"])
    last = rig.http("POST", "/responses", body={"model": "chat/m", "input": "Hi", "stream": True})
    rig.gateway.outcome(last.headers["x-request-id"])  # outcomes are in the order of their ends
    ids = (reply.headers["x-request-id"], again.headers["x-request-id"])
    assert [one.request_id for one in rig.gateway.outcomes if one.request_id in ids] == [outcome.request_id]
    assert (outcome.provider, outcome.outcome, outcome.stream) == ("chat", "ok", True)
    assert outcome.usage is not None


def test_an_idempotency_key_queues_a_response_once(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    body = {"model": "chat/m", "input": "Hi", "background": True}
    replies = [rig.http("POST", "/responses", body=body, headers={"idempotency-key": "once"}) for _ in range(2)]
    assert replies[0].json == replies[1].json
    rig.wait_for_end(replies[0].json["id"])
    assert len(rig.calls("chat")) == 1


def test_the_key_of_the_client_is_not_written_to_disk(rig: StateRig) -> None:
    rig.fakes["chat"].answers = [endless()]
    body = {"model": "chat/m", "input": "unmistakable-canary", "background": True}
    id = rig.http("POST", f"/responses?key={rig.gateway.keys['alice']}", body=body).json["id"]
    files = b"".join(file.read_bytes() for file in rig.directory.glob("store.db*"))
    rig.http("POST", f"/responses/{id}/cancel")
    assert b"unmistakable-canary" in files
    assert rig.gateway.keys["alice"].encode() not in files


def test_events_that_are_too_old_cannot_be_followed_and_the_response_stays(rig: StateRig) -> None:
    rig.play("chat", HELLO, stream=True)
    body = {"model": "chat/m", "input": "Hi", "background": True, "stream": True}
    id = rig.http("POST", "/responses", body=body).events[0]["response"]["id"]

    async def remove() -> None:
        async with open_at(f"sqlite:///{rig.directory}/store.db") as store:
            assert await remove_old_events(store.runs) == 0
            await store.runs.remove_events(int(time.time()) + 9, 100)

    asyncio.run(remove())
    refused = rig.http("GET", f"/responses/{id}?stream=true")
    assert (refused.status, b"can no longer be streamed" in refused.body) == (400, True)
    assert rig.http("GET", f"/responses/{id}").json["status"] == "completed"


def test_metrics_count_background_responses_by_status(rig: StateRig) -> None:
    def read(status: str) -> float:
        counted = f'dragoman_background_responses_total{{status="{status}"'
        [line] = [line for line in rig.http("GET", "/metrics").body.decode().splitlines() if line.startswith(counted)]
        return float(line.rpartition(" ")[2])

    statuses = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
    before = [read(status) for status in statuses]
    rig.play("chat", HELLO)
    body = {"model": "chat/m", "input": "Hi", "background": True}
    rig.wait_for_end(rig.http("POST", "/responses", body=body).json["id"])
    assert [read(status) for status in statuses] == [
        number + added for number, added in zip(before, (1, 1, 1, 0, 0, 0), strict=True)
    ]


def test_a_response_that_not_every_target_could_run_itself_is_run_by_the_gateway(tmp_path: Path) -> None:
    either = '[[models]]\nname = "either"\nto = ["openai/m", "chat/m"]\n'
    with state_rigged(tmp_path, BACKGROUND_SETTINGS + either) as rig:
        rig.play("openai", write_error(500, "down"))
        rig.play("chat", HELLO)
        queued = rig.http("POST", "/responses", body={"model": "either", "input": "Hi", "background": True}).json
        assert "Hello Ada." in str(rig.wait_for_end(queued["id"])["output"])
        sent = rig.calls("openai")[-1].json
        assert (sent["store"], "background" in sent) == (False, False)
