"""A call has the state that it refers to, and a trigger in it asks for a compaction."""

import json
from contextlib import nullcontext

import pytest

from dragoman.net.errors import ClientDisconnected
from dragoman.net.sink import CollectorSink
from dragoman.proxy.call import Call, Compacts
from dragoman.proxy.steps.read_body import read_body
from dragoman.proxy.steps.restore_state import ReplayedState, restore_state
from dragoman.state.stored_call import StoredCall
from proxy.capture.recordings import replay_state
from proxy.in_memory import make_world
from proxy.steps.story_rig import new_call

HELLO: dict[str, object] = {"type": "message", "role": "user", "content": "Hi"}
TRIGGER: dict[str, object] = {"type": "compaction_trigger"}


async def make_read_call(*items: dict[str, object]) -> Call:
    call = new_call("responses", json.dumps({"model": "m", "input": items}).encode())
    await read_body(call, make_world())
    return call


async def test_a_call_of_another_protocol_has_no_state() -> None:
    call = new_call("chat")
    async with restore_state(ReplayedState(replay_state()), call, CollectorSink()) as state:
        assert (state, call.state) == (None, None)
    async with restore_state(None, call, CollectorSink()) as state:
        assert state is None


@pytest.mark.parametrize("fault", [None, ClientDisconnected(), ZeroDivisionError()])
async def test_a_call_has_its_state_until_it_ends(fault: Exception | None) -> None:
    call = await make_read_call(HELLO)
    closed: list[bool] = []

    class Source(ReplayedState):
        def close(self, call: Call, state: StoredCall, *, is_answered: bool) -> None:
            closed.append(is_answered)

    with nullcontext() if fault is None else pytest.raises(type(fault)):
        async with restore_state(Source(replay_state(keeps=True)), call, CollectorSink()) as state:
            assert call.state is state is not None
            assert call.compacts is None
            if fault is not None:
                raise fault
    assert closed == [fault is None]


async def test_a_call_that_ends_with_a_trigger_is_compacted_and_not_answered() -> None:
    call = await make_read_call(HELLO, TRIGGER)
    async with restore_state(ReplayedState(replay_state()), call, CollectorSink()) as state:
        assert state is not None
        assert (call.compacts, call.state) == (Compacts.BY_TRIGGER, None)
