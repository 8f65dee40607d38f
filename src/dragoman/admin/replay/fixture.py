"""A capture and what today's code makes of it come in; a fixture that expects exactly this goes out.

The upstream's answers and all times stay as they were recorded.
"""

import re
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dragoman.flow.capture.file_format import to_json
from dragoman.flow.capture.format import Capture, Chunk, ClientResponse, TimedEvent, UpstreamRequest

FOLDER = Path("tests/fixtures/captures")
SUFFIX = ".json"
MACHINE = re.compile(r"[0-9a-f]{64}")


def write_fixture(then: Capture, now: Capture, where: str) -> Path:
    """`where`: a name below FOLDER, or a folder, or a file that ends in SUFFIX."""
    file = fixture_file(then, where)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(to_json(expecting(then, now)))
    return file


def fixture_file(capture: Capture, where: str) -> Path:
    path = Path(where)
    if path.is_dir():
        return path / f"{capture.request_id}{SUFFIX}"
    if path.suffix == SUFFIX:
        return path
    return FOLDER / f"{where}{SUFFIX}"


def expecting(then: Capture, now: Capture) -> Capture:
    """Without what tells one machine from another."""
    fixture = replace(
        now,
        request_id=then.request_id,
        time=then.time,
        duration_ms=then.duration_ms,
        request=then.request,
        upstream_requests=tuple(_question(then, request, place) for place, request in enumerate(now.upstream_requests)),
        events=tuple(_moment(then, moment, place) for place, moment in enumerate(now.events)),
        response=None if now.response is None else _sent(then, now.response),
        lookups=then.lookups,
        settings=then.settings,
    )
    return msgspec.convert(_anonymous(msgspec.to_builtins(fixture, builtin_types=(bytes,))), Capture)


def _anonymous(value: object) -> object:
    match value:
        case ["user-agent" | "x-amz-user-agent" as name, str() as said]:
            return [name, MACHINE.sub("0" * 64, said)]
        case dict():
            return {name: _anonymous(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_anonymous(inner) for inner in value]
        case _:
            return value


def _question(then: Capture, question: UpstreamRequest, place: int) -> UpstreamRequest:
    old = then.upstream_requests[place] if place < len(then.upstream_requests) else None
    return question if old is None else replace(question, at=old.at, response=old.response, error=old.error)


def _moment(then: Capture, moment: TimedEvent, place: int) -> TimedEvent:
    return replace(moment, at=then.events[min(place, len(then.events) - 1)].at) if then.events else moment


def _sent(then: Capture, sent: ClientResponse) -> ClientResponse:
    times = [chunk.at for chunk in then.response.chunks] if then.response is not None else []
    chunks = [
        Chunk(times[min(place, len(times) - 1)] if times else chunk.at, chunk.data)
        for place, chunk in enumerate(sent.chunks)
    ]
    return replace(sent, chunks=tuple(chunks))
