"""The log shows the path of a refused request without the secrets in it, and not all of a long one."""

import logging
from pathlib import Path

import pytest

from asking import send
from gateway import running
from server.api.rig import ECHO
from waiting import wait_until

SECRET = "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5"


def test_refused_paths_are_logged_short_and_without_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dragoman")
    with running(ECHO, tmp_path) as gateway:
        assert send(gateway, "GET", f"/unknown/{SECRET}/" + "a" * 500).status == 404
        assert send(gateway, "GET", f"/v1/key={SECRET}", key=None).status == 401
        wait_until(lambda: len([line for line in caplog.messages if "/unknown/" in line or "/key=" in line]) == 2)
    lines = [line for line in caplog.messages if "/unknown/" in line or "/key=" in line]
    assert lines[0].startswith("/unknown/***/aaa")
    assert lines[0].endswith("a… refused: not_found")
    assert len(lines[0]) == 100 + len(" refused: not_found")
    assert lines[1].startswith("/key=***: rejected a request")
    assert SECRET not in caplog.text
