"""The directory of captures keeps what its bounds allow, and finds captures by their ids."""

import os
import stat
import time
from pathlib import Path

import pytest

from dragoman.config.settings import Debug
from dragoman.flow.capture import directory as module
from dragoman.flow.capture.directory import (
    Bounds,
    CaptureDirectory,
    CaptureNotFound,
    capture_directory,
    load_capture,
)
from dragoman.flow.capture.format import Capture, ClientRequest, utc_text

NOON = 1_800_000_000.0


def make_capture(request_id: str, second: int = 0) -> Capture:
    return Capture(
        request_id=request_id,
        time=utc_text(NOON + second),
        client_protocol="chat",
        outcome="ok",
        request=ClientRequest("POST", "/v1/chat/completions", "", (), b"{}"),
    )


def open_directory(path: Path, keep: int = 100, max_bytes: int = 1 << 20, max_age_s: float = 3600) -> CaptureDirectory:
    return CaptureDirectory(path / "captures", Bounds(keep, max_bytes, max_age_s))


def write(directory: CaptureDirectory, *ids: str) -> list[Path]:
    return [directory.write(make_capture(name, second)) for second, name in enumerate(ids)]


def kept(directory: CaptureDirectory) -> list[str]:
    return [capture.summary.request_id for capture in directory.list_captures()]


def test_a_capture_is_written_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    [file] = write(directory, "req_1")
    assert load_capture(file) == make_capture("req_1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert [path.name for path in directory.path.iterdir()] == [file.name]


def test_an_id_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    [file] = write(open_directory(tmp_path), "../../etc/passwd")
    assert file.parent == tmp_path / "captures"
    assert "/" not in file.name


def test_captures_are_listed_oldest_first_without_files_that_cannot_be_read(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    write(directory, "one", "two")
    (directory.path / "0.capture").write_bytes(b"not a capture")
    assert kept(directory) == ["one", "two"]
    assert kept(open_directory(tmp_path / "missing")) == []


def test_a_capture_is_found_by_its_id_or_a_part_of_it(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    first, second = write(directory, "req_abc", "req_axy")
    assert directory.find("last") == second
    assert directory.find("req_abc") == directory.find("req_ab") == directory.find("bc") == first
    with pytest.raises(CaptureNotFound, match="2 captures match 'req_a'"):
        directory.find("req_a")
    with pytest.raises(CaptureNotFound, match="There is no capture 'other'"):
        directory.find("other")
    with pytest.raises(CaptureNotFound, match="no captures in"):
        open_directory(tmp_path / "missing").find("last")


def test_of_several_captures_with_one_id_the_newest_is_found(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    _, second = write(directory, "same", "same")
    assert directory.find("same") == second


def test_the_oldest_captures_are_removed_beyond_the_bounds(tmp_path: Path) -> None:
    few = open_directory(tmp_path / "few", keep=2)
    write(few, "one", "two", "three")
    assert kept(few) == ["two", "three"]
    small = open_directory(tmp_path / "small", max_bytes=1)
    write(small, "one")
    assert kept(small) == []


def test_old_captures_and_forgotten_partial_files_are_removed(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, max_age_s=60)
    old, _ = write(directory, "old", "new")
    part = directory.path / "x.part"
    part.write_bytes(b"half")
    for file in (old, part):
        os.utime(file, (time.time() - 7200,) * 2)
    open_directory(tmp_path, max_age_s=60).prune()
    assert kept(directory) == ["new"]
    assert not part.exists()


def test_captures_of_other_processes_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESCAN_S", 3600.0)
    mine, theirs = open_directory(tmp_path, keep=2), open_directory(tmp_path, keep=2)
    mine.write(make_capture("one", 1))
    theirs.write(make_capture("two", 2))
    mine.write(make_capture("three", 3))
    assert kept(mine) == ["two", "three"]


def test_the_settings_name_directory_and_bounds(tmp_path: Path) -> None:
    directory = capture_directory(Debug(directory=tmp_path, keep=1))
    write(directory, "one", "two")
    assert directory.path == tmp_path
    assert kept(directory) == ["two"]
