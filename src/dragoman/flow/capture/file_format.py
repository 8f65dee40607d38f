"""Captures as files: `pack_capture` writes the compact form, `to_json` the readable one, `read_capture` reads both.

Version 1, whose fields had other names, is read too.
"""

import base64
from collections.abc import Mapping

import msgspec

from dragoman.flow.capture.format import VERSION, Capture, Summary, summarize, utc_text

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

Tree = dict[str, object]


class UnreadableCapture(Exception):
    """This is not a capture, or one of an unknown version."""


_summary = msgspec.json.Decoder(Summary)


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


def read_summary(line: bytes) -> Summary:
    """Read the first line of a packed capture; raises UnreadableCapture."""
    version, _, text = line.removeprefix(MAGIC).partition(b" ")
    try:
        if version == b"1":
            return msgspec.convert(_upgrade_summary(msgspec.json.decode(text)), Summary)
        return _summary.decode(text)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise UnreadableCapture(f"it cannot be read: {problem}") from None


def _convert_capture(tree: object, version: object) -> Capture:
    if version == 1:
        tree = _upgrade_capture(tree)
    elif version != VERSION:
        raise UnreadableCapture(f"it has version {version}, this dragoman reads 1 to {VERSION}")
    return msgspec.convert(tree, Capture)


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
