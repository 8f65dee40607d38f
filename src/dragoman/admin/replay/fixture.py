"""Write a test fixture: a capture that expects what the current code does.

The upstream's responses and all times stay as they were recorded.
"""

import re
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dragoman.flow.capture.file_format import to_json
from dragoman.flow.capture.format import Capture, Chunk, ClientResponse, TimedEvent, UpstreamRequest

DIRECTORY = Path("tests/fixtures/captures")
SUFFIX = ".json"
MACHINE_ID = re.compile(r"[0-9a-f]{64}")


def write_fixture(recorded: Capture, replayed: Capture, where: str) -> Path:
    """Write the fixture and return its file. `where` is a name below DIRECTORY, a directory, or a file in SUFFIX."""
    file = choose_file(recorded, where)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(to_json(make_fixture(recorded, replayed)))
    return file


def choose_file(capture: Capture, where: str) -> Path:
    path = Path(where)
    if path.is_dir():
        return path / f"{capture.request_id}{SUFFIX}"
    if path.suffix == SUFFIX:
        return path
    return DIRECTORY / f"{where}{SUFFIX}"


def make_fixture(recorded: Capture, replayed: Capture) -> Capture:
    """Return the capture that a test expects, without ids of the machine that recorded it."""
    fixture = replace(
        replayed,
        request_id=recorded.request_id,
        time=recorded.time,
        duration_ms=recorded.duration_ms,
        request=recorded.request,
        upstream_requests=tuple(
            _keep_response(recorded, request, index) for index, request in enumerate(replayed.upstream_requests)
        ),
        events=tuple(_keep_time(recorded, timed, index) for index, timed in enumerate(replayed.events)),
        response=None if replayed.response is None else _keep_times(recorded, replayed.response),
        lookups=recorded.lookups,
        settings=recorded.settings,
    )
    return msgspec.convert(_remove_machine_ids(msgspec.to_builtins(fixture, builtin_types=(bytes,))), Capture)


def _remove_machine_ids(value: object) -> object:
    match value:
        case ["user-agent" | "x-amz-user-agent" as name, str() as text]:
            return [name, MACHINE_ID.sub("0" * 64, text)]
        case dict():
            return {name: _remove_machine_ids(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_remove_machine_ids(inner) for inner in value]
        case _:
            return value


def _keep_response(recorded: Capture, request: UpstreamRequest, index: int) -> UpstreamRequest:
    old = recorded.upstream_requests[index] if index < len(recorded.upstream_requests) else None
    return request if old is None else replace(request, at=old.at, response=old.response, error=old.error)


def _keep_time(recorded: Capture, timed: TimedEvent, index: int) -> TimedEvent:
    return replace(timed, at=recorded.events[min(index, len(recorded.events) - 1)].at) if recorded.events else timed


def _keep_times(recorded: Capture, response: ClientResponse) -> ClientResponse:
    times = [chunk.at for chunk in recorded.response.chunks] if recorded.response is not None else []
    chunks = [
        Chunk(times[min(index, len(times) - 1)] if times else chunk.at, chunk.data)
        for index, chunk in enumerate(response.chunks)
    ]
    return replace(response, chunks=tuple(chunks))
