"""What real clients do when the gateway refuses them: they stop where that is for good, and wait where it is not."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from asking import ask, send
from clients.refusals import ASKERS, SETTINGS, TABLES, requests_made
from clients.rig import Rig, run_rig
from fakes.upstream import Answer, Gate
from waiting import wait_until

pytestmark = pytest.mark.rest


@dataclass(frozen=True)
class Refusal:
    method: str  # by which the key of the client is changed
    change: dict[str, object] | None
    says: str  # what of our text the client shows


REFUSALS = {
    "the limit is spent": Refusal("PATCH", {"limits": {"tokens_per_month": 0}}, "tokens_per_month = 0"),
    "the model is not allowed": Refusal("PATCH", {"models": ["no-such-model"]}, "not allowed for this key"),
    "the key is revoked": Refusal("DELETE", None, "API key is not valid"),
}
MOST = {  # requests; of others one
    ("Claude Code", "the model is not allowed"): 2,
    ("Codex", "the key is revoked"): 6,
}
OWN_WORDS = {  # what a client shows in place of our text
    ("Claude Code", "the model is not allowed"): "There's an issue with the selected model",
    ("Codex", "the limit is spent"): "Quota exceeded. Check your plan and billing details.",
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("name", ASKERS)
def test_a_client_does_not_repeat_what_is_refused_for_good(
    name: str,
    refusal: str,
    client: Callable[[str], Path],
    node: Path,
    tmp_path: Path,
    report: Callable[[str], None],
) -> None:
    asker, how = ASKERS[name], REFUSALS[refusal]
    directory = client(TABLES[name]) if name in TABLES else tmp_path
    with run_rig(tmp_path, asker.upstream, asker.use, settings=SETTINGS) as rig:
        key = rig.gateway.keys["another"]
        assert send(rig.gateway, how.method, "/api/v1/keys/another", how.change).status == 200
        assert not asker.ask(rig, directory, node, key)
        made = requests_made(rig)
    report(f"{name}, {refusal}: {made}")
    assert 1 <= made <= MOST.get((name, refusal), 1)
    ran = rig.ran[-1]
    assert OWN_WORDS.get((name, refusal), how.says) in ran.out + ran.err, ran


@contextmanager
def hold_slot(rig: Rig, upstream: str, key: str) -> Iterator[None]:
    """Take the only slot of a key by a request that the upstream does not answer until the end."""
    ended = threading.Event()
    held = Answer(gate=Gate(ended, at=-1))
    rig.upstream.intercept = lambda request: held if b"keep the slot" in request.body else None
    thread = threading.Thread(target=ask, args=(rig.gateway, upstream, "up/m", "keep the slot"), kwargs={"key": key})
    thread.start()
    try:
        wait_until(lambda: rig.upstream.calls)
        yield
    finally:
        ended.set()
        thread.join()


def count_limited(rig: Rig) -> int:
    return sum(outcome.outcome == "limited" for outcome in rig.gateway.outcomes)


@pytest.mark.parametrize("name", ASKERS)
def test_a_client_waits_for_a_limit_that_will_have_room(
    name: str, client: Callable[[str], Path], node: Path, tmp_path: Path, report: Callable[[str], None]
) -> None:
    asker = ASKERS[name]
    directory = client(TABLES[name]) if name in TABLES else tmp_path
    done = []
    with run_rig(tmp_path, asker.upstream, asker.use, settings=SETTINGS) as rig:
        key = rig.gateway.keys["another"]
        assert send(rig.gateway, "PATCH", "/api/v1/keys/another", {"limits": {"concurrent": 1}}).status == 200
        run = threading.Thread(target=lambda: done.append(asker.ask(rig, directory, node, key)))
        with hold_slot(rig, asker.upstream, key):
            run.start()
            wait_until(lambda: count_limited(rig) or done)
        run.join()
        refused = count_limited(rig)
    report(f"{name}, no slot is free: {refused} of {requests_made(rig)} refused")
    assert done == [True], rig.ran[-1]
    assert 1 <= refused <= 3
