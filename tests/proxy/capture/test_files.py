"""Captures as files: both versions are read, and the directory keeps what its bounds allow and finds them by id."""

import os
import re
import stat
import time
from pathlib import Path

import pytest

from dragoman.config.settings import Debug
from dragoman.operate.captures.replay.difference import Difference, compare_captures
from dragoman.operate.captures.replay.rerun import rerun
from dragoman.proxy.capture import files as module
from dragoman.proxy.capture.files import (
    CaptureBounds,
    CaptureDirectory,
    CaptureNotFound,
    UnreadableCapture,
    capture_directory,
    load_capture,
    read_capture,
    read_summary,
)
from dragoman.proxy.capture.format import Capture, ClientRequest, summarize, utc_text
from dragoman.server.handler import replay_site

NOON = 1_800_000_000.0
FOLDER = Path(__file__).parents[2] / "fixtures" / "captures_version_1"
NATIVE = Path(__file__).parents[2] / "fixtures" / "captures_version_2" / "echo-as-native.capture"
PACKED, READABLE = FOLDER / "kiro-cut-call.capture", FOLDER / "kiro-cut-call.json"


def make_capture(request_id: str, second: int = 0) -> Capture:
    return Capture(
        request_id=request_id,
        time=utc_text(NOON + second),
        client_protocol="chat",
        outcome="ok",
        request=ClientRequest("POST", "/v1/chat/completions", "", (), b"{}"),
    )


def open_directory(path: Path, keep: int = 100, max_bytes: int = 1 << 20, max_age_s: float = 3600) -> CaptureDirectory:
    return CaptureDirectory(path / "captures", CaptureBounds(keep, max_bytes, max_age_s))


def write(directory: CaptureDirectory, *ids: str) -> list[Path]:
    return [directory.write(make_capture(name, second)) for second, name in enumerate(ids)]


def list_kept(directory: CaptureDirectory) -> list[str]:
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
    assert list_kept(directory) == ["one", "two"]
    assert list_kept(open_directory(tmp_path / "missing")) == []


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
    assert list_kept(few) == ["two", "three"]
    small = open_directory(tmp_path / "small", max_bytes=1)
    write(small, "one")
    assert list_kept(small) == []


def test_old_captures_and_forgotten_partial_files_are_removed(tmp_path: Path) -> None:
    directory = open_directory(tmp_path, max_age_s=60)
    old, _ = write(directory, "old", "new")
    part = directory.path / "x.part"
    part.write_bytes(b"half")
    for file in (old, part):
        os.utime(file, (time.time() - 7200,) * 2)
    open_directory(tmp_path, max_age_s=60).prune()
    assert list_kept(directory) == ["new"]
    assert not part.exists()


def test_captures_of_other_processes_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESCAN_S", 3600.0)
    mine, theirs = open_directory(tmp_path, keep=2), open_directory(tmp_path, keep=2)
    mine.write(make_capture("one", 1))
    theirs.write(make_capture("two", 2))
    mine.write(make_capture("three", 3))
    assert list_kept(mine) == ["two", "three"]


def test_the_settings_name_directory_and_bounds(tmp_path: Path) -> None:
    directory = capture_directory(Debug(directory=tmp_path, keep=1))
    write(directory, "one", "two")
    assert directory.path == tmp_path
    assert list_kept(directory) == ["two"]


def test_both_forms_of_an_old_capture_are_read_alike() -> None:
    packed, readable = read_capture(PACKED.read_bytes()), read_capture(READABLE.read_bytes())
    assert packed == readable
    assert (packed.request_id, packed.requested_model) == ("req_a519407e0bb1d63c00000001", "kiro/claude-sonnet-4.5")
    assert (packed.time, packed.duration_ms) == ("2026-11-15T12:01:29.314504+00:00", 613.824)
    assert packed.upstream_requests[0].headers
    assert packed.settings.providers.keys() == {"kiro"}


def test_an_old_capture_is_listed_from_its_first_line() -> None:
    line = PACKED.read_bytes().partition(b"\n")[0]
    assert read_summary(line) == summarize(read_capture(PACKED.read_bytes()))


def is_reworded_loss(part: str, change: Difference) -> bool:
    """Whether only the reason of a loss differs, which is text for people."""
    reasonless = [None if loss is None else loss.partition(": ")[0] for loss in (change.was, change.now)]
    return part == "ledger" and reasonless[0] == reasonless[1]


ADDED = re.compile(  # to Messages since then: what Anthropic's schema requires
    r',?"(?:stop_details|container|server_tool_use|inference_geo|citations)":null|"service_tier":"standard"'
    r'|,"cache_creation":\{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0\}|,"caller":\{"type":"direct"\}'
)


def is_other_count(part: str, change: Difference) -> bool:
    """Whether only token counts differ: what a request with a cut call used is estimated since then."""
    texts = [None if text is None else ADDED.sub("", text).replace("{,", "{") for text in (change.was, change.now)]
    countless = [None if text is None else re.sub(r"tokens\":\d+", "", text) for text in texts]
    return countless[0] == countless[1] or (part == "hub events" and '"type":"used"' in (change.was or ""))


def test_an_old_capture_replays_to_the_same_result() -> None:
    capture = read_capture(PACKED.read_bytes())
    parts = compare_captures(capture, rerun(capture, replay_site))
    changes = [(part.name, change) for part in parts for change in part.changes]
    assert [change for change in changes if not is_reworded_loss(*change) and not is_other_count(*change)] == []


def test_the_protocol_of_echo_is_read_by_its_name_and_replays_the_same() -> None:
    data = NATIVE.read_bytes()
    assert b'"chat > native"' in data
    capture = read_capture(data)
    assert (capture.upstream_protocol, capture.upstream_requests[0].protocol) == ("echo", "echo")
    assert read_summary(data.partition(b"\n")[0]) == summarize(capture)
    changes = [
        (part.name, change)
        for part in compare_captures(capture, rerun(capture, replay_site))
        for change in part.changes
    ]
    assert [change for change in changes if not is_reworded_loss(*change)] == []


@pytest.mark.parametrize(
    "body", [b'{"version":1}', b'{"version":1,"asked":[]}', b'{"version":3}', b"dragoman capture 1 {}\nx"]
)
def test_a_file_that_is_no_capture_is_reported_as_such(body: bytes) -> None:
    with pytest.raises(UnreadableCapture):
        read_capture(body)
