"""The Open Responses compliance suite over upstreams of every protocol.

`OPEN_RESPONSES` names a checkout of the suite in which `npm install --no-save tsx zod@3` was run.
"""

import os
import subprocess
from pathlib import Path

import pytest

from fakes.kiro import FakeKiro, make_framed, tail, tool, words
from fakes.upstream import Answer, ReceivedRequest
from scripting.replies import ScriptedReply, Stop, Text, ToolCall
from state.state_rig import ENCODERS, StateRig, state_rigged

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
    fake = rig.fakes[upstream]
    if isinstance(fake, FakeKiro):
        fake.intercept = answer_as_kiro
        return
    encoder = ENCODERS[upstream]

    def answer(request: ReceivedRequest) -> Answer:
        scripted = ScriptedReply((CALL,), Stop.TOOL) if request.json.get("tools") else ScriptedReply((Text(TEXT),))
        if request.json.get("stream"):
            return Answer(encoder.encode_stream(scripted))
        return Answer(encoder.encode_whole(scripted), content_type="application/json")

    fake.choose = answer


def answer_as_kiro(request: ReceivedRequest) -> Answer | None:
    if b"conversationState" not in request.body:
        return None
    if b"get_weather" in request.body:
        called = tool(CALL.id, CALL.name, input=CALL.arguments) + tool(CALL.id, CALL.name, stop=True)
        return make_framed(called, tail("TOOL_USE"))
    return make_framed(words(TEXT), tail())
