"""The SDKs ask again where nothing is lost, and raise where a reply is cut: it is never taken for a whole one."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clients.driven import DRIVERS, NOTE, Outcome, outcomes
from clients.faults import CUTS, REFUSALS, SETTINGS, by_model
from clients.node_sdks import drive
from clients.rig import UPSTREAMS, Ran, Rig

Rigging = Callable[..., Rig]
Client = Callable[[str], Path]


def modes(*ways: str) -> list[str]:
    return [f"{way}@{fault}" for way in ways for fault in (*REFUSALS, *CUTS)]


def check(ran: Ran, *ways: str) -> None:
    assert ran.code == 0, ran
    found = outcomes(ran)
    assert list(found) == modes(*ways), ran
    for mode, outcome in found.items():
        if mode.partition("@")[2] in REFUSALS:
            assert outcome.text == f"Finished. The last tool said: wrote first by {mode}", ran
        else:
            check_raised(outcome)


def check_raised(outcome: Outcome) -> None:
    assert outcome.error, outcome
    assert outcome.text == "", outcome


@pytest.fixture
def faulty(rig: Rigging) -> Callable[[str], Rig]:
    return lambda upstream: rig(upstream, NOTE, amend=by_model(upstream), settings=SETTINGS)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_openai_python_recovers_or_raises(upstream: str, faulty: Callable[[str], Rig]) -> None:
    ways = ("chat-stream", "responses-stream")
    check(faulty(upstream).run(sys.executable, DRIVERS / "openai_python.py", *modes(*ways)), *ways)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_anthropic_python_recovers_or_raises(upstream: str, faulty: Callable[[str], Rig]) -> None:
    ways = ("messages-stream", "runner-stream")
    check(faulty(upstream).run(sys.executable, DRIVERS / "anthropic_python.py", *modes(*ways)), *ways)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_openai_node_recovers_or_raises(
    upstream: str, faulty: Callable[[str], Rig], client: Client, node: Path
) -> None:
    ways = ("chat-stream", "responses-stream")
    check(drive(faulty(upstream), node, client("node-sdks"), "openai_node.mjs", *modes(*ways)), *ways)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_anthropic_node_recovers_or_raises(
    upstream: str, faulty: Callable[[str], Rig], client: Client, node: Path
) -> None:
    ways = ("messages-stream", "runner-stream")
    check(drive(faulty(upstream), node, client("node-sdks"), "anthropic_node.mjs", *modes(*ways)), *ways)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_pydantic_ai_recovers_or_raises(upstream: str, faulty: Callable[[str], Rig], client: Client) -> None:
    ways = ("chat-stream", "responses-stream", "messages-stream")
    python = client("pydantic-ai") / "bin" / "python"
    check(faulty(upstream).run(python, DRIVERS / "pydantic_ai_agent.py", *modes(*ways)), *ways)
