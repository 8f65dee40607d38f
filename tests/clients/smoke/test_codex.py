"""Codex works through the gateway on upstreams of every protocol."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from clients.codex import BUILT_IN, SOCKET, ask, is_complete, list_messages
from clients.proof import Proves
from clients.rig import UPSTREAMS, Rig, on_every_upstream
from fakes.agent import AgentRequest, Use
from fakes.upstream import Answer

PATCH = "*** Begin Patch\n*** Add File: patched.txt\n+Grüße 👋 from apply_patch\n*** End Patch\n"
RUN = Use("exec_command", {"cmd": "echo hello-from-tool > out.txt && cat out.txt"})
SCRIPT = 'const r = await tools.exec_command({cmd: "echo hello-from-tool > out.txt && cat out.txt"});\ntext(r);\n'


@on_every_upstream("kiro")
def test_codex_runs_a_command_and_applies_a_freeform_patch(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    here = rig(upstream, RUN, Use("apply_patch", PATCH))
    ran = ask(here, client("codex"), "Write two files.")
    assert ran.code == 0, ran
    assert is_complete(ran), ran
    assert "Success. Updated the following files" in list_messages(ran)[-1], ran
    assert (tmp_path / "work" / "out.txt").read_text() == "hello-from-tool\n"
    assert (tmp_path / "work" / "patched.txt").read_text() == "Grüße 👋 from apply_patch\n"
    assert here.agent.complaints == []
    assert "hello-from-tool" in here.agent.requests[-1].results[0]
    proves("Codex", upstream, "tools", "streamed", "freeform")


def call_as_function(answer: Answer, request: AgentRequest, before: int) -> Answer:
    """Turn the freeform call of a Chat stream into a call of a function with one string, as many servers write it."""
    events: list[bytes] = []
    open_call = False
    for event in answer.body.split(b"\n\n"):
        chunk = None if b"[DONE]" in event or not event else msgspec.json.decode(event.removeprefix(b"data: "))
        for choice in chunk["choices"] if chunk else ():
            for piece in choice["delta"].get("tool_calls", ()):
                if "custom" not in piece:
                    continue
                custom = piece.pop("custom")
                text = msgspec.json.encode(custom["input"]).decode()[1:-1]
                piece["function"] = {"arguments": text}
                if "name" in custom:
                    piece |= {"type": "function", "function": {"name": custom["name"], "arguments": '{"input":"'}}
                    open_call = True
            if open_call and choice["finish_reason"]:
                choice["delta"] = {"tool_calls": [{"index": 0, "function": {"arguments": '"}'}}]}
        events.append(b"data: " + msgspec.json.encode(chunk) if chunk else event)
    return replace(answer, body=b"\n\n".join(events))


@pytest.mark.rest
def test_codex_applies_a_freeform_patch_that_a_chat_upstream_calls_as_a_function(
    rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path
) -> None:
    here = rig("chat", Use("apply_patch", PATCH), change=call_as_function)
    ran = ask(here, client("codex"), "Write a file.")
    assert ran.code == 0, ran
    assert is_complete(ran), ran
    assert (tmp_path / "work" / "patched.txt").read_text() == "Grüße 👋 from apply_patch\n"
    assert here.agent.complaints == []


@pytest.mark.rest
@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_codex_uses_tools_that_came_as_an_input_item(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    here = rig(upstream, Use("exec", SCRIPT))
    ran = ask(here, client("codex"), "Write a file.", model="gpt-5.6-sol")
    assert ran.code == 0, ran
    assert is_complete(ran), ran
    assert "hello-from-tool" in list_messages(ran)[-1], ran
    assert (tmp_path / "work" / "out.txt").read_text() == "hello-from-tool\n"
    assert here.agent.complaints == []
    proves("Codex", upstream, "late tools")


@pytest.mark.parametrize(
    "config", [pytest.param(SOCKET, id="configured", marks=pytest.mark.rest), pytest.param(BUILT_IN, id="built in")]
)
@on_every_upstream("messages")
def test_codex_works_over_a_websocket(
    upstream: str, config: str, rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    here = rig(upstream, RUN)
    ran = ask(here, client("codex"), "Write a file.", config=config)
    assert ran.code == 0, ran
    assert is_complete(ran), ran
    assert (tmp_path / "work" / "out.txt").read_text() == "hello-from-tool\n"
    assert ("GET", "/v1/responses") in here.door.requests
    assert 101 in here.door.answered
    assert ("POST", "/v1/responses") not in here.door.requests
    assert here.agent.complaints == []
    proves("Codex", upstream, "WebSocket")
