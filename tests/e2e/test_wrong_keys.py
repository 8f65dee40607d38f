"""Wrong keys over real sockets: each costs time, a right one from the same address does not."""

import logging
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dragoman.http.rejections import FREE_FAILURES, INTERVAL_S, MAX_DELAY_S
from gateway import KEY, Running, running

ECHO = '[providers.echo]\nkind = "echo"\n'


def attempt(connection: HTTPConnection, key: str) -> int:
    connection.request("GET", "/v1/models", headers={"x-api-key": key})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def guess(gateway: Running, times: int) -> list[int]:
    connection = HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    try:
        return [attempt(connection, f"dgm_fake-wrong-{number}") for number in range(times)]
    finally:
        connection.close()


def test_wrong_keys_are_slowed_down_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(ECHO, tmp_path) as gateway:
        began = time.monotonic()
        assert guess(gateway, FREE_FAILURES + 10) == [401] * (FREE_FAILURES + 10)
        assert time.monotonic() - began >= 10 * INTERVAL_S * 0.9
    response = [record.getMessage() for record in caplog.records if "valid API key" in record.getMessage()]
    assert len(response) == 2, response
    assert f"rejected {FREE_FAILURES + 9} more requests" in response[1]


def test_a_right_key_from_the_same_address_is_served_at_once(tmp_path: Path) -> None:
    with running(ECHO, tmp_path) as gateway:
        crowd = [threading.Thread(target=guess, args=(gateway, 2)) for _ in range(20)]
        for guesser in crowd:
            guesser.start()
        time.sleep(0.5)  # by now each answer to the crowd waits
        took = []
        for _ in range(10):
            connection = HTTPConnection("127.0.0.1", gateway.port, timeout=60)
            began = time.monotonic()
            assert attempt(connection, KEY) == 200
            took.append(time.monotonic() - began)
            connection.close()
        assert sorted(took)[5] < MAX_DELAY_S / 2, took
        for guesser in crowd:
            guesser.join()
