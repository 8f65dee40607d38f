"""The SDKs ask again where nothing is lost, and raise where a reply is cut: it is never taken for a whole one."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clients.driven import DRIVERS, NOTE, Outcome, outcomes
from clients.faults import REFUSALS, SETTINGS, by_model, cuts
from clients.node_sdks import drive
from clients.rig import UPSTREAMS, Ran, Rig

Rigging = Callable[..., Rig]
Client = Callable[[str], Path]


def modes(upstream: str, *ways: str) -> list[str]:
    return [f"{way}@{fault}" for way in ways for fault in (*REFUSALS, *cuts(upstream))]


def check(ran: Ran, modes: list[str]) -> None:
    assert ran.code == 0, ran
    found = outcomes(ran)
    assert list(found) == modes, ran
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
    asked = modes(upstream, "chat-stream", "responses-stream")
    check(faulty(upstream).run(sys.executable, DRIVERS / "openai_python.py", *asked), asked)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_anthropic_python_recovers_or_raises(upstream: str, faulty: Callable[[str], Rig]) -> None:
    asked = modes(upstream, "messages-stream", "runner-stream")
    check(faulty(upstream).run(sys.executable, DRIVERS / "anthropic_python.py", *asked), asked)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_openai_node_recovers_or_raises(
    upstream: str, faulty: Callable[[str], Rig], client: Client, node: Path
) -> None:
    asked = modes(upstream, "chat-stream", "responses-stream")
    check(drive(faulty(upstream), node, client("node-sdks"), "openai_node.mjs", *asked), asked)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_anthropic_node_recovers_or_raises(
    upstream: str, faulty: Callable[[str], Rig], client: Client, node: Path
) -> None:
    asked = modes(upstream, "messages-stream", "runner-stream")
    check(drive(faulty(upstream), node, client("node-sdks"), "anthropic_node.mjs", *asked), asked)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_pydantic_ai_recovers_or_raises(upstream: str, faulty: Callable[[str], Rig], client: Client) -> None:
    asked = modes(upstream, "chat-stream", "responses-stream", "messages-stream")
    python = client("pydantic-ai") / "bin" / "python"
    check(faulty(upstream).run(python, DRIVERS / "pydantic_ai_agent.py", *asked), asked)


def test_a_kiro_that_ends_without_its_tail_has_reached_its_length(faulty: Callable[[str], Rig]) -> None:
    here = faulty("kiro")
    told = outcomes(here.run(sys.executable, DRIVERS / "anthropic_python.py", "messages-stream@clean-end"))
    assert "stop_reason='max_tokens'" in told["messages-stream@clean-end"].why
    told = outcomes(here.run(sys.executable, DRIVERS / "openai_python.py", "chat-stream@clean-end"))
    assert "LengthFinishReasonError" in told["chat-stream@clean-end"].error
