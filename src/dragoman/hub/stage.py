"""Machines: items in, items out, no waiting, no raising on input."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)


class Stage(Protocol[In, Out]):
    def feed(self, item: In) -> Sequence[Out]: ...

    def finish(self) -> Iterable[Out]: ...
