"""Wrong keys over real sockets: each costs time, a right one from the same address does not."""

import asyncio
import logging
import select
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from asking import send
from dragoman.server.rejections import FREE_FAILURES, INTERVAL_S, MAX_DELAY_S
from dragoman.store import open_store
from dragoman.tenancy.keys import Keyring
from gateway import running
from raw_http import dial, request_bytes
from waiting import wait_until

SLOWED = 3


def test_wrong_keys_are_slowed_down_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running("", tmp_path) as gateway:
        began = time.monotonic()
        for number in range(FREE_FAILURES + SLOWED):
            assert send(gateway, "GET", "/v1/models", key=f"dgm_fake-wrong-{number}").status == 401
        assert time.monotonic() - began >= SLOWED * INTERVAL_S * 0.9
    response = [record.getMessage() for record in caplog.records if "valid API key" in record.getMessage()]
    assert len(response) == 2, response
    assert f"rejected {FREE_FAILURES + SLOWED - 1} more requests" in response[1]


def test_a_right_key_from_the_same_address_is_served_while_wrong_ones_wait(tmp_path: Path) -> None:
    """The last of so many wrong keys waits for four seconds."""
    with running("", tmp_path) as gateway, ExitStack() as stack:
        crowd = [stack.enter_context(dial(gateway.port)) for _ in range(FREE_FAILURES + 20)]
        for number, sock in enumerate(crowd):
            sock.sendall(request_bytes("/v1/models", b"", method="GET", key=f"dgm_fake-wrong-{number}"))
        wait_until(lambda: len(select.select(crowd, [], [], 0)[0]) >= FREE_FAILURES)
        assert send(gateway, "GET", "/v1/models").status == 200
        assert len(select.select(crowd, [], [], 0)[0]) < len(crowd)


def test_a_key_that_another_process_has_just_made_is_right(tmp_path: Path) -> None:
    async def create() -> str:
        async with await open_store(f"sqlite:///{tmp_path}/store.db") as store:
            return (await Keyring(store).create("phone")).secret.reveal()

    with running("", tmp_path, stored=("laptop",)) as gateway:
        assert send(gateway, "GET", "/v1/models", key=asyncio.run(create())).status == 200


@pytest.mark.alone
def test_nothing_waits_for_a_client_with_a_wrong_key_that_has_left(tmp_path: Path) -> None:
    with running("", tmp_path) as gateway, ExitStack() as stack:
        crowd = [stack.enter_context(dial(gateway.port)) for _ in range(FREE_FAILURES + 30)]
        for number, sock in enumerate(crowd):
            sock.sendall(request_bytes("/v1/messages", b"{}", key=f"dgm_fake-wrong-{number}"))
        requests = gateway.app.server._service.requests
        wait_until(lambda: len(select.select(crowd, [], [], 0)[0]) >= FREE_FAILURES)
        began = time.monotonic()
        for sock in crowd:
            sock.close()
        wait_until(lambda: not requests)
        assert time.monotonic() - began < MAX_DELAY_S / 2
