"""Read the configuration file while an editor may be saving it: only what two reads agree on counts.

An editor that saves in place empties the file first and then writes it. An empty file is a valid configuration, so it
counts only after it has stayed empty for longer than any editor needs.
"""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from dragoman.config.load import Stamp

SETTLE_S = 0.2  # between two reads
EMPTY_S = 2.0  # how long an emptied file must stay empty


class FileReading(Struct, frozen=True):
    """What the file contained, and the stamp that was taken before it was read: a later edit changes it."""

    stamp: Stamp
    content: bytes | None  # None: there is no file, or it cannot be read

    @property
    def text(self) -> str | None:
        """The content as text; None where reading the file says better what is wrong."""
        try:
            return None if self.content is None else self.content.decode("utf-8-sig")
        except UnicodeDecodeError:
            return None


async def read_settled(
    take_stamp: Callable[[], Stamp], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> FileReading:
    """Return the file once two reads SETTLE_S apart agree, or all reads within EMPTY_S if there is nothing in it."""
    found, unchanged_s = _read(take_stamp()), 0.0
    while unchanged_s < (EMPTY_S if found.content is not None and not found.content.strip() else SETTLE_S):
        await sleep(SETTLE_S)
        before, found = found, _read(take_stamp())
        unchanged_s = round(unchanged_s + SETTLE_S, 3) if found.content == before.content else 0.0
    return found


def _read(stamp: Stamp) -> FileReading:
    try:
        return FileReading(stamp, None if stamp.file is None else stamp.file[0].read_bytes())
    except OSError:
        return FileReading(stamp, None)
