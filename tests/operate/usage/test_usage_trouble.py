"""A full disk or an unavailable database affects no stream, is logged, and loses no row."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from dragoman.store import StoreError
from operate.usage.client_requests import NumberedRequest, mix_requests, send_all
from operate.usage.full_disk import WAYS, Disk
from operate.usage.gateway_process import list_stored, name_requests, start_upstreams
from operate.usage.test_usage_exact import result_of
from postgres import Postgres
from shell import Served
from waiting import wait_until


def ask(served: Served, requests: list[NumberedRequest]) -> None:
    """Check that all requests succeed."""
    statuses = asyncio.run(send_all(served.port, requests, clients=8))
    for request in requests:
        refused = result_of(request) in ("bad_request", "rate_limited")
        assert (statuses[request.number] == 200) != refused


def go_through(served: Served, break_it: Callable[[], None], repair_it: Callable[[], None]) -> None:
    ask(served, list(mix_requests(100)))
    break_it()
    ask(served, list(mix_requests(200, start=100)))
    wait_until(lambda: "usage cannot be stored" in served.err)
    ask(served, list(mix_requests(50, start=300)))
    repair_it()
    wait_until(lambda: "usage is stored again; 0 rows were dropped" in served.err)
    ask(served, list(mix_requests(50, start=350)))


def list_stored_on(disk: Disk, served: Served, directory: Path) -> list[str]:
    copy = disk.copy_files(served.pid, directory / "copy")
    try:
        return list_stored(f"sqlite:///{copy}/dragoman.db")
    except StoreError:  # copied in the middle of a write
        return []
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    "way", ["limit", *(pytest.param(way, marks=pytest.mark.rest) for way in WAYS if way != "limit")]
)
def test_a_full_disk_affects_no_stream_and_loses_no_row(way: str, tmp_path: Path) -> None:
    disk = Disk(way, tmp_path)
    url = f"sqlite:///{disk.directory}/dragoman.db"
    with start_upstreams(tmp_path) as rig, rig.serve(url, before=disk.before) as served:
        go_through(served, lambda: disk.fill(served.pid), lambda: disk.empty(served.pid))
        wait_until(lambda: list_stored_on(disk, served, tmp_path) == name_requests(400))
        assert served.err.count("usage cannot be stored") == 1
        assert "Traceback" not in served.err


@pytest.mark.rest
def test_a_database_that_is_unavailable_affects_no_stream_and_loses_no_row(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    with start_upstreams(tmp_path) as rig, rig.serve(url) as served:

        def start_later() -> None:
            wait_until(lambda: "the client keys could not be read" in served.err)  # they are read every few seconds
            postgres.start()

        go_through(served, postgres.stop, start_later)
        wait_until(lambda: len(list_stored(url)) >= 400)
        assert list_stored(url) == name_requests(400)
        assert served.err.count("usage cannot be stored") == 1
        assert served.err.count("the client keys could not be read") == 1
        assert "sk-fake-p" not in served.err
        assert "Traceback" not in served.err


@pytest.mark.rest
def test_a_gateway_starts_without_its_database_if_a_key_is_given(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    with start_upstreams(tmp_path) as rig, ExitStack() as stack:
        postgres.stop()
        try:
            served = stack.enter_context(rig.serve(url))
            ask(served, list(mix_requests(100)))
        finally:
            postgres.start()
        wait_until(lambda: len(list_stored(url)) == 100)
        assert "no store yet" in served.err


@pytest.mark.rest
def test_a_database_that_hangs_affects_no_stream(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    with start_upstreams(tmp_path) as rig, rig.serve(url) as served:
        ask(served, list(mix_requests(100)))
        wait_until(lambda: len(list_stored(url)) == 100)
        frozen = postgres.freeze(url)
        try:
            ask(served, list(mix_requests(24, start=100)))
            assert "usage cannot be stored" not in served.err, "the responses waited until the store gave up"
        finally:
            postgres.thaw(frozen)
        wait_until(lambda: len(list_stored(url)) == 124)
