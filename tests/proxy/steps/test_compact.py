"""A compaction is one call of the model, whose summary stands for the context from then on."""

import json

import pytest

from dragoman.net.sink import CollectorSink
from dragoman.proxy.call import Compacts
from dragoman.proxy.serve import serve
from dragoman.proxy.steps.restore_state import ReplayedState
from dragoman.translate.hub.failure import Kind, RequestError
from proxy.capture.recordings import make_replaying, replay_state
from proxy.steps.story_rig import StoryRig, new_call

HELLO: dict[str, object] = {"type": "message", "role": "user", "content": "Hi"}
BODY = json.dumps({"model": "m", "input": [HELLO]}).encode()


async def test_the_path_answers_with_the_users_messages_and_one_compaction() -> None:
    rig, sink = StoryRig(ReplayedState(replay_state(HELLO))), CollectorSink()
    await serve(rig.services, new_call("responses", BODY, compacts=Compacts.BY_PATH), sink)
    found = json.loads(sink.body)
    assert found["object"] == "response.compaction"
    assert [item["type"] for item in found["output"]] == ["message", "compaction"]
    assert len(rig.sent) == 1


async def test_what_a_provider_keeps_is_not_compacted_here() -> None:
    rig = StoryRig(ReplayedState(replay_state(HELLO, keeper="up")))
    with pytest.raises(RequestError, match="cannot be compacted here"):
        await serve(rig.services, new_call("responses", BODY, compacts=Compacts.BY_PATH), CollectorSink())


async def test_a_capture_without_its_context_is_not_compacted() -> None:
    rig = StoryRig(ReplayedState(make_replaying()))
    with pytest.raises(RequestError) as refused:
        await serve(rig.services, new_call("responses", BODY, compacts=Compacts.BY_PATH), CollectorSink())
    assert refused.value.failure.kind is Kind.BUG
