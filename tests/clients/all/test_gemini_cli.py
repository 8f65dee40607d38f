"""Gemini CLI gets over whatever goes wrong upstream, and never takes a cut reply for a whole one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.faults import REFUSALS, cuts, fail_always, fail_once
from clients.gemini_cli import RUN, ask, check_recovery, result
from clients.proof import Proves
from clients.rig import UPSTREAMS, Rig
from clients.smoke.test_cli_faults import try_each


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_gemini_cli_recovers(
    upstream: str, client: Callable[[str], Path], node: Path, tmp_path: Path, proves: Proves
) -> None:
    directory = client("gemini-cli")
    faults = [*REFUSALS, *cuts(upstream)]
    try_each(faults, tmp_path, upstream, RUN, fail_once, lambda rig: check_recovery(rig, node, directory))
    proves("Gemini CLI", upstream, "recovers")


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_gemini_cli_never_takes_a_cut_reply_for_a_whole_one(
    upstream: str, client: Callable[[str], Path], node: Path, tmp_path: Path, proves: Proves
) -> None:
    directory = client("gemini-cli")

    def check_failure(rig: Rig) -> None:
        ran = ask(rig, node, directory, "Say hello.")
        assert ran.code != 0 or result(ran)["status"] == "error", ran

    try_each(
        [fault for fault in cuts(upstream) if fault != "reset"], tmp_path, upstream, RUN, fail_always, check_failure
    )
    proves("Gemini CLI", upstream, "detects cuts")
