"""Captures as files: their two forms, and the directory with its bounds on number, size and age.

`pack_capture` writes the compact form, `to_json` the readable one, `read_capture` reads both. Version 1, whose fields
had other names, is read too.
"""

import base64
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import Debug
from dragoman.proxy.capture.format import VERSION, Capture, CaptureSummary, summarize, utc_text

# The version follows, a space, the summary as JSON, a line break, and the rest compressed.
MAGIC = b"dragoman capture "
LINE_LENGTH = 160  # characters of the readable form
MAX_UNPACKED_BYTES = 1024 * 1024 * 1024


# The names of fields in version 1, and today's.
_CAPTURE = {
    "id": "request_id",
    "program": "dragoman_version",
    "asked_in": "client_protocol",
    "spoken": "upstream_protocol",
    "wanted": "requested_model",
    "result": "outcome",
    "code": "error_code",
    "interrupted": "interrupted_by",
    "trips": "guard_trips",
    "cut": "cut_calls",
    "asked": "request",
    "questions": "upstream_requests",
    "moments": "events",
    "sent": "response",
    "told": "lookups",
    "world": "settings",
    "shortened": "truncated",
}
_MESSAGE = {"fields": "headers"}  # a request or a response, of the client or of an upstream
_UPSTREAM_REQUEST = {**_MESSAGE, "answer": "response", "fault": "error"}
_UPSTREAM_RESPONSE = {**_MESSAGE, "ended": "ended_at"}
_SETTINGS = {"stanzas": "providers", "learnt": "quirks", "known": "known_models"}
_SUMMARY = {"id": "request_id", "way": "protocols", "result": "outcome", "questions": "attempts"}

OLD_PROTOCOLS = {"native": "echo"}  # names of protocols in captures before 0.3.0, and today's

Tree = dict[str, object]
SUFFIX = ".capture"
UNFINISHED_SUFFIX = ".part"
UNFINISHED_MAX_AGE_S = 3600.0
RESCAN_S = 5.0
MAX_LISTED_EACH_TIME = 1000
LAST = "last"
MAX_SUMMARY_BYTES = 64 * 1024
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


class UnreadableCapture(Exception):
    """This is not a capture, or one of an unknown version."""


_summary = msgspec.json.Decoder(CaptureSummary)


def pack_capture(capture: Capture) -> bytes:
    """Return the compact form of a capture, with a readable first line."""
    from dragoman.net import zstd

    head = b"%b%d %b\n" % (MAGIC, VERSION, msgspec.json.encode(summarize(capture)))
    packed: bytes = zstd.compress(msgspec.msgpack.encode(capture), level=3)
    return head + packed


def to_json(capture: Capture) -> bytes:
    """Return the readable form, for people, tests and version control: bytes that are text are written as text."""
    tree = _replace_bytes(msgspec.to_builtins(capture, builtin_types=(bytes,)))
    return ("\n".join(_format_lines(tree, "")) + "\n").encode()


def read_capture(data: bytes) -> Capture:
    """Read either form; raises UnreadableCapture."""
    from dragoman.net import zstd

    try:
        if data.startswith(MAGIC):
            head, _, rest = data.partition(b"\n")
            body = zstd.decompress(rest, MAX_UNPACKED_BYTES)
            return _convert_capture(msgspec.msgpack.decode(body), int(head.split(b" ", 3)[2]))
        if data.lstrip().startswith(b"{"):
            tree = _restore_bytes(msgspec.json.decode(data))
            version = tree.get("version") if isinstance(tree, dict) else None
            return _convert_capture(tree, version)
    except (msgspec.MsgspecError, ValueError, RecursionError, zstd.ZstdError) as problem:
        raise UnreadableCapture(f"it cannot be read: {problem}") from None
    raise UnreadableCapture("it is not a capture")


def read_summary(line: bytes) -> CaptureSummary:
    """Read the first line of a packed capture; raises UnreadableCapture."""
    version, _, text = line.removeprefix(MAGIC).partition(b" ")
    try:
        if version == b"1":
            summary = msgspec.convert(_upgrade_summary(msgspec.json.decode(text)), CaptureSummary)
        else:
            summary = _summary.decode(text)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise UnreadableCapture(f"it cannot be read: {problem}") from None
    client, separator, upstream = summary.protocols.rpartition(" ")
    return replace(summary, protocols=f"{client}{separator}{OLD_PROTOCOLS.get(upstream, upstream)}")


