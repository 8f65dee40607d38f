"""Mistakes that servers of this API make: ids that change, contexts that are lost or doubled, replies that disagree."""

import json

import pytest

from fakes.upstream import Answer, End
from scripting import encode_chat
from scripting.replies import ScriptedReply, Stop, Text
from state.socket_rig import ASK, error, receive, response, run, socket
from state.state_rig import AGAIN, CALL, HELLO, STATELESS, THOUGHT, WEATHER, StateRig
from waiting import wait_until
from wire_json import JsonObject

upstreams = pytest.mark.parametrize("upstream", STATELESS)
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "Rain."}


def stream(rig: StateRig, **fields: object) -> list[JsonObject]:
    """Return the events of a streamed response."""
    reply = rig.http("POST", "/responses", body={"model": "chat/m", "input": "Hi", **fields, "stream": True})
    assert reply.status == 200, reply.body
    return [json.loads(line[6:]) for line in reply.body.splitlines() if line.startswith(b"data: {")]


def test_every_event_has_the_same_response_id_and_every_item_one_id(rig: StateRig) -> None:
    rig.play("messages", (*THOUGHT, *CALL), stream=True)
    events = stream(rig, model=rig.model("messages"), tools=[WEATHER], reasoning={"effort": "high", "summary": "auto"})
    [id] = {event["response"]["id"] for event in events if "response" in event}
    places: dict[int, set[str]] = {}
    for event in events:
        if "output_index" in event:
            places.setdefault(event["output_index"], set()).add(event.get("item_id") or event["item"]["id"])
    assert [len(ids) for _, ids in sorted(places.items())] == [1, 1, 1]
    found = [rig.http("GET", f"/responses/{id}").json for _ in range(2)]
    assert found[0] == found[1]
    assert found[0]["id"] == id
    assert [{item["id"]} for item in found[0]["output"]] == [ids for _, ids in sorted(places.items())]


@upstreams
def test_the_output_is_the_same_in_every_place(rig: StateRig, upstream: str) -> None:
    rig.play(upstream, (Text("Look."), *CALL), AGAIN, stream=True)
    events = stream(rig, model=rig.model(upstream), tools=[WEATHER])
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    id = events[-1]["response"]["id"]
    assert rig.http("GET", f"/responses/{id}").json["output"] == done
    more = {"input": [RESULT], "previous_response_id": id, "tools": [WEATHER], "stream": True}
    later = rig.http("POST", "/responses", body={"model": rig.model(upstream), **more})
    [after] = [json.loads(line[6:]) for line in later.body.splitlines() if b'"type":"response.completed"' in line]
    listed = rig.http("GET", f"/responses/{after['response']['id']}/input_items?order=asc").json["data"]
    assert listed[1:3] == done
    assert rig.calls(upstream)[-1].body.count(b"Look.") == 1


