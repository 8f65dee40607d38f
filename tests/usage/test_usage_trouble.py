"""A disk that is full, a database that is away: streams notice nothing, the log tells, and no row is lost."""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.store import open_store
from dragoman.store.usage_rows import Span
from postgres import Postgres
from usage.asking import Question, ask_all, mixed
from usage.full_disk import WAYS, Disk
from usage.serving import Served, rigged, wait_for
from usage.test_usage_exact import result_of

EVER = Span(0, 2**62)
HANGS_S = 10.0  # less than the store itself is waited for


def ask(served: Served, questions: list[Question]) -> None:
    """All are answered as if nothing were wrong."""
    statuses = asyncio.run(ask_all(served.port, questions, clients=8))
    for question in questions:
        refused = result_of(question) in ("bad_request", "rate_limited")
        assert (statuses[question.number] == 200) != refused


def go_through(served: Served, break_it: Callable[[], None], mend_it: Callable[[], None]) -> None:
    ask(served, list(mixed(200)))
    break_it()
    ask(served, list(mixed(600, start=200)))
    wait_for(lambda: "usage cannot be stored" in served.log)
    ask(served, list(mixed(200, start=800)))
    mend_it()
    wait_for(lambda: "usage is stored again; 0 rows were dropped" in served.log)
    ask(served, list(mixed(200, start=1000)))


async def requests_stored(url: str) -> list[str]:
    store = await open_store(url)
    try:
        return sorted(row.request_id for row in await store.usage_rows(EVER))
    finally:
        await store.close()


def stored_on(disk: Disk, served: Served, directory: Path) -> list[str]:
    copy = disk.copied(served.pid, directory / "copy")
    found = asyncio.run(requests_stored(f"sqlite:///{copy}/dragoman.db"))
    shutil.rmtree(copy)
    return found


ALL = sorted(f"question-{number}" for number in range(1200))


@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_harms_no_stream_and_costs_no_row(way: str, tmp_path: Path) -> None:
    disk = Disk(way, tmp_path)
    url = f"sqlite:///{disk.directory}/dragoman.db"
    with rigged(tmp_path) as rig, rig.serve(url, before=disk.before) as served:
        go_through(served, lambda: disk.fill(served.pid), lambda: disk.empty(served.pid))
        wait_for(lambda: stored_on(disk, served, tmp_path) == ALL)
        assert served.log.count("usage cannot be stored") == 1
        assert "Traceback" not in served.log


def test_a_database_that_is_away_harms_no_stream_and_costs_no_row(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    with rigged(tmp_path) as rig, rig.serve(url) as served:
        go_through(served, postgres.stop, postgres.start)
        wait_for(lambda: len(asyncio.run(requests_stored(url))) >= len(ALL))
        assert asyncio.run(requests_stored(url)) == ALL
        assert served.log.count("usage cannot be stored") == 1
        assert served.log.count("the client keys could not be read") == 1
        assert "sk-fake-p" not in served.log
        assert "Traceback" not in served.log


def test_a_gateway_starts_without_its_database_if_a_key_is_given(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    postgres.stop()
    with rigged(tmp_path) as rig:
        try:
            served = rig.serve(url).__enter__()
            ask(served, list(mixed(100)))
        finally:
            postgres.start()
        with served:
            wait_for(lambda: len(asyncio.run(requests_stored(url))) == 100)
            assert "no store yet" in served.log


def test_a_database_that_hangs_harms_no_stream(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    with rigged(tmp_path) as rig, rig.serve(url) as served:
        ask(served, list(mixed(100)))
        wait_for(lambda: len(asyncio.run(requests_stored(url))) == 100)
        frozen = postgres.freeze(url)
        began = time.monotonic()
        try:
            ask(served, list(mixed(300, start=100)))
            assert time.monotonic() - began < HANGS_S
        finally:
            postgres.thaw(frozen)
        wait_for(lambda: len(asyncio.run(requests_stored(url))) == 400)
