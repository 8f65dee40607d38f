"""Replies independent of any protocol: the data by which the matrix is judged."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar


@dataclass(frozen=True)
class Text:
    text: str
    size: int = 5  # characters in each piece of a stream


@dataclass(frozen=True)
class Refusal:
    text: str
    size: int = 5


@dataclass(frozen=True)
class Thinking:
    text: str
    seal: str = ""  # what only the upstream can read: a signature, or encrypted content


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # JSON; "" as servers write it that were given none
    size: int = 5


Part = Text | Refusal | Thinking | ToolCall


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
class ScriptedReply:
    parts: tuple[Part, ...]
    stop: Stop = Stop.NATURAL
    tokens: Tokens = Tokens()
    sequence: str | None = None  # the stop string that was hit
    explanation: str | None = None  # of a refusal
    ending: Ending = Ending.PROPER

    def parts_of(self, kind: type[Kind]) -> list[Kind]:
        return [part for part in self.parts if isinstance(part, kind)]


NO_REFUSALS = ("messages", "gemini", "kiro")  # their refusals are text
ONLY_MESSAGES = {Stop.STOP_STRING: Stop.NATURAL, Stop.CONTEXT_FULL: Stop.CAP, Stop.PAUSE: Stop.NATURAL}


def limit_to_protocol(scripted: ScriptedReply, upstream: str) -> ScriptedReply:
    """Return the part of a reply that an upstream of this protocol can express."""
    if upstream in NO_REFUSALS and scripted.parts_of(Refusal):
        parts = tuple(Text(part.text) if isinstance(part, Refusal) else part for part in scripted.parts)
        scripted = replace(scripted, parts=parts, stop=Stop.FILTERED)
    if upstream == "messages":
        return scripted
    if upstream == "kiro":
        stop = ONLY_MESSAGES[Stop.STOP_STRING] if scripted.stop is Stop.STOP_STRING else scripted.stop
        counted = replace(scripted.tokens, reasoning=0)
        return replace(scripted, stop=stop, sequence=None, explanation=None, tokens=counted)
    if upstream == "gemini":
        stop = ONLY_MESSAGES.get(scripted.stop, scripted.stop)
        return replace(scripted, stop=stop, sequence=None, tokens=replace(scripted.tokens, written=0))
    stop = ONLY_MESSAGES.get(scripted.stop, scripted.stop)
    return replace(scripted, stop=stop, sequence=None, explanation=None)


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def group_calls(parts: tuple[Part, ...]) -> list[list[Part]]:
    """The parts in order, neighbouring calls together: they may be streamed side by side."""
    out: list[list[Part]] = []
    for part in parts:
        if out and isinstance(part, ToolCall) and isinstance(out[-1][-1], ToolCall):
            out[-1].append(part)
        else:
            out.append([part])
    return out


def interleave(calls: list[Part]) -> list[tuple[int, str]]:
    """The arguments of several calls in turns: (which call, the next piece of its arguments)."""
    queues = [pieces(call.arguments, call.size) if isinstance(call, ToolCall) else [] for call in calls]
    out: list[tuple[int, str]] = []
    while any(queues):
        out += [(place, queue.pop(0)) for place, queue in enumerate(queues) if queue]
    return out
