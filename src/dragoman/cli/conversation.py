"""The stream of a reply comes in; words go to stdout and thoughts to stderr as they come, and the whole reply out."""

import sys
import time
from collections.abc import Iterable
from typing import TextIO

import msgspec
from msgspec import Struct

from dragoman.cli.faults import Trouble
from dragoman.cli.screen import DIM, PLAIN, harmless, has_colour
from dragoman.framing.redaction import redact
from dragoman.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    Opened,
    RefusalBlock,
    Stop,
    TextBlock,
    ThinkingBlock,
)
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Issuer
from dragoman.hub.reply import Piece, Reply, collect
from dragoman.hub.usage import Usage
from dragoman.net.client import HttpResponse
from dragoman.protocols import PROTOCOLS


class Answered(Struct, frozen=True):
    """A reply, who gave it, and how long it took to begin and to end."""

    reply: Reply
    route: str
    first_s: float
    whole_s: float

    def raise_failure(self) -> None:
        if isinstance(self.reply.end, Failed):
            failure = self.reply.end.failure
            raise Trouble(redact(f"the reply broke off: {failure.message} ({failure.kind.value})"))


class Reader:
    """Reads a Messages stream with the same machines that read upstreams."""

    def __init__(self, answer: HttpResponse, screen: "Screen | None", silence_s: float) -> None:
        upstream = PROTOCOLS["messages"].upstream
        assert upstream is not None
        self._answer = answer
        self._screen = screen
        self._silence_s = silence_s
        self._framer = upstream.framer()
        self._decoder = upstream.decoder(Issuer("", ""), Ledger())
        self._events: list[Event] = []
        self._first_at: float | None = None

    async def read(self) -> Reply:
        while chunk := await self._answer.chunk(self._silence_s):
            for frame in self._framer.feed(chunk):
                self._take(frame)
        for frame in self._framer.finish():
            self._take(frame)
        self._see(self._decoder.finish())
        return collect(self._events)

    def first_s(self, began: float) -> float:
        return (self._first_at or time.monotonic()) - began

    def _take(self, frame: object) -> None:
        self._see(self._decoder.feed(frame))

    def _see(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Delta) and self._first_at is None:
                self._first_at = time.monotonic()
            self._events.append(event)
            if self._screen is not None:
                self._screen.show(event)


class Screen:
    """Words on stdout, so that a pipe gets nothing else; thoughts and calls on stderr."""

    def __init__(self) -> None:
        self._blocks: dict[int, Opened] = {}
        self._arguments: dict[int, list[str]] = {}
        self._open_line: TextIO | None = None  # the stream whose last line is unfinished
        self._dims = has_colour(sys.stderr)
        self._dimmed = False

    def show(self, event: Event) -> None:
        match event:
            case Opened(block=block, what=HostedBlock() as hosted):
                self._note(f"→ {hosted.kind} {_json(hosted.input)}")
            case Opened(block=block):
                self._blocks[block] = event
            case Delta(block=block, text=text):
                self._show_delta(block, text)
            case Closed(block=block):
                self._show_call(block)
            case Ended(stop=stop) if stop not in (Stop.END, Stop.TOOL):
                self._note(f"(stopped: {stop.value.replace('_', ' ')})")
            case _:
                pass

    def close(self) -> None:
        """Leaves the terminal as it was found."""
        self._set_dim(False)
        self._end_line()

    def conclude(self, answered: Answered, *, verbose: bool) -> None:
        if verbose:
            self._note(summary(answered))
        self.close()

    def _show_delta(self, block: int, text: str) -> None:
        match self._blocks[block].what:
            case TextBlock() | RefusalBlock():
                self._set_dim(False)
                self._write(sys.stdout, text)
            case ThinkingBlock():
                self._set_dim(True)
                self._write(sys.stderr, text)
            case CallBlock():
                self._arguments.setdefault(block, []).append(text)

    def _show_call(self, block: int) -> None:
        opened = self._blocks.get(block)
        if opened is not None and isinstance(opened.what, CallBlock):
            self._note(f"→ {opened.what.name} {''.join(self._arguments.get(block, []))}")

    def _note(self, text: str) -> None:
        self._end_line()
        self._set_dim(True)
        self._write(sys.stderr, f"{text}\n")
        self._set_dim(False)

    def _write(self, stream: TextIO, text: str) -> None:
        if self._open_line not in (None, stream):
            self._end_line()
        stream.write(harmless(text) if stream.isatty() else text)
        stream.flush()
        if text:
            self._open_line = None if text.endswith("\n") else stream

    def _end_line(self) -> None:
        if self._open_line is not None:
            self._open_line.write("\n")
            self._open_line.flush()
            self._open_line = None

    def _set_dim(self, dim: bool) -> None:
        if self._dims and dim != self._dimmed:
            sys.stderr.write(DIM if dim else PLAIN)
            sys.stderr.flush()
            self._dimmed = dim


def summary(answered: Answered) -> str:
    parts = [answered.route or answered.reply.model]
    if answered.reply.usage is not None:
        parts.append(_tokens(answered.reply.usage))
    parts.append(f"first word after {answered.first_s:.2f} s, all after {answered.whole_s:.2f} s")
    return " · ".join(parts)


def told(answered: Answered) -> dict[str, object]:
    """The reply as `--json` prints it."""
    reply = answered.reply
    return {
        "model": reply.model,
        "route": answered.route,
        "text": _joined(reply, TextBlock, RefusalBlock),
        "thinking": _joined(reply, ThinkingBlock),
        "calls": [_call(piece) for piece in reply.pieces if isinstance(piece.what, CallBlock)],
        "stop": reply.end.stop.value if isinstance(reply.end, Ended) else None,
        "usage": reply.usage,
    }


def _joined(reply: Reply, *kinds: type) -> str:
    return "".join(piece.text for piece in reply.pieces if isinstance(piece.what, kinds))


def _call(piece: Piece) -> dict[str, str]:
    assert isinstance(piece.what, CallBlock)
    return {"id": piece.what.id, "name": piece.what.name, "arguments": piece.text}


def _tokens(usage: Usage) -> str:
    cached = f" ({usage.cache_read} cached)" if usage.cache_read else ""
    thought = f" ({usage.reasoning} thinking)" if usage.reasoning else ""
    return f"{usage.input} tokens in{cached}, {usage.output} out{thought}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
