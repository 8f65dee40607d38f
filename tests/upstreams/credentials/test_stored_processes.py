"""Processes that renew one credential in the store: each refresh token is used once, and a kill loses no login."""

import os
import random
import signal
import statistics
import time

import pytest

from postgres import Postgres
from upstreams.credentials.renewal_rig import (
    LONGEST_S,
    REFRESH,
    Child,
    StrictKiro,
    is_alive,
    is_lost,
    push,
    renew_at_each_expiry,
)
from waiting import wait_until

KILLS = 100


def test_processes_renew_once_at_each_expiry(postgres: Postgres) -> None:
    renew_at_each_expiry(postgres.empty_database(), [()] * 2, 3)


@pytest.mark.rest
def test_four_processes_renew_once_at_each_of_twenty_expiries(store_url: str) -> None:
    renew_at_each_expiry(store_url, [()] * 4, 20)


@pytest.mark.rest
def test_a_killed_process_loses_no_login_but_between_reply_and_commit(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = in_window = 0
    with StrictKiro() as fake:
        push(store_url, fake)
        child = Child(store_url, fake.root, "fork")
        try:
            for _ in range(KILLS):
                first, counted = len(child.lines), fake.counts[REFRESH]
                child.send("fork")
                wait_until(lambda: len(child.lines) > first)  # noqa: B023
                fake.pid = int(child.lines[first].removeprefix("begins "))
                wait_until(lambda: any("stored" in line for line in child.lines[first:]))  # noqa: B023
                time.sleep(random.uniform(0, 3 * LONGEST_S))
                os.kill(fake.pid, signal.SIGKILL)
                wait_until(lambda: not is_alive(fake.pid))
                wait_until(lambda: fake.connections == 0)
                was_lost = is_lost(store_url, fake)
                lines = child.lines[first:]
                assert not [line for line in lines if line.startswith("refused")]
                answered = fake.counts[REFRESH] - counted
                stored = sum(line.startswith("stored") for line in lines)
                assert answered - stored in (0, 1)
                in_window += answered - stored
                if was_lost:
                    assert answered == stored + 1, "lost though no reply was on its way to the store"
                    lost += 1
                    push(store_url, fake)
        finally:
            child.close()
        assert fake.reused == 0
    windows = [int(line.split()[1]) / 1000 for line in child.lines if line.startswith("stored")]
    kind, median, longest = store_url.partition(":")[0], statistics.median(windows), max(windows)
    with capsys.disabled():
        print(f"\n{kind}: {KILLS} kills in {len(windows)} renewals, {in_window} of them between the issuer's reply")
        print(f"and the end of our commit. {lost} logins were lost there, none elsewhere.")
        print(f"From the reply to the end of the commit: median {median:.1f} ms, longest {longest:.1f} ms.")
