"""Recordings for tests of what fills them."""

from collections.abc import Callable

from dragoman.flow.capture.format import LookupName
from dragoman.flow.capture.memory_bounds import MemoryBudget
from dragoman.flow.capture.recording import Recording
from dragoman.hub.request import Json
from flow.in_memory import make_request

ROOM_BYTES = 1 << 20


def ignore(recording: Recording) -> None:
    """Do nothing when a recording has ended."""


def make_recording(room: int = ROOM_BYTES, on_finished: Callable[[Recording], None] = ignore) -> Recording:
    return Recording(make_request(), 0.0, MemoryBudget(room), on_finished)


def look_up(recording: Recording, provider: str, name: LookupName) -> list[Json]:
    """Return the values that were noted under this name, in order."""
    return [lookup.value for lookup in recording.lookups if (lookup.provider, lookup.name) == (provider, name.value)]
