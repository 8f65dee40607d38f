"""Short ways to speak Messages in tests: fixtures as bytes, decoding, encoding, parsing and building."""

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

import msgspec
import pytest

from dragoman.config.settings import Effort
from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.ports import Issuer, ReplyContext
from dragoman.translate.hub.profile import Profile, Target
from dragoman.translate.hub.request import Request, Role, Text, Turn
from dragoman.translate.protocols.messages import PROTOCOL
from laws import run
from request_fields import set_fields
from wire_json import JsonObject

assert PROTOCOL.client is not None
assert PROTOCOL.upstream is not None
CLIENT = PROTOCOL.client
UPSTREAM = PROTOCOL.upstream

ISSUER = Issuer("anthropic", "claude-test")
BUDGETS = msgspec.structs.asdict(Effort())
FIXTURES = Path(__file__).parents[3] / "fixtures" / "messages"
APPROXIMATED, DROPPED, INVENTED = LossKind.APPROXIMATED, LossKind.DROPPED, LossKind.INVENTED
STREAMS = sorted(path.stem for path in FIXTURES.glob("*.sse"))


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


class ByteDecoder:
    """Framer and decoder as one machine."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._framer = SseFramer()
        self._decoder = UPSTREAM.decoder(ISSUER, Ledger() if ledger is None else ledger)

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for frame in self._framer.feed(chunk) for event in self._decoder.feed(frame)]

    def finish(self) -> list[Event]:
        rest = [event for frame in self._framer.finish() for event in self._decoder.feed(frame)]
        return [*rest, *self._decoder.finish()]


def decode(stream: bytes, ledger: Ledger | None = None) -> list[Event]:
    return run(ByteDecoder(ledger), [stream])


def frames(stream: bytes) -> list[JsonObject]:
    """The data of every event, whose name must be its type."""
    out: list[JsonObject] = []
    for frame in run(SseFramer(), [stream]):
        assert isinstance(frame, Frame)
        data = msgspec.json.decode(frame.data, type=JsonObject)
        assert data["type"] == frame.event
        out.append(data)
    return out


def make_context(request: Request | None = None) -> ReplyContext:
    numbers = count(1)
    plain = Request("messages", "claude-asked", ())
    return ReplyContext(
        request or plain,
        "claude-asked",
        1_700_000_000,
        lambda prefix: f"{prefix}{next(numbers)}",
        lambda: 1_700_000_001,
    )


def encode(events: Iterable[Event], ledger: Ledger | None = None) -> bytes:
    return b"".join(run(CLIENT.encoder(make_context(), Ledger() if ledger is None else ledger), events))


def whole(events: Iterable[Event], ledger: Ledger | None = None) -> JsonObject:
    body = CLIENT.encode_whole(events, make_context(), Ledger() if ledger is None else ledger)
    return msgspec.json.decode(body, type=JsonObject)


def parse(body: object, ledger: Ledger | None = None) -> Request:
    return CLIENT.parse(msgspec.json.encode(body), Ledger() if ledger is None else ledger)


def build(
    request: Request,
    profile: Profile | None = None,
    ledger: Ledger | None = None,
    budgets: dict[str, int] | None = None,
) -> JsonObject:
    target = Target("claude-up", "anthropic", profile or Profile(), {**BUDGETS, **(budgets or {})})
    body = UPSTREAM.build(request, target, Ledger() if ledger is None else ledger)
    return msgspec.json.decode(body, type=JsonObject)


def chat(turns: Sequence[Turn] = (), **fields: object) -> Request:
    """A request of a Chat client."""
    text = turns or (Turn(Role.USER, (Text("hi", "/messages/0/content"),), "/messages/0"),)
    return set_fields(Request("chat", "asked-model", tuple(text)), **fields)


def losses(ledger: Ledger) -> dict[str, LossKind]:
    return {loss.path: loss.how for loss in ledger}


def build_body(
    request: Request, profile: Profile | None = None, budgets: dict[str, int] | None = None
) -> tuple[JsonObject, dict[str, LossKind]]:
    """The body, and the losses without the invented cap."""
    ledger = Ledger()
    body = build(request, profile, ledger, budgets)
    recorded = losses(ledger)
    if request.max_tokens is None:
        assert recorded.pop("/max_tokens") is LossKind.INVENTED
    return body, recorded


def refusal_at(request: Request, profile: Profile | None = None) -> str | None:
    with pytest.raises(RequestError) as refused:
        build(request, profile)
    return refused.value.failure.at
