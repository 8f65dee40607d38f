"""Read and lower how many tokens a request allows its reply, in the body as the client wrote it."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from dragoman.translate.framing.jsonedit import Change, Path, Put, edit
from dragoman.translate.framing.jsonread import JSON_ERRORS, read_json

Paths = Sequence[tuple[str, ...]]  # where a protocol's requests have the limit; the first is set where there is none

_object = msgspec.json.Decoder(dict[str, Raw])
_number = msgspec.json.Decoder(int | float)


def find_output_limit(body: bytes, paths: Paths) -> int | None:
    """Return the limit that a request sets, of several the lowest; None if it sets none, or its body is not read."""
    found = [value for path in paths if (value := _read(body, path)) is not None]
    return min(found, default=None)


def lower_output_limit(body: bytes, paths: Paths, most: int) -> bytes:
    """Return the body with no limit above `most`, and with this one where it sets none; all other bytes stay.

    A key that stands there twice is written in both places: parsers differ in which one they use.
    """
    changes: list[tuple[Path, Change]] = []
    is_set = False
    for path in paths:
        value = _read(body, path)
        if value is None:
            continue
        is_set = True
        is_repeated = body.count(b'"%b"' % path[-1].encode()) > 1
        if value > most or is_repeated:
            changes.append((path, str(min(value, most)).encode()))
    if not is_set:
        changes.append(_make_change(body, paths, most))
    try:
        return edit(body, changes) if changes else body
    except ValueError:  # it is not JSON, and its upstream says so
        return body


def _make_change(body: bytes, paths: Paths, most: int) -> tuple[Path, Change]:
    """Return the change that sets the limit, with the object around it if there is none."""
    for path in paths:
        if _find_object(body, path[:-1]) is not None:
            return path, Put(str(most).encode())
    path = paths[0]
    return path[:-1], Put(msgspec.json.encode({path[-1]: most}))


def _read(body: bytes, path: tuple[str, ...]) -> int | None:
    holder = _find_object(body, path[:-1])
    raw = None if holder is None else holder.get(path[-1])
    if raw is None:
        return None
    try:
        return max(0, int(_number.decode(raw)))
    except (msgspec.MsgspecError, OverflowError, ValueError):
        return None


def _find_object(body: bytes, path: tuple[str, ...]) -> dict[str, Raw] | None:
    try:
        found = read_json(_object, body)
        for key in path:
            found = _object.decode(found[key])
    except (KeyError, *JSON_ERRORS):
        return None
    return found
