"""A full disk or an unavailable database affects no stream, is logged, and loses no row."""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.store import StoreError, open_store
from dragoman.store.usage_rows import UsageSpan
from postgres import Postgres
from usage.client_requests import NumberedRequest, mix_requests, send_all
from usage.full_disk import WAYS, Disk
from usage.gateway_process import GatewayProcess, start_upstreams
from usage.test_usage_exact import result_of
from waiting import wait_until

EVER = UsageSpan(0, 2**62)
HANGS_S = 10.0  # less than the timeout of the store


def ask(served: GatewayProcess, requests: list[NumberedRequest]) -> None:
    """Check that all requests succeed."""
    statuses = asyncio.run(send_all(served.port, requests, clients=8))
    for request in requests:
        refused = result_of(request) in ("bad_request", "rate_limited")
        assert (statuses[request.number] == 200) != refused


def go_through(served: GatewayProcess, break_it: Callable[[], None], repair_it: Callable[[], None]) -> None:
    ask(served, list(mix_requests(200)))
    break_it()
    ask(served, list(mix_requests(600, start=200)))
    wait_until(lambda: "usage cannot be stored" in served.log)
    ask(served, list(mix_requests(200, start=800)))
    repair_it()
    wait_until(lambda: "usage is stored again; 0 rows were dropped" in served.log)
    ask(served, list(mix_requests(200, start=1000)))


async def requests_stored(url: str) -> list[str]:
    store = await open_store(url)
    try:
        return sorted(row.request_id for row in await store.read_usage_rows(EVER))
    finally:
        await store.close()


def list_stored_on(disk: Disk, served: GatewayProcess, directory: Path) -> list[str]:
    copy = disk.copy_files(served.pid, directory / "copy")
    try:
        return asyncio.run(requests_stored(f"sqlite:///{copy}/dragoman.db"))
    except StoreError:  # copied in the middle of a write
        return []
    finally:
        shutil.rmtree(copy)


ALL = sorted(f"request-{number}" for number in range(1200))


@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_affects_no_stream_and_loses_no_row(way: str, tmp_path: Path) -> None:
    disk = Disk(way, tmp_path)
    url = f"sqlite:///{disk.directory}/dragoman.db"
    with start_upstreams(tmp_path) as rig, rig.serve(url, before=disk.before) as served:
        go_through(served, lambda: disk.fill(served.pid), lambda: disk.empty(served.pid))
        wait_until(lambda: list_stored_on(disk, served, tmp_path) == ALL)
        assert served.log.count("usage cannot be stored") == 1
        assert "Traceback" not in served.log


def test_a_database_that_is_unavailable_affects_no_stream_and_loses_no_row(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    with start_upstreams(tmp_path) as rig, rig.serve(url) as served:
        go_through(served, postgres.stop, postgres.start)
        wait_until(lambda: len(asyncio.run(requests_stored(url))) >= len(ALL))
        assert asyncio.run(requests_stored(url)) == ALL
        assert served.log.count("usage cannot be stored") == 1
        assert served.log.count("the client keys could not be read") == 1
        assert "sk-fake-p" not in served.log
        assert "Traceback" not in served.log


def test_a_gateway_starts_without_its_database_if_a_key_is_given(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    postgres.stop()
    with start_upstreams(tmp_path) as rig:
        try:
            served = rig.serve(url).__enter__()
            ask(served, list(mix_requests(100)))
        finally:
            postgres.start()
        with served:
            wait_until(lambda: len(asyncio.run(requests_stored(url))) == 100)
            assert "no store yet" in served.log


def test_a_database_that_hangs_affects_no_stream(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    with start_upstreams(tmp_path) as rig, rig.serve(url) as served:
        ask(served, list(mix_requests(100)))
        wait_until(lambda: len(asyncio.run(requests_stored(url))) == 100)
        frozen = postgres.freeze(url)
        began = time.monotonic()
        try:
            ask(served, list(mix_requests(60, start=100)))  # few, as a slow machine needs seconds for more
            assert time.monotonic() - began < HANGS_S
        finally:
            postgres.thaw(frozen)
        wait_until(lambda: len(asyncio.run(requests_stored(url))) == 160)
