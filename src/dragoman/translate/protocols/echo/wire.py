"""Lines of a native stream: each is one event as JSON, its type under `type`."""

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.hub.events import (
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    Started,
    UsageReported,
)


class DeltaLine(Struct, frozen=True, tag="delta"):
    """A Delta as it is read: msgspec cannot decode `Raw | None`."""

    block: int
    text: str
    logprobs: Raw = Raw(b"null")


Line = Started | Opened | DeltaLine | OpaqueAdded | CitationAdded | Closed | UsageReported | Ended | Failed
LINE = msgspec.json.Decoder(Line)
LINES = msgspec.json.Decoder(list[Line])


def read_event(line: Line) -> Event:
    """Return the event of a line."""
    if not isinstance(line, DeltaLine):
        return line
    absent = bytes(line.logprobs) == b"null"
    return Delta(line.block, line.text, None if absent else line.logprobs.copy())
