"""Machines: items in, items out, no waiting, no raising on input."""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from dragoman.hub.events import Event

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)


class Stage(Protocol[In, Out]):
    def feed(self, item: In) -> Sequence[Out]: ...

    def finish(self) -> Iterable[Out]: ...


class Progress(Enum):
    """How far a reply has come, as far as its protocol tells before the end."""

    READING = "reading"
    WORKING_SILENTLY = "working silently"  # the model thinks or searches, with nothing to show for it for minutes
    STOPPED = "stopped"  # the model has said why it stopped; the stream has still to end properly
    COMPLETE = "complete"  # the same, and the reply counts even if its stream does not end properly

    @property
    def has_stopped(self) -> bool:
        return self in (Progress.STOPPED, Progress.COMPLETE)


class Decoder(Protocol):
    """A stage that reads an upstream's frames into events."""

    @property
    def progress(self) -> Progress: ...

    def feed(self, item: object) -> Sequence[Event]: ...

    def finish(self) -> Iterable[Event]: ...
