"""Directories for Unix sockets: who can enter them, and how long their paths may be."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from dragoman.net.socket_directory import MAX_SOCKET_PATH, make_socket_directory


def test_only_this_user_can_enter_the_directory() -> None:
    directory = Path(make_socket_directory("meter"))
    try:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    finally:
        directory.rmdir()


def test_a_long_place_for_temporary_files_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("d" * MAX_SOCKET_PATH)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    directory = make_socket_directory("meter")
    try:
        assert len(os.fsencode(f"{directory}/meter")) <= MAX_SOCKET_PATH
        assert list(long.iterdir()) == []
    finally:
        Path(directory).rmdir()
