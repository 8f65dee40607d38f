"""Echo's models, and the events of its replies."""

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
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.request import Custom, Request, Shape
from dragoman.hub.usage import Usage
from dragoman.providers.echo.request_text import (
    RequestedCall,
    count_input_words,
    last_text,
    requested_calls,
    requests_thinking,
    results_text,
)
from dragoman.providers.echo.schema_example import make_example


class Pace(Struct, frozen=True):
    """How long a stream waits before its first word, and before every word."""

    first_s: float = 0.0
    word_s: float = 0.0


MODELS: tuple[tuple[str, str], ...] = (
    ("echo", "Repeats the last user text word by word; says `call NAME {json}`: calls that tool"),
    ("echo-think", "Thinks before it repeats"),
    ("slow", "Waits two seconds, then takes a quarter of a second for each word"),
    ("error-400", "Refuses the request as bad"),
    ("error-401", "Refuses the gateway's credential"),
    ("error-403", "Forbids the model"),
    ("error-404", "Does not know the model"),
    ("error-413", "Finds the request too large"),
    ("error-429", "Limits the rate, to be tried again in seven seconds"),
    ("error-500", "Fails on its own account"),
    ("error-529", "Is overloaded"),
    ("error-context", "Finds the prompt too long for its context window"),
    ("error-mid", "Fails in the middle of its reply"),
    ("error-cut", "Ends in the middle of its reply without saying so"),
    ("error-stall", "Falls silent in the middle of its reply"),
)

LISTED = ("echo", "echo-think")  # the others are for tests: asked for outright, as `echo/error-429`

# Longer than the gateway waits by itself, so that the client sees it.
RETRY_AFTER_S = 7.0

REFUSALS: dict[str, tuple[int, Failure]] = {
    "error-400": (400, Failure(Kind.BAD_REQUEST, "echo was asked to refuse this request", code="echo_bad_request")),
    "error-401": (401, Failure(Kind.CREDENTIAL, "echo was asked to refuse the credential")),
    "error-403": (403, Failure(Kind.FORBIDDEN, "echo was asked to forbid this model")),
    "error-404": (404, Failure(Kind.NOT_FOUND, "echo was asked not to know this model")),
    "error-413": (413, Failure(Kind.TOO_LARGE, "echo was asked to find this request too large")),
    "error-429": (429, Failure(Kind.RATE_LIMITED, "echo was asked to limit the rate", retry_after=RETRY_AFTER_S)),
    "error-500": (500, Failure(Kind.UPSTREAM, "echo was asked to fail")),
    "error-529": (529, Failure(Kind.OVERLOADED, "echo was asked to be overloaded")),
    "error-context": (400, Failure(Kind.CONTEXT_TOO_LONG, "prompt is too long: echo was asked to say so")),
}

FAILS_MIDWAY = Failure(Kind.OVERLOADED, "echo was asked to fail in the middle of its reply")
SLOW = Pace(first_s=2.0, word_s=0.25)


ISSUER = "echo"

_WORD = re.compile(r"\S+\s*|\s+")


class Finish(Enum):
    """What happens after the last event."""

    END = "end"
    SILENCE = "silence"  # the connection stays, and nothing comes


class Script(Struct, frozen=True):
    events: tuple[Event, ...]
    finish: Finish = Finish.END


def write_script(request: Request, mint: Callable[[str], str]) -> Script:
    """`mint` makes a fresh id from a prefix."""
    reply = _write_reply(request, mint)
    if request.model not in ("error-mid", "error-cut", "error-stall"):
        return Script(reply)
    said = [at for at, event in enumerate(reply) if isinstance(event, Delta)]
    begun = reply[: said[len(said) // 2] + 1] if said else reply[:1]
    if request.model == "error-mid":
        return Script((*begun, Failed(FAILS_MIDWAY)))
    return Script(begun, Finish.SILENCE if request.model == "error-stall" else Finish.END)


def split_words(text: str) -> list[str]:
    """Each word with the whitespace after it: joined, they are the text again."""
    return _WORD.findall(text)


class _ReplyBuilder:
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
        for word in split_words(text):
            if self._most is not None and self.spent >= self._most:
                self.cut = True
                break
            self.events.append(Delta(self._block, word))
            self.spent += 1
        if opaque is not None and not self.cut:
            self.events.append(OpaqueAdded(self._block, opaque))
        self.events.append(Closed(self._block))


def _write_reply(request: Request, mint: Callable[[str], str]) -> tuple[Event, ...]:
    heard = last_text(request)
    speaker = _ReplyBuilder(request.max_tokens)
    thought = 0
    if requests_thinking(request):
        _write_thinking(speaker, request, heard)
        thought = speaker.spent
    calls = requested_calls(request, heard)
    sequence = None
    if calls:
        for call in calls:
            speaker.say(_call_block(call, mint), call.arguments)
    else:
        text, sequence = _cut_at_stop(_answer_text(request, heard), request.stop)
        if text:
            speaker.say(TextBlock(), text)
    asked = count_input_words(request)
    usage = Usage(input=asked, output=speaker.spent, reasoning=thought)
    end = _make_end(speaker.cut, sequence, called=bool(calls))
    return (Started(mint("echo_"), request.model, Usage(input=asked)), *speaker.events, UsageReported(usage), end)


def _write_thinking(speaker: _ReplyBuilder, request: Request, heard: str) -> None:
    thoughts = f"The user said: {heard}"
    signature = base64.b64encode(hashlib.sha256(thoughts.encode()).digest()).decode()
    hidden = request.reasoning is not None and request.reasoning.show == "omitted"
    opaque = Opaque(ISSUER, Form.SIGNATURE, signature, request.model)
    speaker.say(ThinkingBlock(), "" if hidden else thoughts, opaque)


def _answer_text(request: Request, heard: str) -> str:
    returned = results_text(request)
    text = returned if returned is not None else heard or "Nothing was said."
    if request.format is None or request.format.shape is Shape.TEXT or _is_object(text):
        return text
    made = make_example(request.format.schema) if request.format.shape is Shape.SCHEMA else {"echo": text}
    return msgspec.json.encode(made).decode()


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _cut_at_stop(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The text up to the stop sequence that comes first, and that sequence."""
    found = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    if not found:
        return text, None
    at, stop = min(found)
    return text[:at], stop


def _call_block(call: RequestedCall, mint: Callable[[str], str]) -> CallBlock:
    custom = isinstance(call.tool, Custom)
    return CallBlock(mint("call_"), call.tool.name, custom=custom, namespace=call.tool.namespace)


def _make_end(cut: bool, sequence: str | None, *, called: bool) -> Ended:
    if cut:
        return Ended(Stop.LENGTH)
    if sequence is not None:
        return Ended(Stop.STOP_SEQUENCE, sequence)
    return Ended(Stop.TOOL if called else Stop.END)
