"""Server-sent events read as strictly as the strictest client does: bytes to (event, data) pairs."""

import json

from wire_json import Json, JsonObject


class Illegal(AssertionError):
    """A stream that departs from its protocol's grammar; the message names the place."""


def blocks(body: bytes) -> list[tuple[str | None, str]]:
    """Only LF, one `event:` at most, one `data:` line, one space, no BOM, every block ended; comments are skipped."""
    require(not body.startswith(b"\xef\xbb\xbf"), "a BOM")
    require(b"\r" not in body, "a CR")
    require(body.endswith(b"\n\n"), "the last block is not ended")
    found: list[tuple[str | None, str]] = []
    for block in body.decode("utf-8", errors="strict").removesuffix("\n\n").split("\n\n"):
        lines = block.split("\n")
        if all(line.startswith(":") for line in lines):
            continue
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        require(len(names) <= 1 and len(data) == 1, f"not one data line: {block[:200]!r}")
        require(len(names) + len(data) == len(lines), f"a line of another kind: {block[:200]!r}")
        found.append((names[0] if names else None, data[0]))
    return found


def require(holds: bool, why: str) -> None:
    if not holds:
        raise Illegal(why)


def read(data: str) -> JsonObject:
    value: Json = json.loads(data)
    if not isinstance(value, dict):
        raise Illegal(f"no object: {data[:100]}")
    return value
