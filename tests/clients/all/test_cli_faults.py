"""Claude Code, Codex and Gemini CLI get over whatever goes wrong upstream, as they do without a gateway between."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from clients import claude_code, codex, gemini_cli
from clients.faults import CUTS, REFUSALS, cuts, fail_always, fail_once, try_each
from clients.proof import Proves
from clients.rig import UPSTREAMS, Ran, Rig
from fakes.agent import Use

COMMAND = "echo hello-from-tool > out.txt && cat out.txt"
PROMPT = "Write a file."


@dataclass(frozen=True)
class Cli:
    """A client with one tool: how it is run, how it shows that its work is done, and that it has failed."""

    table: str
    use: Use
    run: Callable[[Rig, Path, Path], Ran]  # rig, its directory, node
    run_impatiently: Callable[[Rig, Path, Path], Ran]  # with few retries of its own
    is_done: Callable[[Ran], bool]
    has_failed: Callable[[Ran], bool]


CLIS = {
    "Claude Code": Cli(
        "claude-code",
        Use("Bash", {"command": COMMAND, "description": "write a file"}),
        lambda rig, directory, _: claude_code.ask(rig, directory, PROMPT),
        lambda rig, directory, _: claude_code.ask(rig, directory, PROMPT, CLAUDE_CODE_MAX_RETRIES="1"),
        lambda ran: (
            claude_code.result(ran)["subtype"] == "success"
            and claude_code.result(ran)["result"] == "Finished. The last tool said: hello-from-tool"
        ),
        lambda ran: ran.code != 0 and claude_code.result(ran)["is_error"] is True,
    ),
    "Codex": Cli(
        "codex",
        Use("exec_command", {"cmd": COMMAND}),
        lambda rig, directory, _: codex.ask(rig, directory, PROMPT),
        lambda rig, directory, _: codex.ask(rig, directory, PROMPT, config=codex.CUSTOM + "stream_max_retries = 1\n"),
        lambda ran: codex.is_complete(ran) and "hello-from-tool" in codex.list_messages(ran)[-1],
        lambda ran: ran.code != 0 and not codex.is_complete(ran),
    ),
    "Gemini CLI": Cli(
        "gemini-cli",
        Use("run_shell_command", {"command": COMMAND, "description": "write a file"}),
        lambda rig, directory, node: gemini_cli.ask(rig, node, directory, PROMPT),
        lambda rig, directory, node: gemini_cli.ask(rig, node, directory, PROMPT),
        lambda ran: "hello-from-tool" in gemini_cli.text_of(ran),
        lambda ran: ran.code != 0 or gemini_cli.result(ran)["status"] == "error",
    ),
}
# An overload that OpenAI's own protocol names passes unchanged, and Codex takes it for final.
FINAL = ("Codex", "responses", "overload")
# A Kiro that ends between two frames has reached its length, which is no error for Gemini CLI.
LENGTH = ("Gemini CLI", "kiro", "clean-end")


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("name", CLIS)
def test_a_client_recovers(
    name: str, upstream: str, client: Callable[[str], Path], node: Path, tmp_path: Path, proves: Proves
) -> None:
    cli, directory = CLIS[name], client(CLIS[name].table)

    def check_recovery(rig: Rig) -> None:
        ran = cli.run(rig, directory, node)
        assert ran.code == 0, ran
        assert cli.is_done(ran), ran
        assert (rig.work / "out.txt").read_text() == "hello-from-tool\n"
        assert len(rig.upstream.calls) >= 3, "one that went wrong, two that went well"
        assert rig.agent.complaints == []

    faults = [fault for fault in (*REFUSALS, *cuts(upstream)) if (name, upstream, fault) != FINAL]
    try_each(faults, tmp_path, upstream, cli.use, fail_once, check_recovery)
    proves(name, upstream, "recovers")


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("name", CLIS)
def test_a_client_never_takes_a_cut_reply_for_a_whole_one(
    name: str, upstream: str, client: Callable[[str], Path], node: Path, tmp_path: Path, proves: Proves
) -> None:
    cli, directory = CLIS[name], client(CLIS[name].table)

    def check_failure(rig: Rig) -> None:
        ran = cli.run_impatiently(rig, directory, node)
        assert cli.has_failed(ran), ran

    # A reset is a dropped connection, seen from here.
    faults = [fault for fault in CUTS if fault != "reset" and (name, upstream, fault) != LENGTH]
    try_each(faults, tmp_path, upstream, cli.use, fail_always, check_failure)
    proves(name, upstream, "detects cuts")
