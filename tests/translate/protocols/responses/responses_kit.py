"""What the tests of the Responses protocol share: fixtures, short ways in and out, and the openai SDK as a judge."""

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import httpx2
import msgspec
from openai import OpenAI
from openai.types.responses import Response

from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.events import Closed, Delta, Ended, Event, Opened, Started, Stop, TextBlock
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.ports import Issuer, ReplyContext
from dragoman.translate.hub.request import Request
from dragoman.translate.protocols.responses import PROTOCOL
from laws import run
from narrowing import expect_all
from wire_json import JsonObject

FIXTURES = Path(__file__).parents[3] / "fixtures" / "responses"
ISSUER = Issuer("openai", "gpt-5.5")
STREAMS = sorted(path.stem for path in FIXTURES.glob("*.sse"))

assert PROTOCOL.client
assert PROTOCOL.upstream
CLIENT = PROTOCOL.client
UPSTREAM = PROTOCOL.upstream


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


class Reader:
    """Framer and decoder as one machine: bytes in, events out."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._framer = SseFramer()
        self._decoder = UPSTREAM.decoder(ISSUER, Ledger() if ledger is None else ledger)

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for frame in self._framer.feed(chunk) for event in self._decoder.feed(frame)]

    def finish(self) -> list[Event]:
        rest = [event for frame in self._framer.finish() for event in self._decoder.feed(frame)]
        return [*rest, *self._decoder.finish()]


def events_of(stream: bytes, ledger: Ledger | None = None) -> list[Event]:
    return run(Reader(ledger), [stream])


def event_bytes(type_: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type_.encode(), msgspec.json.encode({"type": type_, **fields}))


def join_deltas(events: Iterable[Event]) -> list[Event]:
    """Neighbouring deltas of one block as one; log probabilities stay with their own delta."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if (
            isinstance(event, Delta)
            and isinstance(last, Delta)
            and event.block == last.block
            and event.logprobs is last.logprobs is None
        ):
            out[-1] = Delta(event.block, last.text + event.text)
        else:
            out.append(event)
    return out


def make_context(
    request: Request | None = None, now: Callable[[], float] = lambda: 1794700002.9, responses_done: bool = True
) -> ReplyContext:
    numbers = count(1)
    return ReplyContext(
        request=request or Request(protocol="responses", model="gpt-x", turns=()),
        model="gpt-x",
        created=1794700000,
        new_id=lambda prefix: f"{prefix}{next(numbers):04}",
        now=now,
        responses_done=responses_done,
    )


def encode_events(events: Iterable[Event], with_: ReplyContext | None = None, ledger: Ledger | None = None) -> bytes:
    machine = CLIENT.encoder(with_ or make_context(), Ledger() if ledger is None else ledger)
    return b"".join(run(machine, events))


def parse_body(body: object, ledger: Ledger | None = None) -> Request:
    return CLIENT.parse(msgspec.json.encode(body), Ledger() if ledger is None else ledger)


def payloads(stream: bytes) -> list[JsonObject]:
    frames = expect_all(Frame, run(SseFramer(), [stream]))
    return [msgspec.json.decode(frame.data) for frame in frames if frame.data != b"[DONE]"]


def client_over(stream: bytes, content_type: str = "text/event-stream") -> OpenAI:
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=stream, headers={"content-type": content_type})

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    return OpenAI(api_key="sk-fake-0", base_url="http://127.0.0.1:9/v1", http_client=transport, max_retries=0)


def judge_reply(stream: bytes) -> Response:
    """The reply as the SDK's own accumulator ends with it."""
    with client_over(stream).responses.stream(model="gpt-x", input="hi") as accumulating:
        return accumulating.get_final_response()


STARTED = Started("msg_upstream", "claude-x")


HELLO: list[Event] = [STARTED, Opened(0, TextBlock()), Delta(0, "Hel"), Delta(0, "lo"), Closed(0), Ended(Stop.END)]


def types(stream: bytes) -> list[object]:
    return [payload["type"] for payload in payloads(stream)]


def terminal(stream: bytes) -> JsonObject:
    response = payloads(stream)[-1]["response"]
    assert isinstance(response, dict)
    return response


def losses(ledger: Ledger) -> list[tuple[str, LossKind]]:
    return [(loss.path, loss.how) for loss in ledger]
