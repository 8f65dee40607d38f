"""Recordings for tests of what fills them, and lookups that answer from a capture."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from dragoman.proxy.capture.format import NO_PROVIDER, Lookup, LookupName
from dragoman.proxy.capture.lookups import ReplayingLookups
from dragoman.proxy.capture.memory_bounds import MemoryBudget
from dragoman.proxy.capture.recording import Recording
from dragoman.state.stored_call import RecordedState
from dragoman.translate.hub.request import Json
from proxy.in_memory import make_request

ROOM_BYTES = 1 << 20


def ignore(recording: Recording) -> None:
    """Do nothing when a recording has ended."""


def make_recording(room: int = ROOM_BYTES, on_finished: Callable[[Recording], None] = ignore) -> Recording:
    return Recording(make_request(), 0.0, MemoryBudget(room), on_finished)


def look_up(recording: Recording, provider: str, name: LookupName) -> list[Json]:
    """Return the values that were noted under this name, in order."""
    return [lookup.value for lookup in recording.lookups if (lookup.provider, lookup.name) == (provider, name.value)]


def make_replaying(*lookups: Lookup) -> ReplayingLookups:
    """Return what answers from a capture with these lookups."""
    return ReplayingLookups(replace(make_recording().make_capture(), lookups=lookups))


def replay_state(*items: dict[str, Json], keeper: str = "", keeps: bool = False) -> ReplayingLookups:
    """Return what answers from a capture with the state of a request with this input."""
    state = RecordedState(
        earlier=[],
        items=list(items),
        found=[],
        previous=None,
        conversation=None,
        keeper=keeper,
        keeps=keeps,
        why_not="",
        is_remembered=False,
        in_background=False,
        created=1,
        owner="t",
    )
    value = {"value": msgspec.to_builtins(state)}
    return make_replaying(Lookup(NO_PROVIDER, LookupName.STATE.value, value))
