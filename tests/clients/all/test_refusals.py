"""What real clients do after an error: they retry temporary errors, and do not retry permanent ones."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clients import proof
from clients.refusals import ASKERS, SDKS, SETTINGS, TABLES, TROUBLES, requests_made
from clients.rig import run_rig

SIDE_BY_SIDE = 5
# Two clients read no `x-should-retry`: at most so many requests.
IN_VAIN = {
    ("Codex", "401"): 6,
    ("Codex", "403"): 6,
    ("Codex", "502"): 30,
    ("opencode", "402"): 6,
    ("opencode", "502"): 6,
}


@pytest.mark.parametrize("name", ASKERS)
def test_a_client_retries_only_where_that_helps(
    name: str,
    client: Callable[[str], Path],
    node: Path,
    tmp_path: Path,
    reactions: proof.Reactions,
    report: Callable[[str], None],
) -> None:
    asker = ASKERS[name]
    directory = client(TABLES[name]) if name in TABLES else tmp_path

    def react(label: str) -> tuple[bool, int]:
        trouble, own = TROUBLES[label], tmp_path / label.replace(" ", "-")
        own.mkdir()
        change = trouble.change(asker.upstream)
        with run_rig(own, asker.upstream, asker.use, change=change, settings=SETTINGS) as rig:
            done = asker.ask(rig, directory, node, trouble.key)
            return done, requests_made(rig) - done  # the last one contains the result of the tool

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        seen = dict(zip(TROUBLES, pool.map(react, TROUBLES), strict=True))
    summary = {label: f"{requests} {'✓' if done else '✗'}" for label, (done, requests) in seen.items()}
    report(f"{name}: " + ", ".join(f"{label}: {cell}" for label, cell in summary.items()))
    reactions.update({(name, label): cell for label, cell in summary.items()})
    for label, trouble in TROUBLES.items():
        done, requests = seen[label]
        gives_up = not trouble.passes or (label == "overload in mid-stream" and name in SDKS)
        assert done is not gives_up, (label, summary[label])
        most = IN_VAIN.get((name, label), 1) if gives_up else 1 if label == "60 s of pings" else 2
        assert requests <= most, (label, summary[label])
