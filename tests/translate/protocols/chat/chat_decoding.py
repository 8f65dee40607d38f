"""Build Chat streams as bytes, and decode them."""

from pathlib import Path

import msgspec

from dragoman.translate.framing.sse import SseFramer
from dragoman.translate.hub.events import CallBlock, Ended, Event, Failed, Piece, Stop, collect
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.chat.decode import Decoder
from laws import run

FIXTURES = Path(__file__).parents[3] / "fixtures" / "chat"
STREAMS = sorted(FIXTURES.glob("*.sse"))
ISSUER = Issuer("there", "m-1")
USAGE = Usage(input=20, output=7, cache_read=8, cache_write=4, reasoning=3)


class Line:
    """The framer and the decoder, as they stand in a request's line."""

    def __init__(self) -> None:
        self._framer = SseFramer()
        self._decoder = Decoder(ISSUER, Ledger())

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for frame in self._framer.feed(chunk) for event in self._decoder.feed(frame)]

    def finish(self) -> list[Event]:
        rest = [event for frame in self._framer.finish() for event in self._decoder.feed(frame)]
        return rest + list(self._decoder.finish())


def decode(stream: bytes) -> list[Event]:
    return run(Line(), [stream])


def fixture(name: str) -> list[Event]:
    return decode((FIXTURES / name).read_bytes())


def decode_chunks(*chunks: object, done: bool = True) -> list[Event]:
    """Deltas of one choice as a stream; a str is a finish_reason, a dict with `choices` a whole chunk."""
    return decode(stream(*chunks, done=done))


def stream(*chunks: object, done: bool = True) -> bytes:
    wire = b""
    for chunk in chunks:
        match chunk:
            case str():
                body: object = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": chunk}]}
            case {"choices": _} | {"error": _}:
                body = chunk
            case _:
                body = {"id": "chatcmpl-1", "model": "m-1", "choices": [{"index": 0, "delta": chunk}]}
        wire += b"data: " + msgspec.json.encode(body) + b"\n\n"
    return wire + b"data: [DONE]\n\n" * done


def call(index: int | None = None, call_id: str | None = None, name: str | None = None, args: object = None) -> object:
    function = {"name": name, "arguments": args}
    return {"index": index, "id": call_id, "function": {k: v for k, v in function.items() if v is not None}}


def pieces(events: list[Event]) -> list[Piece]:
    return list(collect(events).pieces)


def calls(events: list[Event]) -> list[tuple[str, str, str]]:
    return [(p.what.id, p.what.name, p.text) for p in pieces(events) if isinstance(p.what, CallBlock)]


def stop_of(events: list[Event]) -> Stop:
    assert isinstance(events[-1], Ended), events[-1]
    return events[-1].stop


def failure_kind(events: list[Event]) -> Kind:
    assert isinstance(events[-1], Failed), events[-1]
    return events[-1].failure.kind
