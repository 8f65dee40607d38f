"""Conversations: created, edited and continued, judged by OpenAI's SDK."""

import threading
from dataclasses import replace

import openai
import pytest

from fakes.upstream import Answer, Gate
from state.state_rig import AGAIN, CALL, HELLO, StateRig
from tables import each_row


def texts(rig: StateRig, conversation: str) -> list[object]:
    listed = rig.openai.conversations.items.list(conversation, order="asc")
    return [getattr(part, "text", None) for item in listed if item.type == "message" for part in item.content]


def test_a_conversation_is_created_read_updated_and_deleted(rig: StateRig) -> None:
    made = rig.openai.conversations.create(metadata={"topic": "a"}, items=[{"role": "user", "content": "Hi"}])
    assert made.id.startswith("conv_")
    assert made.metadata == {"topic": "a"}
    assert rig.openai.conversations.retrieve(made.id) == made
    changed = rig.openai.conversations.update(made.id, metadata={"other": "b"})
    assert changed.metadata == {"other": "b"}
    assert rig.openai.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        rig.openai.conversations.retrieve(made.id)
    assert rig.http("POST", "/conversations", body={"items": []}).json["metadata"] == {}
    assert rig.http("POST", "/conversations").status == 200


def test_items_are_added_listed_read_and_removed(rig: StateRig) -> None:
    id = rig.openai.conversations.create().id
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "Rain."}
    items = [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi"}, call, result]
    added = rig.openai.conversations.items.create(id, items=[], extra_body={"items": items})
    assert [item.type for item in added.data] == ["message", "message", "function_call", "function_call_output"]
    assert [str(item.id)[:3] for item in added.data] == ["msg", "msg", "fc_", "fco"]
    assert all(item.model_dump()["status"] == "completed" for item in added.data)
    newest = rig.openai.conversations.items.list(id, limit=1)
    assert (newest.data[0].id, newest.has_more) == (added.data[3].id, True)
    assert [item.id for item in rig.openai.conversations.items.list(id, order="asc", limit=3)] == [
        item.id for item in added.data
    ]
    first = str(added.data[0].id)
    assert rig.openai.conversations.items.retrieve(first, conversation_id=id).id == first
    assert rig.openai.conversations.items.delete(first, conversation_id=id).id == id
    with pytest.raises(openai.NotFoundError):
        rig.openai.conversations.items.retrieve(first, conversation_id=id)
    assert len(list(rig.openai.conversations.items.list(id))) == 3
    for limit in ("0", "101", "9" * 5000, "0000000019999999999", "%C2%B2", "1.0", ""):
        assert rig.http("GET", f"/conversations/{id}/items?limit={limit}").status == 400, limit
    assert rig.http("GET", f"/conversations/{id}/items?limit=0100").status == 200


@each_row(
    ("body", "param"),
    [
        ({"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ({"items": "x"}, "items"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"metadata": []}, "metadata"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_field(rig: StateRig, body: object, param: str) -> None:
    reply = rig.http("POST", "/conversations", body=body)
    error = reply.json["error"]
    assert isinstance(error, dict)
    assert (reply.status, error["param"]) == (400, param)


@pytest.mark.parametrize(("upstream", "stream"), [("chat", False), ("messages", True), ("kiro", True)])
def test_a_conversation_is_continued_and_grows(rig: StateRig, upstream: str, stream: bool) -> None:
    rig.play(upstream, HELLO, AGAIN, AGAIN, stream=stream)
    conversation = rig.openai.conversations.create(items=[{"role": "user", "content": "I am Ada."}]).id
    first = rig.create(stream=stream, model=rig.model(upstream), input="Hello?", conversation=conversation)
    assert first.conversation is not None
    assert first.conversation.id == conversation
    rig.create(stream=stream, model=rig.model(upstream), input="Who am I?", conversation={"id": conversation})
    assert b"I am Ada." in rig.calls(upstream)[-1].body
    everything = ["I am Ada.", "Hello?", "Hello Ada.", "Who am I?", "Your name is Ada."]
    assert texts(rig, conversation) == everything
    unstored = rig.create(stream=stream, model=rig.model(upstream), input="?", conversation=conversation, store=False)
    assert unstored.conversation is not None
    assert texts(rig, conversation) == everything


def test_a_failed_reply_adds_nothing_and_frees_the_conversation(rig: StateRig) -> None:
    conversation = rig.openai.conversations.create().id
    rig.fakes["chat"].answers = [Answer(b'{"error":{"message":"no"}}', status=400, content_type="application/json")]
    with pytest.raises(openai.BadRequestError):
        rig.create(model="chat/m", input="Hi", conversation=conversation)
    assert texts(rig, conversation) == []
    rig.play("chat", HELLO)
    rig.create(model="chat/m", input="Hi", conversation=conversation)
    assert texts(rig, conversation) == ["Hi", "Hello Ada."]


def test_one_request_at_a_time_works_on_a_conversation(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN)
    answers, is_refused = rig.fakes["chat"].answers, threading.Event()
    answers[0] = replace(answers[0], gate=Gate(is_refused))
    conversation = rig.openai.conversations.create().id
    running = threading.Thread(
        target=rig.create, kwargs={"model": "chat/m", "input": "one", "conversation": conversation}
    )
    running.start()
    while not rig.calls("chat"):
        threading.Event().wait(0.01)
    with pytest.raises(openai.BadRequestError) as refused:
        rig.create(model="chat/m", input="two", conversation=conversation)
    assert (refused.value.code, refused.value.param) == ("conversation_locked", "conversation")
    is_refused.set()
    running.join()
    rig.create(model="chat/m", input="two", conversation=conversation)
    assert texts(rig, conversation) == ["one", "Hello Ada.", "two", "Your name is Ada."]


def test_a_conversation_that_is_deleted_in_the_middle_gets_nothing_and_the_reply_stays(rig: StateRig) -> None:
    rig.play("chat", CALL)
    answers, is_deleted = rig.fakes["chat"].answers, threading.Event()
    answers[0] = replace(answers[0], gate=Gate(is_deleted))
    conversation, made = rig.openai.conversations.create().id, []
    running = threading.Thread(
        target=lambda: made.append(rig.create(model="chat/m", input="one", conversation=conversation).id)
    )
    running.start()
    while not rig.calls("chat"):
        threading.Event().wait(0.01)
    rig.openai.conversations.delete(conversation)
    is_deleted.set()
    running.join()
    assert rig.openai.responses.retrieve(made[0]).id == made[0]
