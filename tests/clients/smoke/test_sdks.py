"""The vendors' SDKs and a framework use tools through the gateway; when an upstream fails they retry or raise."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from clients.driven import DRIVERS, NOTE, check_note, outcomes
from clients.faults import REFUSALS, SETTINGS, by_model, cuts
from clients.node_sdks import drive
from clients.proof import Proves
from clients.rig import UPSTREAMS, Ran, Rig

Rigging = Callable[..., Rig]
Client = Callable[[str], Path]


@dataclass(frozen=True)
class Sdk:
    driver: str
    upstream: str  # of another protocol, on which `make test` runs it
    ways: tuple[str, ...]
    table: str = ""  # of versions.toml; without one it is among our own test dependencies

    @property
    def streams(self) -> list[str]:
        return [way for way in self.ways if way.endswith("-stream")]


def whole_and_streamed(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}{suffix}" for name in names for suffix in ("", "-stream"))


SDKS = {
    "openai-python": Sdk("openai_python.py", "messages", whole_and_streamed("chat", "responses")),
    "anthropic-python": Sdk("anthropic_python.py", "chat", whole_and_streamed("messages", "runner")),
    "google-genai": Sdk("google_genai.py", "responses", whole_and_streamed("gemini")),
    "openai-node": Sdk("openai_node.mjs", "kiro", whole_and_streamed("chat", "responses"), "node-sdks"),
    "@anthropic-ai/sdk": Sdk("anthropic_node.mjs", "responses", whole_and_streamed("messages", "runner"), "node-sdks"),
    "pydantic-ai": Sdk(
        "pydantic_ai_agent.py", "messages", whole_and_streamed("chat", "responses", "messages"), "pydantic-ai"
    ),
}

FRAMEWORK = "pydantic-ai"  # its installation takes half a minute


@pytest.fixture
def run(client: Client, node: Path) -> Callable[[Rig, Sdk, list[str]], Ran]:
    return lambda here, sdk, modes: run_sdk(here, sdk, modes, client, node)


def run_sdk(here: Rig, sdk: Sdk, modes: Sequence[str], client: Client, node: Path) -> Ran:
    if sdk.driver.endswith(".mjs"):
        return drive(here, node, client(sdk.table), sdk.driver, *modes)
    python = client(sdk.table) / "bin" / "python" if sdk.table else sys.executable
    return here.run(python, DRIVERS / sdk.driver, *modes)


def check_conversations(here: Rig, ran: Ran, repeated: list[str], raised: list[str]) -> None:
    """Check that some conversations came to their end, and that others raised an error in place of a cut reply."""
    assert ran.code == 0, ran
    found = outcomes(ran)
    assert list(found) == repeated + raised, ran
    for mode in repeated:
        check_note(here, found[mode])
    for mode in raised:
        assert found[mode].error, found[mode]
        assert found[mode].text == "", found[mode]
    assert here.agent.complaints == []


@pytest.mark.parametrize(
    ("name", "sdk"),
    [pytest.param(name, sdk, marks=[pytest.mark.rest] if name == FRAMEWORK else []) for name, sdk in SDKS.items()],
    ids=SDKS,
)
def test_an_sdk_uses_a_tool_and_receives_a_failure(
    name: str, sdk: Sdk, rig: Rigging, run: Callable[[Rig, Sdk, list[str]], Ran], proves: Proves
) -> None:
    """In one process, on one upstream of another protocol: what follows the @ is how the first reply goes wrong."""
    here = rig(sdk.upstream, NOTE, change=by_model(sdk.upstream), settings=SETTINGS)
    raised = [f"{way}@tcp-drop" for way in sdk.streams]
    check_conversations(here, run(here, sdk, [*sdk.ways, *raised]), list(sdk.ways), raised)
    proves(name, sdk.upstream, "tools", "whole", "streamed")


@pytest.mark.rest
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("name", SDKS)
def test_an_sdk_uses_a_tool_and_receives_every_failure(
    name: str, upstream: str, rig: Rigging, run: Callable[[Rig, Sdk, list[str]], Ran], proves: Proves
) -> None:
    sdk = SDKS[name]
    here = rig(upstream, NOTE, change=by_model(upstream), settings=SETTINGS)
    repeated = [*sdk.ways, *(f"{way}@{fault}" for way in sdk.streams for fault in REFUSALS)]
    raised = [f"{way}@{fault}" for way in sdk.streams for fault in cuts(upstream)]
    check_conversations(here, run(here, sdk, repeated + raised), repeated, raised)
    proves(name, upstream, "tools", "whole", "streamed", "recovers", "detects cuts")


@pytest.mark.rest
def test_a_kiro_that_ends_without_its_tail_has_reached_its_length(
    rig: Rigging, run: Callable[[Rig, Sdk, list[str]], Ran]
) -> None:
    here = rig("kiro", NOTE, change=by_model("kiro"), settings=SETTINGS)
    outcome = outcomes(run(here, SDKS["anthropic-python"], ["messages-stream@clean-end"]))
    assert "stop_reason='max_tokens'" in outcome["messages-stream@clean-end"].why
    outcome = outcomes(run(here, SDKS["openai-python"], ["chat-stream@clean-end"]))
    assert "LengthFinishReasonError" in outcome["chat-stream@clean-end"].error
