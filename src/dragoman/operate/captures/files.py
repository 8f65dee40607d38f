"""List, read and export captures."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.config.settings import Debug
from dragoman.operate import AdminError, NotFound
from dragoman.operate.captures.timeline import TimelineEntry, build_timeline, failure_message
from dragoman.proxy.capture.files import (
    CaptureDirectory,
    CaptureFile,
    CaptureNotFound,
    UnreadableCapture,
    capture_directory,
    load_capture,
)
from dragoman.proxy.capture.format import Capture, CaptureSummary, Chunk, UpstreamRequest, summarize
from dragoman.translate.framing.redaction import Field
from dragoman.translate.hub.loss import Loss
from dragoman.translate.protocols import PROTOCOLS

CLIENT_REQUEST = "request_body.json"
UPSTREAM_RESPONSE = "response_stream_raw"
CLIENT_RESPONSE = "response_stream_modified.txt"
CAPTURE_IS_OFF = "\nCapturing is off. Set `capture` under [debug] to `errors`, or to `all`, and repeat the request."
MAX_ENTRIES = 2000  # of a timeline, in one description


class CapturedMessage(Struct, frozen=True):
    """A request as text. Secrets were masked when it was captured."""

    method: str
    url: str
    headers: tuple[Field, ...]
    body: str


class DescribedRequest(Struct, frozen=True):
    """A request to an upstream and how it ended; without a status there was no response, and `end` says why."""

    at: float
    route: str
    protocol: str
    sent: CapturedMessage
    status: int | None
    headers: tuple[Field, ...]
    end: str


class CaptureDescription(Struct, frozen=True):
    """A capture for people to read; `next` is the first entry of the timeline that is not in it."""

    summary: CaptureSummary
    failure: str
    why: str  # why the reply passed or was translated
    request: CapturedMessage
    upstream_requests: list[DescribedRequest]
    status: int | None
    headers: tuple[Field, ...]
    losses: tuple[Loss, ...]
    truncated: tuple[str, ...]
    masked: bool
    timeline: list[TimelineEntry]
    next: int | None


def list_captures(debug: Debug) -> list[CaptureFile]:
    """Return the stored captures, the oldest first."""
    return _open_directory(debug).list_captures()


def find_captured(debug: Debug, request_ids: Iterable[str]) -> frozenset[str]:
    """Return those of the requests that have a capture."""
    return capture_directory(debug).find_captured(request_ids)


def find_capture(debug: Debug, which: str) -> Capture:
    """Read a stored capture: `which` is `last`, a request id, or the beginning or the end of one."""
    try:
        return read_capture(_open_directory(debug).find(which))
    except CaptureNotFound as unknown:
        raise NotFound(f"{unknown}{'' if debug.capture != 'off' else CAPTURE_IS_OFF}") from None


def read_capture(file: Path) -> Capture:
    """Read the capture in a file."""
    try:
        return load_capture(file)
    except UnreadableCapture as unreadable:
        raise AdminError(f"{file}: {unreadable}") from None


def describe_capture(capture: Capture, first: int = 0) -> CaptureDescription:
    """Return what a capture holds as text, with MAX_ENTRIES entries of its timeline from `first` on."""
    request, response = capture.request, capture.response
    url = f"{request.path}?{request.query}" if request.query else request.path
    timeline = build_timeline(capture)
    end = first + MAX_ENTRIES
    return CaptureDescription(
        summarize(capture),
        failure_message(capture),
        capture.why,
        CapturedMessage(request.method, url, request.headers, request.body.decode(errors="replace")),
        [_describe_request(sent) for sent in capture.upstream_requests],
        None if response is None else response.status,
        () if response is None else response.headers,
        capture.losses,
        capture.truncated,
        capture.masked,
        timeline[first:end],
        end if end < len(timeline) else None,
    )


def export_capture(capture: Capture, directory: Path) -> list[Path]:
    """Write the bodies and streams of a capture as plain files, under the names that older Kiro gateways used.

    The upstream request that was answered has the plain names; the names of other attempts end in their number.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = {CLIENT_REQUEST: _format_json(capture.request.body)}
    answered = _find_answered_request(capture)
    for index, request in enumerate(capture.upstream_requests):
        number = "" if index == answered else f"_{index + 1}"
        files[f"{_upstream_name(request)}_request_body{number}.json"] = _format_json(request.body)
        if request.response is not None:
            files[f"{UPSTREAM_RESPONSE}{number}.txt"] = _join(request.response.chunks)
    files[CLIENT_RESPONSE] = b"" if capture.response is None else _join(capture.response.chunks)
    written = []
    for name, data in files.items():
        written.append(directory / name)
        written[-1].touch(mode=0o600)
        written[-1].write_bytes(data)
    return written


def _open_directory(debug: Debug) -> CaptureDirectory:
    if debug.directory.exists() and not debug.directory.is_dir():
        raise AdminError(f"debug.directory must be a directory, and {debug.directory} is a file.")
    return capture_directory(debug)


def _describe_request(request: UpstreamRequest) -> DescribedRequest:
    response = request.response
    return DescribedRequest(
        request.at,
        request.route,
        request.protocol,
        CapturedMessage(request.method, request.url, request.headers, request.body.decode(errors="replace")),
        None if response is None else response.status,
        () if response is None else response.headers,
        request.error if response is None else response.end,
    )


def _upstream_name(request: UpstreamRequest) -> str:
    """Return the name of the provider, or its kind if that has a protocol of its own, which no client uses."""
    if request.kind == request.protocol and PROTOCOLS[request.protocol].client is None:
        return request.kind
    return request.route.partition("/")[0]


def _find_answered_request(capture: Capture) -> int:
    """Return the index of the upstream request that was answered; older captures of whole replies do not have it."""
    index = capture.events[-1].request if capture.events else -1
    return index if index >= 0 else len(capture.upstream_requests) - 1


def _join(chunks: tuple[Chunk, ...]) -> bytes:
    return b"".join(chunk.data for chunk in chunks)


def _format_json(body: bytes) -> bytes:
    try:
        return msgspec.json.format(body, indent=2)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
