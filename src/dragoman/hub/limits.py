"""How many calls, blocks and citations one reply may have; the only place where these numbers stand.

The numbers are far above what models send. A reply beyond them is an upstream's mistake or an attack: it would cost
every other client time and memory, so it fails.
"""

from dragoman.hub.events import CallBlock, CitationAdded, HostedBlock, Opened
from dragoman.hub.failure import Failure, Kind

MAX_CALLS = 1_000
MAX_BLOCKS = 10_000  # calls included
MAX_CITATIONS = 10_000  # search results included


class ReplySize:
    """Counts what one reply holds."""

    __slots__ = ("_blocks", "_calls", "_citations")

    def __init__(self) -> None:
        self._blocks = 0
        self._calls = 0
        self._citations = 0

    def excess(self, event: Opened | CitationAdded) -> Failure | None:
        """Count the event; return the failure that it is if it is one too many."""
        match event:
            case Opened(what=what):
                self._blocks += 1
                if isinstance(what, CallBlock):
                    self._calls += 1
                elif isinstance(what, HostedBlock):
                    self._citations += len(what.results or ())
            case CitationAdded():
                self._citations += 1
        return find_excess(self._calls, self._blocks, self._citations)


def find_excess(calls: int = 0, blocks: int = 0, citations: int = 0) -> Failure | None:
    """Return the failure of a reply that has so many of each; None where it has not too many."""
    counts = (
        (calls, MAX_CALLS, "tool calls"),
        (blocks, MAX_BLOCKS, "content blocks"),
        (citations, MAX_CITATIONS, "citations"),
    )
    for count, most, name in counts:
        if count > most:
            message = f"the upstream's reply has too many {name}: one reply may have {most}"
            return Failure(Kind.CORRUPT, message, code="reply_too_large")
    return None