def test_a_response_can_be_continued_before_its_stream_is_closed(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, stream=True)
    with rig.openai.responses.create(model="chat/m", input="I am Ada.", stream=True) as events:
        first = next(event.response for event in events if event.type == "response.completed")
        second = rig.create(stream=True, model="chat/m", input="Who am I?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert b"I am Ada." in rig.calls("chat")[-1].body


def test_no_turn_of_a_list_input_gets_lost(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN)
    turns = [{"role": role, "content": f"turn {number}"} for number, role in enumerate(("user", "assistant") * 3)]
    first = rig.create(model="chat/m", input=[*turns, {"role": "user", "content": "last"}])
    rig.create(model="chat/m", input="More", previous_response_id=first.id)
    sent = [message["content"] for message in rig.calls("chat")[-1].json["messages"]]
    assert sent == [*(f"turn {number}" for number in range(6)), "last", "Hello Ada.", "More"]


@upstreams
def test_every_item_of_a_long_chain_is_sent_once(rig: StateRig, upstream: str) -> None:
    rig.play(upstream, *[(Text(f"answer-{number};"),) for number in range(5)], stream=True)
    previous = None
    for number in range(5):
        question = f"question-{number};"
        made = rig.create(stream=True, model=rig.model(upstream), input=question, previous_response_id=previous)
        previous = made.id
    body = rig.calls(upstream)[-1].body
    for number in range(5):
        assert body.count(b"question-%d;" % number) == 1
        assert body.count(b"answer-%d;" % number) == (number < 4)


def test_an_incomplete_response_without_output_can_be_continued(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN)
    rig.fakes["chat"].answers[0] = Answer(
        encode_chat.encode_whole(ScriptedReply((), Stop.CAP)), content_type="application/json", chunked=False
    )
    first = rig.create(model="chat/m", input="I am Ada.", max_output_tokens=16)
    assert (first.status, first.output) == ("incomplete", [])
    rig.create(model="chat/m", input="Go on", previous_response_id=first.id)
    assert b"I am Ada." in rig.calls("chat")[-1].body


def test_an_item_is_deleted_from_the_conversation_as_it_is_now(rig: StateRig) -> None:
    items = [{"role": "user", "content": text} for text in ("one", "two")]
    conversation = rig.http("POST", "/conversations", body={"items": items}).json["id"]
    first = rig.http("GET", f"/conversations/{conversation}/items?order=asc").json["data"][0]["id"]
    rig.http("POST", f"/conversations/{conversation}", body={"metadata": {"topic": "new"}})
    deleted = rig.http("DELETE", f"/conversations/{conversation}/items/{first}").json
    assert (deleted["object"], deleted["id"], deleted["metadata"]) == ("conversation", conversation, {"topic": "new"})
    left = rig.http("GET", f"/conversations/{conversation}/items").json["data"]
    assert [item["content"][0]["text"] for item in left] == ["two"]


def test_a_keeper_that_has_forgotten_a_response_says_so_in_its_own_words(rig: StateRig) -> None:
    rig.play("openai", HELLO)
    made = rig.create(model="openai/m", input="Hi")
    terse = b'{"error":{"message":"Invalid `previous_response_id`.","code":"invalid_request_error"}}'
    rig.fakes["openai"].answers = [Answer(terse, status=400, content_type="application/json")]
    body = {"model": "openai/m", "input": "More", "previous_response_id": made.id}
    refused = rig.http("POST", "/responses", body=body)
    assert (refused.status, refused.body) == (400, terse)


@pytest.mark.parametrize("upstream", [*STATELESS, "openai"])
def test_the_fields_of_a_websocket_message_do_not_reach_the_upstream(rig: StateRig, upstream: str) -> None:
    rig.play(upstream, HELLO, stream=True)
    with socket(rig) as opened:
        run(opened, model=rig.model(upstream), stream_id="my-lane", generate=True)
    sent = rig.calls(upstream)[-1].body
    for field in (b"my-lane", b"stream_id", b"generate", b"response.create"):
        assert field not in sent


def test_a_turn_after_a_broken_upstream_connection_succeeds(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, AGAIN, stream=True)
    good = rig.fakes["chat"].answers[0]
    rig.fakes["chat"].answers[1] = Answer(good.body[:300], end=End.RESET)
    with socket(rig) as opened:
        first = response(run(opened, input="I am Ada."))
        assert run(opened, previous_response_id=first["id"])[-1]["type"] in ("response.failed", "error")
        again = run(opened, input="I am Ada.")
        assert again[-1]["type"] == "response.completed"


def test_an_old_response_is_found_in_the_store_after_newer_ones_of_its_lane(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, AGAIN, stream=True)
    with socket(rig) as opened:
        first = response(run(opened, input="I am Ada.", store=True))
        run(opened, previous_response_id=first["id"], store=True)
        forked = response(run(opened, previous_response_id=first["id"], store=True))
    assert forked["previous_response_id"] == first["id"]
    assert rig.calls("chat")[-1].body.count(b"I am Ada.") == 1


def test_a_connection_remembers_only_the_newest_response_of_a_lane(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, stream=True)
    with socket(rig) as opened:
        first = response(run(opened))
        run(opened, previous_response_id=first["id"])
        assert error(run(opened, previous_response_id=first["id"]))["code"] == "previous_response_not_found"


def test_a_client_that_leaves_its_websocket_finds_its_response_cancelled(rig: StateRig) -> None:
    begun = encode_chat.encode_stream(ScriptedReply((Text("Hello Ada."),))).partition(b'"finish_reason":"stop"')[0]
    rig.fakes["chat"].answers = [Answer(begun, end=End.HANG)]
    with socket(rig) as opened:
        opened.send(json.dumps({**ASK, "store": True}))
        id = receive(opened)["response"]["id"]
    wait_until(lambda: rig.http("GET", f"/responses/{id}").status == 200)
    found = rig.http("GET", f"/responses/{id}").json
    assert (found["status"], found["output"], found["error"]) == ("cancelled", [], None)


def test_a_background_response_that_is_not_to_be_stored_is_refused_rather_than_queued(rig: StateRig) -> None:
    body = {"model": "chat/m", "input": "Hi", "background": True, "store": False}
    refused = rig.http("POST", "/responses", body=body)
    assert refused.status == 400
    assert (refused.json["error"]["param"], refused.json["error"]["code"]) == ("background", "unsupported_parameter")


def test_a_background_stream_that_is_dropped_at_once_comes_to_its_end(rig: StateRig) -> None:
    rig.play("chat", HELLO, stream=True)
    with rig.openai.responses.create(model="chat/m", input="Hi", background=True, stream=True) as events:
        first = next(iter(events))
    assert first.type == "response.created"
    wait_until(lambda: rig.http("GET", f"/responses/{first.response.id}").json["status"] == "completed")
    assert len(rig.calls("chat")) == 1
