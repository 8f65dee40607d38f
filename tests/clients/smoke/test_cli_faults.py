"""Claude Code and Codex get over whatever goes wrong upstream, as they do without a gateway between."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clients import claude_code, codex
from clients.faults import CUTS, REFUSALS, SETTINGS, cuts, fail_always, fail_once
from clients.proof import Proves
from clients.rig import UPSTREAMS, Rig, run_rig
from fakes.agent import ChangeAnswer, Use

BASH = Use("Bash", {"command": "echo hello-from-tool > out.txt && cat out.txt", "description": "write a file"})
EXEC = Use("exec_command", {"cmd": "echo hello-from-tool > out.txt && cat out.txt"})
SIDE_BY_SIDE = 6
FOR_EVER = [fault for fault in CUTS if fault != "reset"]  # which is a dropped connection, seen from here
Try = Callable[[Rig], None]


def try_each(
    faults: list[str],
    directory: Path,
    upstream: str,
    use: Use,
    change: Callable[[str, str], ChangeAnswer],
    do: Try,
) -> None:
    """Each fault in a gateway of its own; they wait more than they work, so several run at a time."""

    def one(fault: str) -> str:
        own = directory / fault
        own.mkdir()
        with run_rig(own, upstream, use, change=change(upstream, fault), settings=SETTINGS) as rig:
            try:
                do(rig)
            except AssertionError as problem:
                return f"{fault}: {problem}"
            return ""

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        problems = [problem for problem in pool.map(one, faults) if problem]
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_claude_code_recovers(upstream: str, client: Callable[[str], Path], tmp_path: Path, proves: Proves) -> None:
    directory = client("claude-code")

    def check_recovery(rig: Rig) -> None:
        ran = claude_code.ask(rig, directory, "Write a file.")
        ended = claude_code.result(ran)
        assert ran.code == 0, ran
        assert ended["subtype"] == "success", ran
        assert ended["result"] == "Finished. The last tool said: hello-from-tool", ran
        check_done(rig)

    try_each([*REFUSALS, *cuts(upstream)], tmp_path, upstream, BASH, fail_once, check_recovery)
    proves("Claude Code", upstream, "recovers")


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_codex_recovers(upstream: str, client: Callable[[str], Path], tmp_path: Path, proves: Proves) -> None:
    directory = client("codex")

    def check_recovery(rig: Rig) -> None:
        ran = codex.ask(rig, directory, "Write a file.")
        assert ran.code == 0, ran
        assert codex.is_complete(ran), ran
        assert "hello-from-tool" in codex.list_messages(ran)[-1], ran
        check_done(rig)

    # An overload that OpenAI's own protocol names passes unchanged, and Codex takes it for final.
    faults = [fault for fault in cuts(upstream) if (upstream, fault) != ("responses", "overload")]
    try_each([*REFUSALS, *faults], tmp_path, upstream, EXEC, fail_once, check_recovery)
    proves("Codex", upstream, "recovers")


def check_done(rig: Rig) -> None:
    assert (rig.work / "out.txt").read_text() == "hello-from-tool\n"
    assert len(rig.upstream.calls) >= 3, "one that went wrong, two that went well"
    assert rig.agent.complaints == []


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_claude_code_never_takes_a_cut_reply_for_a_whole_one(
    upstream: str, client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    directory = client("claude-code")

    def check_failure(rig: Rig) -> None:
        ran = claude_code.ask(rig, directory, "Write a file.", CLAUDE_CODE_MAX_RETRIES="1")
        assert ran.code != 0, ran
        assert claude_code.result(ran)["is_error"] is True, ran

    try_each(FOR_EVER, tmp_path, upstream, BASH, fail_always, check_failure)
    proves("Claude Code", upstream, "detects cuts")


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_codex_never_takes_a_cut_reply_for_a_whole_one(
    upstream: str, client: Callable[[str], Path], tmp_path: Path, proves: Proves
) -> None:
    directory = client("codex")

    def check_failure(rig: Rig) -> None:
        ran = codex.ask(rig, directory, "Write a file.", config=codex.CUSTOM + "stream_max_retries = 1\n")
        assert ran.code != 0, ran
        assert not codex.is_complete(ran), ran

    try_each(FOR_EVER, tmp_path, upstream, EXEC, fail_always, check_failure)
    proves("Codex", upstream, "detects cuts")
