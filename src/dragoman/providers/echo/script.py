"""A request comes in; the events of echo's reply go out, and how the reply stops."""

import base64
import hashlib
import re
from collections.abc import Callable
from enum import Enum

import msgspec
from msgspec import Struct

from dragoman.hub.events import (
    Block,
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.request import Custom, Request, Shape
from dragoman.hub.usage import Usage
from dragoman.providers.echo.hearing import (
    WantedCall,
    input_words,
    last_text,
    results_text,
    wanted_calls,
    wants_thinking,
)
from dragoman.providers.echo.instance import instance
from dragoman.providers.echo.models import FAILS_MIDWAY

ISSUER = "echo"

_WORD = re.compile(r"\S+\s*|\s+")


class Finish(Enum):
    """What happens after the last event."""

    END = "end"
    SILENCE = "silence"  # the connection stays, and nothing comes


class Script(Struct, frozen=True):
    events: tuple[Event, ...]
    finish: Finish = Finish.END


def write(request: Request, mint: Callable[[str], str]) -> Script:
    """`mint` makes a fresh id from a prefix."""
    reply = _reply(request, mint)
    if request.model not in ("error-mid", "error-cut", "error-stall"):
        return Script(reply)
    said = [at for at, event in enumerate(reply) if isinstance(event, Delta)]
    begun = reply[: said[len(said) // 2] + 1] if said else reply[:1]
    if request.model == "error-mid":
        return Script((*begun, Failed(FAILS_MIDWAY)))
    return Script(begun, Finish.SILENCE if request.model == "error-stall" else Finish.END)


def words(text: str) -> list[str]:
    """Each word with the whitespace after it: joined, they are the text again."""
    return _WORD.findall(text)


class _Speaker:
    """Tells blocks word by word until the words allowed are spent."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._block = -1
        self.events: list[Event] = []
        self.spent = 0
        self.cut = False

    def say(self, what: Block, text: str, opaque: Opaque | None = None) -> None:
        self.cut |= self._most is not None and self.spent >= self._most
        if self.cut:
            return
        self._block += 1
        self.events.append(Opened(self._block, what))
        for word in words(text):
            if self._most is not None and self.spent >= self._most:
                self.cut = True
                break
            self.events.append(Delta(self._block, word))
            self.spent += 1
        if opaque is not None and not self.cut:
            self.events.append(OpaqueAdded(self._block, opaque))
        self.events.append(Closed(self._block))


def _reply(request: Request, mint: Callable[[str], str]) -> tuple[Event, ...]:
    heard = last_text(request)
    speaker = _Speaker(request.max_tokens)
    thought = 0
    if wants_thinking(request):
        _think(speaker, request, heard)
        thought = speaker.spent
    calls = wanted_calls(request, heard)
    sequence = None
    if calls:
        for call in calls:
            speaker.say(_call_block(call, mint), call.arguments)
    else:
        text, sequence = _stopped(_answer(request, heard), request.stop)
        if text:
            speaker.say(TextBlock(), text)
    asked = input_words(request)
    usage = Usage(input=asked, output=speaker.spent, reasoning=thought)
    end = _end(speaker.cut, sequence, called=bool(calls))
    return (Started(mint("echo_"), request.model, Usage(input=asked)), *speaker.events, UsageReported(usage), end)


def _think(speaker: _Speaker, request: Request, heard: str) -> None:
    thoughts = f"The user said: {heard}"
    signature = base64.b64encode(hashlib.sha256(thoughts.encode()).digest()).decode()
    hidden = request.reasoning is not None and request.reasoning.show == "omitted"
    opaque = Opaque(ISSUER, Form.SIGNATURE, signature, request.model)
    speaker.say(ThinkingBlock(), "" if hidden else thoughts, opaque)


def _answer(request: Request, heard: str) -> str:
    returned = results_text(request)
    text = returned if returned is not None else heard or "Nothing was said."
    if request.format is None or request.format.shape is Shape.TEXT or _is_object(text):
        return text
    made = instance(request.format.schema) if request.format.shape is Shape.SCHEMA else {"echo": text}
    return msgspec.json.encode(made).decode()


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _stopped(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The text up to the stop sequence that comes first, and that sequence."""
    found = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    if not found:
        return text, None
    at, stop = min(found)
    return text[:at], stop


def _call_block(call: WantedCall, mint: Callable[[str], str]) -> CallBlock:
    custom = isinstance(call.tool, Custom)
    return CallBlock(mint("call_"), call.tool.name, custom=custom, namespace=call.tool.namespace)


def _end(cut: bool, sequence: str | None, *, called: bool) -> Ended:
    if cut:
        return Ended(Stop.LENGTH)
    if sequence is not None:
        return Ended(Stop.STOP_SEQUENCE, sequence)
    return Ended(Stop.TOOL if called else Stop.END)
