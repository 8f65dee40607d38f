"""Requests that are rebuilt from what is kept have the same bytes from turn to turn, so that prompt caches work."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import pytest

from scripting.replies import Part, Text, Thinking, ToolCall
from state.socket_rig import response, run, socket
from state.state_rig import STATELESS, WEATHER, StateRig, state_rigged
from wire_json import JsonObject


class KiroState(msgspec.Struct):
    current: msgspec.Raw = msgspec.field(name="currentMessage")
    history: list[msgspec.Raw] = []


class KiroRequest(msgspec.Struct):
    state: KiroState = msgspec.field(name="conversationState")


fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
CONVERSATION_ID = re.compile(rb'"conversationId":"[0-9a-f-]{36}"')  # another one for each request to Kiro
ENCRYPTED = "reasoning.encrypted_content"
UPSTREAMS = (*STATELESS, "openai")
FIXED = {
    "instructions": "Be brief.",
    "tools": [WEATHER, {**WEATHER, "name": "tides"}],
    "reasoning": {"effort": "high", "summary": "auto"},
}
REPLIES: tuple[Sequence[Part], ...] = (
    (
        Thinking("She asks about Oslo.", "sig-1"),
        Text("Let me look."),
        ToolCall("call_1", "weather", '{"city": "Oslo"}'),
    ),
    (Thinking("It rains.", "sig-2"), Text("It rains in Oslo.")),
    (Thinking("Now Bergen.", "sig-3"), ToolCall("call_2", "weather", '{"city":"Bergen"}')),
    (Text("It pours in Bergen."),),
    (Text("You are welcome."),),
)
INPUTS: tuple[JsonObject, ...] = (
    {"role": "user", "content": "Weather in Oslo?"},
    {"type": "function_call_output", "call_id": "call_1", "output": "Rain."},
    {"role": "user", "content": "And in Bergen?"},
    {"type": "function_call_output", "call_id": "call_2", "output": "Downpour."},
    {"role": "user", "content": "Thanks."},
)
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateRig]:
    with state_rigged(tmp_path_factory.mktemp("stable"), openai="keeps_responses = false\n") as shared:
        yield shared


def continue_by_id(rig: StateRig, upstream: str, stream: bool) -> list[bytes]:
    """Hold the conversation with what the gateway keeps; return the requests that the upstream got."""
    rig.play(upstream, *REPLIES, stream=stream)
    previous = None
    for item in INPUTS:
        fields = {**FIXED, "model": rig.model(upstream), "input": [item], "previous_response_id": previous}
        previous = rig.create("alice", stream=stream, **fields).id
    return list_requests(rig, upstream)


def send_everything(rig: StateRig, upstream: str, stream: bool) -> list[bytes]:
    """Hold the conversation as a client that keeps its history itself."""
    rig.play(upstream, *REPLIES, stream=stream)
    history: list[JsonObject] = []
    for item in INPUTS:
        history.append(item)
        fields = {**FIXED, "model": rig.model(upstream), "input": history, "store": False, "include": [ENCRYPTED]}
        made = rig.create("alice", stream=stream, **fields)
        history += [part.model_dump(exclude_none=True) for part in made.output]
    return list_requests(rig, upstream)


def continue_a_conversation(rig: StateRig, upstream: str) -> list[bytes]:
    """Hold it in a conversation that the gateway keeps."""
    rig.play(upstream, *REPLIES, stream=True)
    conversation = rig.openai.conversations.create().id
    for item in INPUTS:
        fields = {**FIXED, "model": rig.model(upstream), "input": [item], "conversation": conversation}
        rig.create("alice", stream=True, **fields)
    return list_requests(rig, upstream)


def continue_over_a_websocket(rig: StateRig, upstream: str) -> list[bytes]:
    """Hold it with the memory of a connection; nothing is stored."""
    rig.play(upstream, *REPLIES, stream=True)
    previous: object = None
    with socket(rig) as opened:
        for item in INPUTS:
            fields = {**FIXED, "model": rig.model(upstream), "input": [item], "previous_response_id": previous}
            previous = response(run(opened, **fields))["id"]
    return list_requests(rig, upstream)


def list_requests(rig: StateRig, upstream: str) -> list[bytes]:
    bodies = [CONVERSATION_ID.sub(b'"conversationId":""', request.body) for request in rig.calls(upstream)]
    assert len(bodies) == len(INPUTS)
    return bodies


@modes
@pytest.mark.parametrize("upstream", STATELESS)
def test_a_rebuilt_request_is_that_of_a_client_that_keeps_its_history(
    rig: StateRig, upstream: str, stream: bool
) -> None:
    assert continue_by_id(rig, upstream, stream) == send_everything(rig, upstream, stream)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_conversations_and_websockets_rebuild_the_same_requests(rig: StateRig, upstream: str) -> None:
    by_id = continue_by_id(rig, upstream, stream=True)
    in_conversation, over_socket = continue_a_conversation(rig, upstream), continue_over_a_websocket(rig, upstream)
    assert in_conversation == by_id
    assert over_socket == by_id


@modes
@pytest.mark.parametrize(("upstream", "turns"), [("chat", "messages"), ("messages", "messages"), ("openai", "input")])
def test_each_request_begins_with_the_bytes_of_the_one_before(
    rig: StateRig, upstream: str, turns: str, stream: bool
) -> None:
    requests = [fields.decode(body) for body in continue_by_id(rig, upstream, stream)]
    for before, after in pairwise(requests):
        assert list(before) == list(after)
        for name, value in after.items():
            if name == turns:
                assert bytes(value).startswith(bytes(before[turns])[:-1] + b",")
            else:
                assert bytes(value) == bytes(before[name])
    assert b"sig-3" in continue_by_id(rig, upstream, stream)[-1], "opaque reasoning is part of it"


def test_each_kiro_history_begins_with_the_bytes_of_the_one_before(rig: StateRig) -> None:
    states = [msgspec.json.decode(body, type=KiroRequest).state for body in continue_by_id(rig, "kiro", stream=True)]
    for before, after in pairwise(states):
        kept = list(map(bytes, before.history))
        assert list(map(bytes, after.history))[: len(kept)] == kept
        current = msgspec.json.decode(before.current, type=JsonObject)
        message = current["userInputMessage"]
        assert message["userInputMessageContext"].pop("tools"), "only the newest message has the tools"
        if not message["userInputMessageContext"]:
            del message["userInputMessageContext"]
        assert msgspec.json.decode(after.history[len(kept)]) == current
        assert len(after.history) == len(kept) + 2
    assert b"sig-3" in bytes(states[-1].history[-3])
