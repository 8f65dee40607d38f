"""Responses that the gateway keeps for upstreams that keep nothing, judged by OpenAI's SDK."""

import openai
import pytest

from state.state_rig import (
    AGAIN,
    CALL,
    HELLO,
    THOUGHT,
    WEATHER,
    StateRig,
    read_store_field,
)

modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
each_once = pytest.mark.parametrize(("upstream", "stream"), [("chat", False), ("messages", True), ("kiro", True)])


@each_once
def test_a_later_turn_sends_what_a_client_without_state_would_have_sent(
    rig: StateRig, upstream: str, stream: bool
) -> None:
    model = rig.model(upstream)
    rig.play(upstream, HELLO, AGAIN, AGAIN, stream=stream)
    first = rig.create(stream=stream, model=model, instructions="Be brief.", input="I am Ada.", store=True)
    assert (read_store_field(first), first.previous_response_id, first.output_text) == (True, None, "Hello Ada.")
    second = rig.create(
        stream=stream, model=model, instructions="Be kind.", input="Who am I?", previous_response_id=first.id
    )
    assert (read_store_field(second), second.previous_response_id, second.output_text) == (
        True,
        first.id,
        "Your name is Ada.",
    )
    whole = [
        {"role": "user", "content": "I am Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "Who am I?"},
    ]
    rig.create(stream=stream, model=model, instructions="Be kind.", input=whole, store=False)
    _, rebuilt, stateless = (request.json for request in rig.calls(upstream))
    if upstream == "kiro":
        for body in (rebuilt, stateless):
            del body["conversationState"]["conversationId"]
    assert rebuilt == stateless


@modes
def test_a_response_is_read_back_as_it_was_shown(rig: StateRig, stream: bool) -> None:
    rig.play("chat", HELLO, stream=stream)
    made = rig.create(stream=stream, model="chat/m", input="I am Ada.", metadata={"a": "b"}, tools=[WEATHER])
    found = rig.openai.responses.retrieve(made.id)
    assert found.model_dump() == made.model_dump()
    assert found.status == "completed"


@each_once
def test_a_tool_turn_continues_by_id_alone(rig: StateRig, upstream: str, stream: bool) -> None:
    rig.play(upstream, CALL, AGAIN, stream=stream)
    first = rig.create(stream=stream, model=rig.model(upstream), input="Weather?", tools=[WEATHER])
    [call] = first.output
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    second = rig.create(
        stream=stream, model=rig.model(upstream), input=[result], previous_response_id=first.id, tools=[WEATHER]
    )
    assert second.output_text == "Your name is Ada."
    assert b"Rain." in rig.calls(upstream)[-1].body
    assert b"Oslo" in rig.calls(upstream)[-1].body


def test_an_earlier_response_may_be_continued_twice(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, AGAIN)
    root = rig.create(model="chat/m", input="root")
    for branch in ("left", "right"):
        rig.create(model="chat/m", input=branch, previous_response_id=root.id)
    left, right = (request.body for request in rig.calls("chat")[1:])
    assert b"left" in left
    assert b"left" not in right
    assert b"root" in right


def test_hidden_reasoning_goes_back_to_its_issuer_though_the_client_never_saw_it(rig: StateRig) -> None:
    rig.play("messages", THOUGHT, AGAIN)
    model = rig.model("messages")
    first = rig.create(model=model, input="Hi", reasoning={"effort": "high"})
    assert first.output[0].type == "reasoning"
    assert first.output[0].encrypted_content is None
    rig.create(model=model, input="More", previous_response_id=first.id, reasoning={"effort": "high"})
    assert b'"signature":"sig-1"' in rig.calls("messages")[-1].body
    read = rig.openai.responses.retrieve(first.id, include=["reasoning.encrypted_content"])
    assert read.output[0].type == "reasoning"
    assert read.output[0].encrypted_content


def test_a_client_that_asks_for_opaque_reasoning_gets_it_and_may_send_it_back(rig: StateRig) -> None:
    rig.play("messages", THOUGHT, AGAIN)
    model, include = rig.model("messages"), ["reasoning.encrypted_content"]
    first = rig.create(model=model, input="Hi", include=include, reasoning={"effort": "high"})
    assert first.output[0].type == "reasoning"
    assert first.output[0].encrypted_content


def test_items_are_named_by_reference_by_bare_id_and_completed_by_id(rig: StateRig) -> None:
    rig.play("messages", THOUGHT, AGAIN)
    model = rig.model("messages")
    first = rig.create(model=model, input="Hi", reasoning={"effort": "high"})
    thought, message = first.output
    for history in (
        [{"type": "item_reference", "id": thought.id}, {"type": "item_reference", "id": message.id}],
        [{"id": thought.id}, {"id": message.id}],
        [{"type": "reasoning", "id": thought.id, "summary": []}, {"type": "item_reference", "id": message.id}],
    ):
        question = [{"role": "user", "content": "Hi"}, *history, {"role": "user", "content": "More"}]
        rig.create(model=model, input=question, reasoning={"effort": "high"}, store=False)
        assert b'"signature":"sig-1"' in rig.calls("messages")[-1].body
        assert b"Hello Ada." in rig.calls("messages")[-1].body


def test_the_input_of_a_response_is_listed_with_ids_parts_and_pages(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN)
    first = rig.create(model="chat/m", input="one")
    second = rig.create(
        model="chat/m",
        input=[{"role": "user", "content": "two"}, {"role": "user", "content": "two"}],
        previous_response_id=first.id,
    )
    listed = list(rig.openai.responses.input_items.list(second.id, order="asc", limit=1))
    texts = [getattr(part, "text", None) for item in listed if item.type == "message" for part in item.content]
    assert texts == ["one", "Hello Ada.", "two", "two"]
    assert len({item.id for item in listed}) == 4
    newest = rig.openai.responses.input_items.list(second.id, limit=2)
    assert [item.id for item in newest.data] == [listed[3].id, listed[2].id]
    assert newest.has_more
    with pytest.raises(openai.BadRequestError):
        rig.openai.responses.input_items.list(second.id, after="msg_none")
    assert rig.http("GET", f"/responses/{second.id}/input_items?limit=0").status == 400


def test_a_deleted_response_is_gone_and_its_children_go_on(rig: StateRig) -> None:
    rig.play("chat", HELLO, AGAIN, AGAIN)
    parent = rig.create(model="chat/m", input="I am Ada.")
    child = rig.create(model="chat/m", input="Who?", previous_response_id=parent.id)
    deleted = rig.http("DELETE", f"/responses/{parent.id}").json
    assert deleted == {"id": parent.id, "object": "response.deleted", "deleted": True}
    with pytest.raises(openai.NotFoundError):
        rig.openai.responses.retrieve(parent.id)
    with pytest.raises(openai.BadRequestError) as refused:
        rig.create(model="chat/m", input="Who?", previous_response_id=parent.id)
    assert refused.value.code == "previous_response_not_found"
    rig.create(model="chat/m", input="And now?", previous_response_id=child.id)
    assert b"I am Ada." in rig.calls("chat")[-1].body


def test_tokens_of_the_whole_context_are_counted(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    first = rig.create(model="chat/m", input="word " * 400)
    alone = rig.openai.responses.input_tokens.count(model="chat/m", input="More")
    after = rig.openai.responses.input_tokens.count(model="chat/m", input="More", previous_response_id=first.id)
    assert after.input_tokens > alone.input_tokens + 300


def test_a_request_that_is_not_to_be_stored_leaves_nothing_on_the_disk(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    made = rig.create(model="chat/m", input="unmistakable-canary", store=False)
    assert read_store_field(made) is False
    with pytest.raises(openai.NotFoundError):
        rig.openai.responses.retrieve(made.id)
    files = [file for file in rig.directory.rglob("*") if file.is_file()]
    assert files
    assert not any(b"unmistakable-canary" in file.read_bytes() for file in files)
