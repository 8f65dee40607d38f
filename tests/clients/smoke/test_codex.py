"""Codex works through the gateway on upstreams of every protocol."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.codex import BUILT_IN, ask, completed, said
from clients.proof import Proves
from clients.rig import UPSTREAMS, Rig
from fakes.agent import Use

PATCH = "*** Begin Patch\n*** Add File: patched.txt\n+Grüße 👋 from apply_patch\n*** End Patch\n"
RUN = Use("exec_command", {"cmd": "echo hello-from-tool > out.txt && cat out.txt"})
SCRIPT = 'const r = await tools.exec_command({cmd: "echo hello-from-tool > out.txt && cat out.txt"});\ntext(r);\n'


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_codex_runs_a_command_and_applies_a_freeform_patch(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    here = rig(upstream, RUN, Use("apply_patch", PATCH))
    ran = ask(here, client("codex"), "Write two files.")
    assert ran.code == 0, ran
    assert completed(ran), ran
    assert "Success. Updated the following files" in said(ran)[-1], ran
    assert (tmp_path / "work" / "out.txt").read_text() == "hello-from-tool\n"
    assert (tmp_path / "work" / "patched.txt").read_text() == "Grüße 👋 from apply_patch\n"
    assert here.agent.complaints == []
    assert "hello-from-tool" in here.agent.heard[-1].results[0]
    proves("Codex", upstream, "tools", "streamed", "freeform")


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_codex_uses_tools_that_came_as_an_input_item(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    here = rig(upstream, Use("exec", SCRIPT))
    ran = ask(here, client("codex"), "Write a file.", model="gpt-5.6-sol")
    assert ran.code == 0, ran
    assert completed(ran), ran
    assert "hello-from-tool" in said(ran)[-1], ran
    assert (tmp_path / "work" / "out.txt").read_text() == "hello-from-tool\n"
    assert here.agent.complaints == []
    proves("Codex", upstream, "late tools")


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_codex_falls_back_from_its_websocket_at_once(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    here = rig(upstream, RUN)
    ran = ask(here, client("codex"), "Write a file.", config=BUILT_IN)
    assert ran.code == 0, ran
    assert completed(ran), ran
    assert (tmp_path / "work" / "out.txt").read_text() == "hello-from-tool\n"
    assert here.door.asked[0] == ("GET", "/v1/responses")
    assert here.door.answered[0] == 426
    assert [method for method, _ in here.door.asked].count("GET") == 1, here.door.asked
    assert here.agent.complaints == []
    proves("Codex", upstream, "fallback")
