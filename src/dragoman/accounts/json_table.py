"""A file that holds one JSON object comes in; its bytes and the object go out, though others may be writing it."""

import time
from pathlib import Path

import msgspec

from dragoman.accounts.credential import Unusable

MAX_BYTES = 1024 * 1024
TRIES = 4  # a writer that does not rename leaves half a file for a moment
PAUSE_S = 0.05

Table = dict[str, object]

_table = msgspec.json.Decoder(dict[str, object])


def load(path: Path, remedy: str) -> tuple[bytes, Table]:
    """Unusable, with the remedy, where there is no such file, or no object in it."""
    for left in range(TRIES - 1, -1, -1):
        content = _content(path, remedy)
        try:
            return content, _table.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if left:
                time.sleep(PAUSE_S)
    raise Unusable(f"{path} is no JSON object: {remedy}")


def encoded(table: Table) -> bytes:
    return msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n"


def text(table: Table, key: str) -> str:
    value = table.get(key)
    return value.strip() if isinstance(value, str) else ""


def inner(table: Table, key: str) -> Table:
    """The object below a key; an empty one where there is none."""
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _content(path: Path, remedy: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise Unusable(f"{path} does not exist: {remedy}") from None
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise Unusable(f"{path} is too large for a credential")
    return content
