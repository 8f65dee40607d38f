"""A request with `generate: false` gets a response without output, calls no model and has no row."""

import json

import pytest

from dragoman.net.sink import CollectorSink, SinkPhase
from dragoman.proxy.call import Call
from dragoman.proxy.serve import serve_without_model
from dragoman.state.context import Context
from dragoman.state.stored_call import ParsedBody, StoredCall, Terms
from dragoman.translate.hub.failure import Kind, RequestError
from proxy.steps.story_rig import StoryRig, new_call

BODY = b'{"model":"m","input":[],"instructions":"Be brief."}'


class Lane:
    """The state of one request of a connection that has room for its response, or not."""

    def __init__(self, *, keeps: bool = False, has_room: bool = True) -> None:
        self._terms = Terms("t", keeps=keeps, retention_s=0)
        self._has_room = has_room
        self.state: StoredCall | None = None
        self.is_answered: bool | None = None

    def concerns(self, call: Call) -> bool:
        return True

    async def open(self, call: Call) -> StoredCall:
        context = Context((), (), None, None)
        self.state = StoredCall(None, self._terms, ParsedBody(json.loads(call.body), len(call.body)), context)
        return self.state

    def remembers(self, state: StoredCall) -> bool:
        return self._has_room

    def close(self, call: Call, state: StoredCall, *, is_answered: bool) -> None:
        self.is_answered = is_answered


@pytest.mark.parametrize("lane", [Lane(), Lane(keeps=True, has_room=False)], ids=["remembered", "stored"])
async def test_the_response_has_no_output_and_no_model_is_called(lane: Lane) -> None:
    rig, sink, call = StoryRig(), CollectorSink(), new_call("responses", BODY)
    await serve_without_model(rig.services, call, sink, lane)
    events = [json.loads(line.removeprefix("data: ")) for line in sink.body.decode().splitlines() if line[:1] == "d"]
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert (events[-1]["response"]["output"], events[-1]["response"]["instructions"]) == ([], "Be brief.")
    assert (rig.sent, rig.outcomes, lane.is_answered) == ([], [], True)
    assert call.buffered.held == len(sink.body)


async def test_a_response_that_could_not_be_continued_is_refused() -> None:
    lane, sink = Lane(has_room=False), CollectorSink()
    with pytest.raises(RequestError) as refused:
        await serve_without_model(StoryRig().services, new_call("responses", BODY), sink, lane)
    assert (refused.value.failure.kind, sink.phase, lane.is_answered) == (Kind.BUSY, SinkPhase.OPEN, False)


async def test_a_request_without_a_model_is_refused_before_its_state_is_read() -> None:
    lane = Lane()
    with pytest.raises(RequestError, match="model is missing"):
        await serve_without_model(StoryRig().services, new_call("responses", b'{"input":[]}'), CollectorSink(), lane)
    assert lane.state is None
