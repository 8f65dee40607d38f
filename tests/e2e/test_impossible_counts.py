"""Counts that no upstream can mean are clamped and marked; metrics, rows, costs and clients survive all of them."""

import json
from collections.abc import Iterator
from itertools import product

import msgspec
import pytest

from dragoman.config.settings import PriceOverride
from dragoman.operate.metrics.otlp import span_attributes, span_message
from dragoman.operate.prices import Pricing
from dragoman.operate.usage.usage_writer import make_row
from dragoman.proxy.outcome import Outcome
from dragoman.translate.hub.usage import MAX_COUNT
from fakes.upstream import Answer
from mutations import Place, places, with_value
from rig import PROTOCOLS, Rig
from scripting import JSON

IMPOSSIBLE = (b"1e308", b"-1e308", b"-5", b"9" * 40, b"1e999", b"12.75", b'"12"', b"null", b"true", b"[]", b"{}")
USAGE: dict[str, dict[str, object]] = {
    "chat": {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_cache_hit_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
    "responses": {
        "input_tokens": 10,
        "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
        "output_tokens_details": {"reasoning_tokens": 1},
    },
    "messages": {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 3,
        "cache_creation": {"ephemeral_1h_input_tokens": 1},
        "output_tokens_details": {"thinking_tokens": 1},
        "server_tool_use": {"web_search_requests": 1},
    },
}


def whole(upstream: str, usage: bytes) -> bytes:
    match upstream:
        case "chat":
            choice = b'{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}'
            return b'{"id":"c","choices":[%b],"usage":%b}' % (choice, usage)
        case "responses":
            text = b'{"type":"message","content":[{"type":"output_text","text":"Hi"}]}'
            return b'{"id":"r","status":"completed","output":[%b],"usage":%b}' % (text, usage)
        case _:
            text = b'{"type":"text","text":"Hi"}'
            return b'{"type":"message","content":[%b],"stop_reason":"end_turn","usage":%b}' % (text, usage)


def make_stream(upstream: str, usage: bytes) -> bytes:
    match upstream:
        case "chat":
            chunk = b'{"id":"c","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}'
            return b'data: %b\n\ndata: {"id":"c","choices":[],"usage":%b}\n\ndata: [DONE]\n\n' % (chunk, usage)
        case "responses":
            return b'data: {"type":"response.completed","response":%b}\n\n' % whole(upstream, usage)
        case _:
            start = b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Hi"}}'
            stop = b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":%b}' % usage
            head = b'{"type":"message_start","message":{"id":"m","model":"m","usage":%b}}' % usage
            return b"".join(b"data: %b\n\n" % data for data in (head, start, stop, b'{"type":"message_stop"}'))


def numbers_in(value: object) -> Iterator[float]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def usages_in(client: str, answered: bytes) -> Iterator[object]:
    """Return every usage object that a client gets, whole or streamed."""
    lines = [line[6:] for line in answered.split(b"\n") if line.startswith(b"data: {")] or [answered]
    for response in map(json.loads, lines):
        for holder in (response, response.get("response"), response.get("message")):
            if isinstance(holder, dict) and holder.get("usage") is not None:
                yield holder["usage"]


def pair_up(places: list[Place]) -> Iterator[tuple[Place, bytes]]:
    """Pair every place with two values, and every value with some place."""
    for at, place in enumerate(places):
        yield from ((place, IMPOSSIBLE[(2 * at + number) % len(IMPOSSIBLE)]) for number in (0, 1))


@pytest.mark.parametrize("exhaustive", [False, pytest.param(True, marks=pytest.mark.rest)])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("upstream", PROTOCOLS)
def test_clients_rows_and_metrics_have_plausible_counts_whatever_an_upstream_reports(
    rig: Rig, upstream: str, stream: bool, exhaustive: bool
) -> None:
    write = make_stream if stream else whole
    found = list(places(USAGE[upstream]))
    for turn, (at, value) in enumerate(product(found, IMPOSSIBLE) if exhaustive else pair_up(found)):
        client = PROTOCOLS[turn % 3]
        usage = with_value(USAGE[upstream], at, value)
        rig.play(upstream, Answer(write(upstream, usage), content_type="text/event-stream" if stream else JSON))
        answered = rig.ask(client, upstream, stream=stream)
        assert answered.status == 200, (at, value, answered.body)
        if client != upstream:
            response = list(usages_in(client, answered.body))
            assert all(0 <= number <= 3 * MAX_COUNT for number in numbers_in(response)), (at, value, response)
        outcome = rig.gateway.outcome(answered.headers["x-request-id"])
        assert_survives(outcome)
    metrics = rig.send("GET", "/metrics")
    assert metrics.status == 200
    assert b"dragoman_tokens_total{" in metrics.body


def assert_survives(outcome: Outcome) -> None:
    assert outcome.usage is not None
    row = make_row(outcome, Pricing({}, [PriceOverride(model="*", input=1000.0, output=1000.0)]), 0)
    assert 0 <= (row.input_tokens or 0) <= 3 * MAX_COUNT
    assert row.cost_nano_usd is None or 0 <= row.cost_nano_usd < 2**63
    msgspec.json.encode(row)
    span_message(outcome, lambda provider: None, lambda size: b"1" * size)
    span_attributes(outcome, "p", "m", lambda provider: None)


@pytest.mark.parametrize("upstream", PROTOCOLS)
def test_a_clamped_count_is_not_called_reported(rig: Rig, upstream: str) -> None:
    usage = with_value(USAGE[upstream], next(iter(places(USAGE[upstream]))), b"-5")
    for client in PROTOCOLS:
        rig.play(upstream, Answer(whole(upstream, usage), content_type=JSON))
        answered = rig.ask(client, upstream, headers={"x-dragoman-explain": "1"})
        outcome = rig.gateway.outcome(answered.headers["x-request-id"])
        assert outcome.usage
        assert outcome.usage.source.value == "derived"
        if client != upstream:
            assert "/usage" in answered.headers["x-dragoman-loss-detail"]
