"""Every scenario of the transports runs on both event loops that they are meant for."""

import asyncio

import pytest
import uvloop

from net.raw_client import PATIENCE_S
from net.scenarios import Play, Scenario


@pytest.fixture(params=["uvloop", "asyncio"])
def play(request: pytest.FixtureRequest) -> Play:
    return make_play(request.param)


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.rest)])
def play_slowly(request: pytest.FixtureRequest) -> Play:
    """Like `play`, for scenarios that take their time: `make test` runs them on the gateway's own loop only."""
    return make_play(request.param)


def make_play(loop: str) -> Play:
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario, 3 * PATIENCE_S))

    return run
