"""Every scenario of the transports runs on both event loops that they are meant for."""

import asyncio

import pytest
import uvloop

from net.scenarios import Play, Scenario


@pytest.fixture(params=["uvloop", "asyncio"])
def play(request: pytest.FixtureRequest) -> Play:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario, 60))

    return run
