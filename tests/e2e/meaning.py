"""Replies independent of any protocol: the data by which the matrix is judged."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Refuse:
    text: str


@dataclass(frozen=True)
class Think:
    text: str
    seal: str = ""  # what only the upstream can read: a signature, or encrypted content


@dataclass(frozen=True)
class CallTool:
    id: str
    name: str
    arguments: str  # JSON; "" as servers write it that were given none


Part = Say | Refuse | Think | CallTool


class Stop(Enum):
    NATURAL = "natural"
    STOP_STRING = "stop string"
    CAP = "cap"
    CONTEXT_FULL = "context full"
    TOOL = "tool"
    FILTERED = "filtered"
    PAUSE = "pause"


class Ending(Enum):
    PROPER = "with its terminal event"
    ERROR = "with an error event"
    NONE = "without any terminal event"


@dataclass(frozen=True)
class Tokens:
    """Input holds what was cached, output what was thought, as OpenAI counts."""

    input: int = 11
    output: int = 7
    cached: int = 0
    written: int = 0
    reasoning: int = 0


Kind = TypeVar("Kind", bound=Part)


@dataclass(frozen=True)
class Meant:
    parts: tuple[Part, ...]
    stop: Stop = Stop.NATURAL
    tokens: Tokens = Tokens()
    sequence: str | None = None  # the stop string that was hit
    explanation: str | None = None  # of a refusal
    ending: Ending = Ending.PROPER

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [part for part in self.parts if isinstance(part, kind)]


NO_REFUSALS = ("messages", "gemini")  # their refusals are text
ONLY_MESSAGES = {Stop.STOP_STRING: Stop.NATURAL, Stop.CONTEXT_FULL: Stop.CAP, Stop.PAUSE: Stop.NATURAL}


def sayable(meant: Meant, upstream: str) -> Meant:
    """Return the part of a reply that an upstream of this protocol can express."""
    if upstream in NO_REFUSALS and meant.of(Refuse):
        parts = tuple(Say(part.text) if isinstance(part, Refuse) else part for part in meant.parts)
        meant = replace(meant, parts=parts, stop=Stop.FILTERED)
    if upstream == "messages":
        return meant
    if upstream == "gemini":
        stop = ONLY_MESSAGES.get(meant.stop, meant.stop)
        return replace(meant, stop=stop, sequence=None, tokens=replace(meant.tokens, written=0))
    stop = ONLY_MESSAGES.get(meant.stop, meant.stop)
    return replace(meant, stop=stop, sequence=None, explanation=None)


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def runs(parts: tuple[Part, ...]) -> list[list[Part]]:
    """The parts in order, neighbouring calls together: they may be streamed side by side."""
    out: list[list[Part]] = []
    for part in parts:
        if out and isinstance(part, CallTool) and isinstance(out[-1][-1], CallTool):
            out[-1].append(part)
        else:
            out.append([part])
    return out


def woven(calls: list[Part]) -> list[tuple[int, str]]:
    """The arguments of several calls in turns: (which call, the next piece of its arguments)."""
    queues = [pieces(call.arguments) if isinstance(call, CallTool) else [] for call in calls]
    out: list[tuple[int, str]] = []
    while any(queues):
        out += [(place, queue.pop(0)) for place, queue in enumerate(queues) if queue]
    return out
