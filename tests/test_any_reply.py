"""Law 4 for replies: whatever stands in a whole body or in any field of any stream event, nothing raises.

What comes out is a reply, or a failure that is the upstream's and never ours.
"""

import json
import os
import random
from collections.abc import Iterator, Sequence
from itertools import count, islice, product

import msgspec
import pytest

from dragoman.translate.framing.sse import Broken, Frame
from dragoman.translate.hub.events import Event, Failed
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Client, Issuer, ReplyContext, Upstream
from dragoman.translate.hub.request import Request
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.stages.check_calls import CheckCalls
from dragoman.translate.stages.estimate_usage import EstimateUsage
from dragoman.translate.stages.guard import Guard, SerialiseBlocks
from dragoman.upstreams.codex.provider import fill_output
from dragoman.upstreams.copilot.response_fixes import ChoiceMerger, stabilize_ids
from fakes.eventstream import encode_message
from laws import run
from mutations import VALUES, Place, places, spoil_bytes, with_twin_key, with_value, without
from reply_bodies import FIXTURES, KIRO, WHOLE
from wire_json import Json

RUNS = int(os.environ.get("DRAGOMAN_MUTATIONS", "1500"))
# Every seventh combination, so that each place meets other values than the one before it. All of them: make test-rest.
SHARES = pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.rest)])
CLIENTS = ("chat", "responses", "messages", "gemini")
ISSUER = Issuer("up", "model-1", 200_000)


def upstream_of(protocol: str) -> Upstream:
    upstream = PROTOCOLS[protocol].upstream
    assert upstream
    return upstream


def client_of(protocol: str) -> Client:
    client = PROTOCOLS[protocol].client
    assert client
    return client


def context_for(client: str) -> ReplyContext:
    numbers = count()
    request = Request(client, "model-1", ())
    return ReplyContext(request, "model-1", 1, lambda prefix: f"{prefix}{next(numbers)}", lambda: 1.0)


def run_stages(events: list[Event], serial: bool) -> list[Event]:
    trips: list[str] = []
    for stage in (EstimateUsage(len, 1), CheckCalls(), *((SerialiseBlocks(),) if serial else ()), Guard(trips.append)):
        events = run(stage, events)
    assert not trips
    return events


def write_whole(events: list[Event], client: str) -> None:
    """As proxy/decoding.py does it: a body that is JSON, or a failure of the upstream's."""
    if isinstance(events[-1], Failed):
        assert events[-1].failure.kind is not Kind.BUG
        return
    assert failure_of_writing(run_stages(events, False), client) is not Kind.BUG


def failure_of_writing(events: list[Event], client: str) -> Kind | None:
    try:
        body = client_of(client).encode_whole(events, context_for(client), Ledger())
    except RequestError as refused:
        return refused.failure.kind
    json.loads(body)  # which takes numbers of any size
    return None


def read_whole(protocol: str, body: bytes) -> list[Event]:
    upstream = upstream_of(protocol)
    if upstream.decode_outline is not None:
        assert upstream.decode_outline(body, ISSUER, Ledger())
    events = upstream.decode_whole(body, ISSUER, Ledger())
    assert events
    return events


@SHARES
@pytest.mark.parametrize("protocol", WHOLE)
def test_no_value_in_any_place_of_a_whole_reply_raises(protocol: str, every: int) -> None:
    for number, body in enumerate(WHOLE[protocol]):
        for turn, (at, value) in enumerate(islice(product(places(body), VALUES), number % every, None, every)):
            write_whole(read_whole(protocol, with_value(body, at, value)), CLIENTS[(turn + number) % len(CLIENTS)])


@SHARES
@pytest.mark.parametrize("protocol", WHOLE)
def test_no_missing_or_doubled_key_of_a_whole_reply_raises(protocol: str, every: int) -> None:
    for body in WHOLE[protocol]:
        for at, client in islice(product(places(body), CLIENTS), 0, None, every):
            write_whole(read_whole(protocol, without(body, at)), client)
            for value in (b"null", b'"x"', b"[]", b"1"):
                write_whole(read_whole(protocol, with_twin_key(body, at, value)), client)