def _convert_capture(tree: object, version: object) -> Capture:
    if version == 1:
        tree = _upgrade_capture(tree)
    elif version != VERSION:
        raise UnreadableCapture(f"it has version {version}, this dragoman reads 1 to {VERSION}")
    capture = msgspec.convert(tree, Capture)
    old = OLD_PROTOCOLS.get(capture.upstream_protocol)
    return capture if old is None else _rename_protocol(capture, old)


def _rename_protocol(capture: Capture, name: str) -> Capture:
    return replace(
        capture,
        upstream_protocol=name,
        upstream_requests=tuple(
            replace(request, protocol=OLD_PROTOCOLS.get(request.protocol, request.protocol))
            for request in capture.upstream_requests
        ),
    )


def _format_lines(value: object, indent: str) -> list[str]:
    """Return JSON in lines: one for a short value, else one for each bracket with indented lines between them."""
    line = msgspec.json.encode(value).decode()
    if not isinstance(value, dict | list) or len(indent) + len(line) <= LINE_LENGTH or not value:
        return [indent + line]
    inner = indent + "  "
    lines = [indent + ("{" if isinstance(value, dict) else "[")]
    if isinstance(value, dict):
        for name, held in value.items():
            first, *rest = _format_lines(held, inner)
            lines += [f"{inner}{msgspec.json.encode(name).decode()}: {first.lstrip()}", *rest]
            lines[-1] += ","
    else:
        for held in value:
            lines += _format_lines(held, inner)
            lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    return [*lines, indent + ("}" if isinstance(value, dict) else "]")]


