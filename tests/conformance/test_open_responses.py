"""The Open Responses compliance suite over upstreams of every protocol.

`OPEN_RESPONSES` names a checkout of the suite in which `npm install --no-save tsx zod@3` was run.
"""

import os
import subprocess
from pathlib import Path

import pytest

from fakes.upstream import Answer, ReceivedRequest
from scripting import write_reply
from scripting.replies import ToolCall
from state.state_rig import StateRig, state_rigged

MODELS = {"chat": "chat/m", "messages": "messages/m", "openai": "openai/m", "kiro": "kiro/claude-sonnet-4.5"}
CALL = ToolCall("call_1", "get_weather", '{"location": "San Francisco"}')
TEXT = "Hello there, my friend. One, two, three, four, five."


@pytest.mark.parametrize("upstream", MODELS)
def test_every_test_of_the_suite_passes(upstream: str, tmp_path: Path) -> None:
    suite = Path(os.environ["OPEN_RESPONSES"])
    with state_rigged(tmp_path, openai="keeps_responses = false\n") as rig:
        prepare(rig, upstream)
        command = ["node", "node_modules/tsx/dist/cli.mjs", "bin/compliance-test.ts"]
        place = ["-u", f"{rig.gateway.url}/v1", "-k", rig.gateway.keys["alice"], "-m", MODELS[upstream]]
        ran = subprocess.run([*command, *place], cwd=suite, capture_output=True, text=True, timeout=300)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def prepare(rig: StateRig, upstream: str) -> None:
    """Have the upstream call the tool that it is offered, else reply with text."""
    protocol = "responses" if upstream == "openai" else upstream

    def answer(request: ReceivedRequest) -> Answer | None:
        if request.method != "POST" or (upstream == "kiro" and b"conversationState" not in request.body):
            return None
        offers_tool = b"get_weather" in request.body if upstream == "kiro" else bool(request.json.get("tools"))
        return write_reply(protocol, [CALL] if offers_tool else TEXT, stream=bool(request.json.get("stream")))

    rig.fakes[upstream].intercept = answer
