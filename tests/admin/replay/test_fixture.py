"""A fixture expects the replayed result and keeps what was recorded of times and upstream responses."""

from pathlib import Path

from msgspec.structs import replace

from dragoman.admin.replay.fixture import DIRECTORY, choose_file, make_fixture, write_fixture
from dragoman.flow.capture.file_format import read_capture as read
from dragoman.flow.capture.format import Capture

FIXTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "kiro-cut-call.json"


def fixture() -> Capture:
    return read(FIXTURE.read_bytes())


def test_results_are_replayed_ones_and_times_recorded_ones() -> None:
    recorded = fixture()
    first, *others = recorded.events
    replayed = replace(recorded, outcome="lost", events=(replace(first, at=99.0), *others), duration_ms=1.0)
    made = make_fixture(recorded, replayed)
    assert (made.outcome, made.events[0].at, made.duration_ms) == ("lost", first.at, recorded.duration_ms)
    assert [request.response for request in made.upstream_requests] == [
        request.response for request in recorded.upstream_requests
    ]


def test_ids_of_the_machine_are_removed() -> None:
    recorded = fixture()
    first, *others = recorded.upstream_requests
    named = replace(first, headers=(("user-agent", f"tool {'ab' * 32}"),))
    made = make_fixture(recorded, replace(recorded, upstream_requests=(named, *others)))
    assert made.upstream_requests[0].headers == (("user-agent", f"tool {'0' * 64}"),)


def test_a_fixture_is_written_into_a_file_a_directory_or_by_its_name(tmp_path: Path) -> None:
    recorded = fixture()
    file = write_fixture(recorded, recorded, str(tmp_path / "new" / "mine.json"))
    assert read(file.read_bytes()) == make_fixture(recorded, recorded)
    assert choose_file(recorded, str(tmp_path)) == tmp_path / f"{recorded.request_id}.json"
    assert choose_file(recorded, "a-name") == DIRECTORY / "a-name.json"
