"""List, read and export captures."""

from pathlib import Path

import msgspec

from dragoman.admin.errors import AdminError, NotFound
from dragoman.config.settings import Debug
from dragoman.flow.capture.directory import (
    CaptureDirectory,
    CaptureFile,
    CaptureNotFound,
    capture_directory,
    load_capture,
)
from dragoman.flow.capture.file_format import UnreadableCapture
from dragoman.flow.capture.format import Capture, Chunk, UpstreamRequest

CLIENT_REQUEST = "request_body.json"
UPSTREAM_RESPONSE = "response_stream_raw"
CLIENT_RESPONSE = "response_stream_modified.txt"


def list_captures(debug: Debug) -> list[CaptureFile]:
    """Return the stored captures, the oldest first."""
    return _open_directory(debug).list_captures()


def find_capture(debug: Debug, which: str) -> Capture:
    """Read a stored capture: `which` is `last`, a request id, or the beginning or the end of one."""
    try:
        return read_capture(_open_directory(debug).find(which))
    except CaptureNotFound as unknown:
        raise NotFound(str(unknown)) from None


def read_capture(file: Path) -> Capture:
    """Read the capture in a file."""
    try:
        return load_capture(file)
    except UnreadableCapture as unreadable:
        raise AdminError(f"{file}: {unreadable}") from None


def export_capture(capture: Capture, directory: Path) -> list[Path]:
    """Write the bodies and streams of a capture as plain files, under the names that older Kiro gateways used.

    The upstream request that was answered has the plain names; the names of other attempts end in their number.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = {CLIENT_REQUEST: _format_json(capture.request.body)}
    answered = _answered_request(capture)
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


def _upstream_name(request: UpstreamRequest) -> str:
    """Return the name of the provider, except that any provider of kind kiro is called so."""
    return "kiro" if request.kind == "kiro" else request.route.partition("/")[0]


def _answered_request(capture: Capture) -> int:
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
