"""However a call ends, its outcome is passed on, and it is no longer counted as under way."""

import asyncio
from contextlib import nullcontext

import pytest

from dragoman.net.sink import CollectorSink
from dragoman.proxy.outcome import CLIENT_GONE, OK
from dragoman.proxy.steps.observe import observe, observe_without_row
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from proxy.steps.story_rig import StoryRig, new_call


@pytest.mark.parametrize(
    ("fault", "gone", "outcome"),
    [
        (None, False, OK),
        (RequestError(Failure(Kind.QUOTA, "spent")), False, "quota"),
        (asyncio.CancelledError(), True, CLIENT_GONE),
        (asyncio.CancelledError(), False, "shutdown"),
    ],
)
async def test_the_outcome_of_a_call_is_passed_on(fault: BaseException | None, gone: bool, outcome: str) -> None:
    rig, sink = StoryRig(), CollectorSink()
    sink.reader_gone = gone
    expected = nullcontext() if fault is None else pytest.raises(type(fault))
    with expected, observe(rig.gateway, new_call(), sink, None):
        assert len(rig.gateway.running) == 1
        if fault is not None:
            raise fault
    rig.gateway.observers.flush()
    assert len(rig.gateway.running) == 0
    assert [one.outcome for one in rig.outcomes] == [outcome]


async def test_a_call_that_is_only_counted_has_no_outcome() -> None:
    rig = StoryRig()
    with observe_without_row(rig.gateway, new_call(), CollectorSink()):
        assert len(rig.gateway.running) == 0
    rig.gateway.observers.flush()
    assert rig.outcomes == []


async def test_a_refusal_that_observers_have_is_marked_so() -> None:
    with (
        pytest.raises(RequestError) as refused,
        observe(StoryRig().gateway, new_call(), CollectorSink(), None),
    ):
        raise RequestError(Failure(Kind.QUOTA, "spent"))
    assert refused.value.observed