def _replace_bytes(value: object) -> object:
    match value:
        case bytes():
            try:
                return {"$text": value.decode()}
            except UnicodeDecodeError:
                return {"$base64": base64.b64encode(value).decode()}
        case dict():
            return {name: _replace_bytes(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_replace_bytes(inner) for inner in value]
        case _:
            return value


def _restore_bytes(value: object) -> object:
    """Reverse `_replace_bytes`: an object with only one of its keys stands for bytes."""
    match value:
        case {"$text": str() as text, **more} if not more:
            return text.encode()
        case {"$base64": str() as text, **more} if not more:
            return base64.b64decode(text)
        case dict():
            return {name: _restore_bytes(inner) for name, inner in value.items()}
        case list():
            return [_restore_bytes(inner) for inner in value]
        case _:
            return value


def _upgrade_capture(old: object) -> Tree:
    """Return a version-1 capture under today's names."""
    new = _rename(old, _CAPTURE)
    _convert_times(new)
    new["version"] = 2
    new["request"] = _rename(new.get("request"), _MESSAGE)
    new["settings"] = _rename(new.get("settings") or {}, _SETTINGS)
    if new.get("response") is not None:
        new["response"] = _rename(new["response"], _MESSAGE)
    requests = msgspec.convert(new.get("upstream_requests", ()), list[object])
    new["upstream_requests"] = [_upgrade_upstream_request(request) for request in requests]
    return new


def _upgrade_summary(old: object) -> Tree:
    """Return the summary line of a version-1 capture under today's names."""
    new = _rename(old, _SUMMARY)
    _convert_times(new)
    return new


def _upgrade_upstream_request(old: object) -> Tree:
    new = _rename(old, _UPSTREAM_REQUEST)
    if new.get("response") is not None:
        new["response"] = _rename(new["response"], _UPSTREAM_RESPONSE)
    return new


def _convert_times(tree: Tree) -> None:
    tree["time"] = utc_text(msgspec.convert(tree.pop("began", 0.0), float))
    tree["duration_ms"] = round(msgspec.convert(tree.pop("seconds", 0.0), float) * 1000, 3)


def _rename(old: object, names: Mapping[str, str]) -> Tree:
    if not isinstance(old, dict):
        raise ValueError(f"expected an object, got {type(old).__name__}")
    return {names.get(name, name): value for name, value in old.items()}


class CaptureNotFound(Exception):
    """No capture, or more than one, has such an id."""


class CaptureFile(Struct, frozen=True):
    """A capture on disk, with its summary."""

    file: Path
    size: int
    summary: CaptureSummary


class CaptureBounds(Struct, frozen=True):
    """How many captures are kept, of which size, and for how long."""

    keep: int
    max_bytes: int
    max_age_s: float


class FileStatus(Struct, frozen=True):
    path: Path
    written_at: float
    size: int


class CaptureDirectory:
    """A directory of captures, which several processes may use at the same time."""

    def __init__(self, path: Path, bounds: CaptureBounds) -> None:
        self.path = path
        self._bounds = bounds
        self._known: deque[FileStatus] = deque()  # oldest first
        self._scanned_at = -RESCAN_S

    def write(self, capture: Capture) -> Path:
        """Write a capture and return its file; raises OSError and leaves no partial file."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        moment = datetime.fromtimestamp(capture.started_at, UTC).strftime("%Y%m%dT%H%M%S.%f")
        file = self.path / f"{moment}-{_UNSAFE_CHARACTERS.sub('_', capture.request_id)}{SUFFIX}"
        part = file.with_suffix(UNFINISHED_SUFFIX)
        try:
            _write_new(part, pack_capture(capture))
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self._known.append(_status(file))
        self.prune()
        return file

    def files(self) -> list[Path]:
        """Return all capture files, oldest first: their names begin with the time."""
        try:
            return sorted(self.path.glob(f"*{SUFFIX}"))
        except OSError:
            return []

    def list_captures(self) -> list[CaptureFile]:
        """Return all captures that can be read, oldest first."""
        found = []
        for file in self.files():
            try:
                with file.open("rb") as opened:
                    line = opened.readline(MAX_SUMMARY_BYTES)
                found.append(CaptureFile(file, file.stat().st_size, read_summary(line)))
            except (OSError, UnreadableCapture):
                continue
        return found

    def find_captured(self, request_ids: Iterable[str]) -> frozenset[str]:
        """Return those of the requests that have a capture, judged by the names of the files."""
        try:
            names = {name.partition("-")[2].removesuffix(SUFFIX) for name in os.listdir(self.path)}
        except OSError:
            return frozenset()
        return frozenset(id for id in request_ids if _UNSAFE_CHARACTERS.sub("_", id) in names)

    def find(self, which: str) -> Path:
        """Return the file of a capture: `last`, its id, or the beginning or end of its id.

        Of several captures with the same id the newest is returned. Raises CaptureNotFound.
        """
        if which == LAST:
            files = self.files()
            if not files:
                raise CaptureNotFound(f"There are no captures in {self.path}.")
            return files[-1]
        captures = self.list_captures()
        found = [capture for capture in captures if capture.summary.request_id == which]
        found = found or [capture for capture in captures if capture.summary.request_id.startswith(which)]
        found = found or [capture for capture in captures if capture.summary.request_id.endswith(which)]
        if not found:
            raise CaptureNotFound(f"There is no capture {which!r}. Run: dragoman capture list")
        if len({capture.summary.request_id for capture in found}) > 1:
            raise CaptureNotFound(f"{len(found)} captures match {which!r}. Give more of the id.")
        return found[-1].file

    def prune(self) -> None:
        """Remove captures that are too old, then the oldest until the bounds are met; raises OSError."""
        if self._has_changed():
            self._scanned_at = time.monotonic()
            self._known = deque(map(_status, self.files()))
            for part in self.path.glob(f"*{UNFINISHED_SUFFIX}"):  # its writer was killed
                if time.time() - _status(part).written_at > UNFINISHED_MAX_AGE_S:
                    part.unlink(missing_ok=True)
        total = sum(status.size for status in self._known)
        while self._known and self._exceeds_bounds(total):
            status = self._known.popleft()
            status.path.unlink(missing_ok=True)
            total -= status.size

    def _has_changed(self) -> bool:
        """Whether other processes may have written or removed files.

        The directory is listed each time unless it has very many files.
        """
        if time.monotonic() - self._scanned_at >= RESCAN_S:
            return True
        if self._bounds.keep > MAX_LISTED_EACH_TIME:
            return False
        names = {name for name in os.listdir(self.path) if name.endswith(SUFFIX)}
        return names != {status.path.name for status in self._known}

    def _exceeds_bounds(self, total: int) -> bool:
        bounds = self._bounds
        is_too_old = time.time() - self._known[0].written_at > bounds.max_age_s
        return is_too_old or len(self._known) > bounds.keep or total > bounds.max_bytes


def capture_directory(debug: Debug) -> CaptureDirectory:
    """Return the directory that the settings name, with their bounds."""
    return CaptureDirectory(debug.directory, CaptureBounds(debug.keep, debug.max_bytes, debug.max_age_s))


def load_capture(file: Path) -> Capture:
    """Read a capture; raises OSError or UnreadableCapture."""
    return read_capture(file.read_bytes())


def _write_new(file: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(opened, rest) :]
    finally:
        os.close(opened)


def _status(file: Path) -> FileStatus:
    """Return the status of a file; one that has been removed meanwhile counts as new and empty."""
    try:
        found = file.stat()
    except OSError:
        return FileStatus(file, time.time(), 0)
    return FileStatus(file, found.st_mtime, found.st_size)