@SHARES
@pytest.mark.parametrize("protocol", WHOLE)
def test_no_byte_of_a_whole_reply_raises(protocol: str, every: int) -> None:
    chance = random.Random(12)
    bodies = [msgspec.json.encode(body) for body in WHOLE[protocol]]
    for turn in range(RUNS // every):
        body = spoil_bytes(chance.choice(bodies), chance)
        write_whole(read_whole(protocol, body), CLIENTS[turn % len(CLIENTS)])


NO_REPLY = (b"", b"null", b"[]", b'"x"', b"\xff", b'{"a":"\xff"}', b"[" * 100_000, b"{}", b"<html>")


@pytest.mark.parametrize("protocol", WHOLE)
def test_a_body_that_is_no_reply_at_all_is_a_failure(protocol: str) -> None:
    for body in NO_REPLY:
        [failed] = upstream_of(protocol).decode_whole(body, ISSUER, Ledger())
        assert isinstance(failed, Failed), body[:20]


# Streams


def frames_of(protocol: str) -> Iterator[list[Frame]]:
    for path in sorted((FIXTURES / protocol).glob("*.sse")):
        framer = upstream_of(protocol).framer()
        items = [*framer.feed(path.read_bytes()), *framer.finish()]
        yield [frame for frame in items if isinstance(frame, Frame)]


def event_places(frames: list[Frame]) -> Iterator[tuple[int, Json, Place]]:
    for number, frame in enumerate(frames):
        try:
            event = msgspec.json.decode(frame.data)
        except msgspec.DecodeError:
            continue
        for at in places(event):
            yield number, event, at


def translate(protocol: str, frames: Sequence[Frame | Broken], client: str) -> None:
    decoder = upstream_of(protocol).decoder(ISSUER, Ledger())
    encoder = client_of(client).encoder(context_for(client), Ledger())
    events = run_stages(run(decoder, frames), client_of(client).serial_blocks)
    assert not any(isinstance(event, Failed) and event.failure.kind is Kind.BUG for event in events)
    assert run(encoder, events)


@SHARES
@pytest.mark.parametrize("protocol", CLIENTS)
def test_no_value_in_any_field_of_any_event_raises(protocol: str, every: int) -> None:
    """Each kind of event has values in each of its fields."""
    seen: set[tuple[str, Place]] = set()
    turn = 0
    for frames in frames_of(protocol):
        for number, event, at in event_places(frames):
            kind = str(event.get("type")) if isinstance(event, dict) else ""
            if (kind, at) in seen:
                continue
            seen.add((kind, at))
            for value in VALUES[len(seen) % every :: every]:
                turn += 1
                spoilt = Frame(frames[number].event, with_value(event, at, value))
                translate(protocol, [*frames[:number], spoilt, *frames[number + 1 :]], CLIENTS[turn % len(CLIENTS)])


@SHARES
@pytest.mark.parametrize("protocol", CLIENTS)
def test_no_bytes_of_any_stream_raise(protocol: str, every: int) -> None:
    chance = random.Random(13)
    streams = [path.read_bytes() for path in sorted((FIXTURES / protocol).glob("*.sse"))]
    for turn in range(RUNS // every):
        framer = upstream_of(protocol).framer()
        body = spoil_bytes(chance.choice(streams), chance)
        items = [item for item in (*framer.feed(body), *framer.finish()) if isinstance(item, Frame | Broken)]
        translate(protocol, items, CLIENTS[turn % len(CLIENTS)])


@SHARES
@pytest.mark.parametrize("make", [fill_output, stabilize_ids, ChoiceMerger])
def test_no_bytes_make_a_providers_reply_fixes_raise(make: type, every: int) -> None:
    chance = random.Random(14)
    bodies = [msgspec.json.encode(body) for body in (*WHOLE["responses"], *WHOLE["chat"], *WHOLE["messages"])]
    bodies += [path.read_bytes() for path in sorted((FIXTURES / "responses").glob("*.sse"))]
    for _ in range(RUNS // every):
        run(make(), [spoil_bytes(chance.choice(bodies), chance)])
    for body in (body for group in WHOLE.values() for body in group):
        for at, value in islice(product(places(body), VALUES), 0, None, every):
            run(make(), [with_value(body, at, value)])


# Kiro, and error answers


GOOGLE_DETAILS: list[Json] = [
    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"},
    {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerDay"}]},
    {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "R", "metadata": {"a": "b"}},
]


def kiro_message(name: str, payload: bytes) -> bytes:
    return encode_message({":message-type": "event", ":event-type": name}, payload)


@SHARES
@pytest.mark.parametrize("name", KIRO)
def test_no_value_in_any_field_of_any_kiro_event_raises(name: str, every: int) -> None:
    before = kiro_message("assistantResponseEvent", b'{"content":"Hi"}')
    after = kiro_message("meteringEvent", b'{"unit":"credit","usage":0.5}')
    for payload in (KIRO[name], {name: KIRO[name]}):
        for turn, (at, value) in enumerate(islice(product(places(payload), VALUES), 0, None, every)):
            body = before + kiro_message(name, with_value(payload, at, value)) + after
            events = upstream_of("kiro").decode_whole(body, ISSUER, Ledger())
            write_whole(events, CLIENTS[turn % len(CLIENTS)])


@SHARES
@pytest.mark.parametrize("protocol", ["chat", "responses", "messages", "gemini", "kiro"])
def test_no_error_answer_raises(protocol: str, every: int) -> None:
    """Every reply that can be read can be encoded for a client."""
    read = upstream_of(protocol).read_error
    bodies: list[Json] = [
        {"error": {"message": "m", "type": "t", "code": "c", "param": None, "resets_at": 1, "resets_in_seconds": 1}},
        {"type": "error", "error": {"type": "t", "message": "m", "details": {"a": 1}}, "request_id": "r"},
        {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": GOOGLE_DETAILS}},
        {"__type": "a#ThrottlingException", "message": "m", "reason": "R"},
        {"detail": [{"msg": "m", "loc": ["body"]}], "message": "m", "status": 4, "code": 3},
    ]
    for body, status in product(bodies, (400, 429, 500)):
        for turn, (at, value) in enumerate(islice(product(places(body), VALUES), 0, None, every)):
            failure = read(status, {b"retry-after": b"soon"}, with_value(body, at, value))
            json.loads(client_of(CLIENTS[turn % len(CLIENTS)]).render_error(failure, "req_1").body)
