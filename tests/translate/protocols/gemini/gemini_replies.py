"""Write Gemini replies as bytes, and decode them as a request's pipe does."""

from pathlib import Path

import msgspec

from dragoman.translate.hub.events import Ended, Event, Failed, Reply, collect
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.request import Function
from dragoman.translate.protocols import PROTOCOLS
from laws import run
from wire_json import JsonObject

FIXTURES = Path(__file__).parents[3] / "fixtures" / "gemini"
STREAMS = sorted(FIXTURES.glob("*.sse"))
ISSUER = Issuer("gemini", "gemini-3.5-flash", tools=(Function("clock"),))
UPSTREAM = PROTOCOLS["gemini"].upstream
assert UPSTREAM is not None


class ByteDecoder:
    """The framer and the decoder of an upstream."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        assert UPSTREAM is not None
        self._framer = UPSTREAM.framer()
        self._decoder = UPSTREAM.decoder(ISSUER, Ledger() if ledger is None else ledger)

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for frame in self._framer.feed(chunk) for event in self._decoder.feed(frame)]

    def finish(self) -> list[Event]:
        rest = [event for frame in self._framer.finish() for event in self._decoder.feed(frame)]
        return [*rest, *self._decoder.finish()]


def chunk(
    *parts: JsonObject, finish: str | None = None, usage: JsonObject | None = None, **candidate: object
) -> JsonObject:
    content: JsonObject = {"content": {"role": "model", "parts": list(parts)}} if parts else {}
    ended: JsonObject = {"finishReason": finish} if finish else {}
    counts: JsonObject = {"usageMetadata": usage} if usage else {}
    return {"candidates": [{"index": 0, **content, **ended, **candidate}], "responseId": "r1", **counts}


def stream(*chunks: JsonObject) -> bytes:
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(each) for each in chunks)


def decode(data: bytes, ledger: Ledger | None = None) -> list[Event]:
    return run(ByteDecoder(ledger), [data])


def read(*chunks: JsonObject, ledger: Ledger | None = None) -> Reply:
    return collect(decode(stream(*chunks), ledger))


def read_whole(body: JsonObject) -> Reply:
    assert UPSTREAM is not None
    return collect(UPSTREAM.decode_whole(msgspec.json.encode(body), ISSUER, Ledger()))


def end_of(reply: Reply) -> Ended:
    assert isinstance(reply.end, Ended), reply.end
    return reply.end


def failure_of(events: list[Event]) -> Failure:
    failed = events[-1]
    assert isinstance(failed, Failed), failed
    return failed.failure
