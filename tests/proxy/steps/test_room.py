"""A gateway that answers as many calls as it may refuses the next one."""

import pytest

from dragoman.net.sink import CollectorSink
from dragoman.proxy.steps.observe import observe
from dragoman.proxy.steps.room import check_room
from dragoman.translate.hub.failure import Kind, RequestError
from proxy.steps.story_rig import StoryRig, new_call


async def test_one_call_more_than_the_limit_is_refused_and_says_when_to_retry() -> None:
    rig = StoryRig(max_requests=1)
    with observe(rig.gateway, new_call(), CollectorSink(), None):
        check_room(rig.gateway)
        with (
            pytest.raises(RequestError) as refused,
            observe(rig.gateway, new_call(), CollectorSink(), None),
        ):
            check_room(rig.gateway)
        check_room(rig.gateway)
    assert (refused.value.failure.kind, refused.value.failure.retry_after) == (Kind.OVERLOADED, 1.0)
