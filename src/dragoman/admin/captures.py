"""A capture and a folder come in; the plain files of it, as older Kiro gateways left them, go out."""

from pathlib import Path

import msgspec

from dragoman.admin.replay.player import joined
from dragoman.flow.capture.format import Capture, UpstreamRequest

REQUEST = "request_body.json"
RAW = "response_stream_raw"
MODIFIED = "response_stream_modified.txt"


def export(capture: Capture, directory: Path) -> list[Path]:
    """The request that was answered has the plain names; other tries have their numbers in theirs."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = {REQUEST: _pretty(capture.request.body)}
    main = _answering(capture)
    for place, question in enumerate(capture.upstream_requests):
        number = "" if place == main else f"_{place + 1}"
        files[f"{_upstream(question)}_request_body{number}.json"] = _pretty(question.body)
        if question.response is not None:
            files[f"{RAW}{number}.txt"] = joined(question.response.chunks)
    files[MODIFIED] = b"" if capture.response is None else joined(capture.response.chunks)
    written = []
    for name, data in files.items():
        written.append(directory / name)
        written[-1].touch(mode=0o600)
        written[-1].write_bytes(data)
    return written


def _upstream(question: UpstreamRequest) -> str:
    """Kiro is always called so, as it was there; another upstream by its own name."""
    return "kiro" if question.kind == "kiro" else question.route.partition("/")[0]


def _answering(capture: Capture) -> int:
    """Return the place of the upstream request that was answered; older captures of whole replies do not tell it."""
    place = capture.events[-1].request if capture.events else -1
    return place if place >= 0 else len(capture.upstream_requests) - 1


def _pretty(body: bytes) -> bytes:
    try:
        return msgspec.json.format(body, indent=2)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
