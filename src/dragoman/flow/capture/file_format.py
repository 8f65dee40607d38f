"""Captures as files: `pack` writes the compact form, `to_json` the readable one, and `read` takes either."""

import base64

import msgspec
import zstandard

from dragoman.flow.capture.format import VERSION, Capture, Summary, summarised
from dragoman.flow.capture.version_1 import upgrade_capture, upgrade_summary

MAGIC = b"dragoman capture "  # then the version, a space, the summary as JSON, a line break, and the rest compressed
LINE = 160  # characters of the readable form
MOST_BYTES = 1024 * 1024 * 1024  # that a packed capture may unfold to


class Unreadable(Exception):
    """This is no capture, or one of a version that we do not know."""


_summary = msgspec.json.Decoder(Summary)


def pack(capture: Capture) -> bytes:
    head = b"%b%d %b\n" % (MAGIC, VERSION, msgspec.json.encode(summarised(capture)))
    return head + zstandard.ZstdCompressor(level=3).compress(msgspec.msgpack.encode(capture))


def to_json(capture: Capture) -> bytes:
    """The whole, for people, tests and version control: bytes that are text are written as text."""
    tree = _readable(msgspec.to_builtins(capture, builtin_types=(bytes,)))
    return ("\n".join(_laid_out(tree, "")) + "\n").encode()


def read(data: bytes) -> Capture:
    """Either form; raises Unreadable."""
    try:
        if data.startswith(MAGIC):
            head, _, rest = data.partition(b"\n")
            body = zstandard.ZstdDecompressor().decompress(rest, max_output_size=MOST_BYTES)
            return _capture_of(msgspec.msgpack.decode(body), int(head.split(b" ", 3)[2]))
        if data.lstrip().startswith(b"{"):
            tree = _unreadable(msgspec.json.decode(data))
            version = tree.get("version") if isinstance(tree, dict) else None
            return _capture_of(tree, version)
    except (msgspec.MsgspecError, ValueError, RecursionError, zstandard.ZstdError) as problem:
        raise Unreadable(f"it cannot be read: {problem}") from None
    raise Unreadable("it is no capture")


def read_summary(line: bytes) -> Summary:
    """From the first line of a packed capture; raises Unreadable."""
    version, _, text = line.removeprefix(MAGIC).partition(b" ")
    try:
        if version == b"1":
            return msgspec.convert(upgrade_summary(msgspec.json.decode(text)), Summary)
        return _summary.decode(text)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise Unreadable(f"it cannot be read: {problem}") from None


def _capture_of(tree: object, version: object) -> Capture:
    if version == 1:
        tree = upgrade_capture(tree)
    elif version != VERSION:
        raise Unreadable(f"it has version {version}, this dragoman reads 1 to {VERSION}")
    return msgspec.convert(tree, Capture)


def _laid_out(value: object, indent: str) -> list[str]:
    """One line for what is short or plain; else a line for the brackets, and what they hold further in."""
    line = msgspec.json.encode(value).decode()
    if not isinstance(value, dict | list) or len(indent) + len(line) <= LINE or not value:
        return [indent + line]
    inner = indent + "  "
    lines = [indent + ("{" if isinstance(value, dict) else "[")]
    if isinstance(value, dict):
        for name, held in value.items():
            first, *rest = _laid_out(held, inner)
            lines += [f"{inner}{msgspec.json.encode(name).decode()}: {first.lstrip()}", *rest]
            lines[-1] += ","
    else:
        for held in value:
            lines += _laid_out(held, inner)
            lines[-1] += ","
    lines[-1] = lines[-1].removesuffix(",")
    return [*lines, indent + ("}" if isinstance(value, dict) else "]")]


def _readable(value: object) -> object:
    match value:
        case bytes():
            try:
                return {"$text": value.decode()}
            except UnicodeDecodeError:
                return {"$base64": base64.b64encode(value).decode()}
        case dict():
            return {name: _readable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_readable(inner) for inner in value]
        case _:
            return value


def _unreadable(value: object) -> object:
    """The way back from `_readable`: an object with only the one key stands for bytes."""
    match value:
        case {"$text": str() as text, **more} if not more:
            return text.encode()
        case {"$base64": str() as text, **more} if not more:
            return base64.b64decode(text)
        case dict():
            return {name: _unreadable(inner) for name, inner in value.items()}
        case list():
            return [_unreadable(inner) for inner in value]
        case _:
            return value
