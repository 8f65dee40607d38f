"""What real clients do when a limit of the gateway refuses them for good: they stop, after one request or few."""

from collections.abc import Callable
from pathlib import Path

import pytest

from asking import send
from clients.refusals import ASKERS, SETTINGS, TABLES, requests_made
from clients.rig import run_rig

pytestmark = pytest.mark.rest
REFUSALS = {
    "the limit is spent": {"limits": {"tokens_per_month": 0}},
    "the model is not allowed": {"models": ["no-such-model"]},
}
MOST = {("Claude Code", "the model is not allowed"): 2}  # requests; of others one


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("name", ASKERS)
def test_a_client_does_not_repeat_what_a_limit_refuses(
    name: str,
    refusal: str,
    client: Callable[[str], Path],
    node: Path,
    tmp_path: Path,
    report: Callable[[str], None],
) -> None:
    asker = ASKERS[name]
    directory = client(TABLES[name]) if name in TABLES else tmp_path
    with run_rig(tmp_path, asker.upstream, asker.use, settings=SETTINGS) as rig:
        key = rig.gateway.keys["another"]
        assert send(rig.gateway, "PATCH", "/api/v1/keys/another", REFUSALS[refusal]).status == 200
        assert not asker.ask(rig, directory, node, key)
        made = requests_made(rig)
    report(f"{name}, {refusal}: {made}")
    assert 1 <= made <= MOST.get((name, refusal), 1)
