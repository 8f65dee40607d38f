"""Limits of several gateways on one Valkey, over their sockets: requests a minute and at a time, exact for all."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from dragoman.store.meter import Level
from fakes.upstream import Answer, FakeUpstream, Gate
from gateway import Running, provider_section
from narrowing import present
from raw_http import get, post
from tenancy.meters import PATIENT_S
from valkey_server import ValkeyServer
from waiting import wait_until
from wire_json import Json

if TYPE_CHECKING:
    from postgres import Postgres

SHARED = '[store]\nshared = "env:SHARED"\n[[prices]]\nmodel = "*"\ninput = 1.0\noutput = 10.0\n'
BODY = b'{"model": "up/gpt-5", "messages": [{"role": "user", "content": "Hello"}]}'
REPLY = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
GATEWAYS = 3
COST = 11_000  # nanodollars of such a request
NO_WAIT_S = 1.5  # less than PostgreSQL may take to answer, on a busy machine


@contextmanager
def run_gateways(directory: Path, toml: str, valkey: ValkeyServer, url: str = "") -> Iterator[list[Running]]:
    """Run three gateways on one Valkey, and on one database or a file for each."""
    with ExitStack() as stack:
        gateways = []
        for number in range(GATEWAYS):
            home = directory / str(number)
            home.mkdir()
            running = Running(SHARED + toml, home, {"SHARED": valkey.url}, (f"key {number}",), store_url=url)
            gateways.append(stack.enter_context(running))
            present(running.app.shared).deadline_s = PATIENT_S  # a missed deadline is one's own share
        yield gateways


def ask(gateway: Running) -> int:
    [key] = gateway.keys.values()
    return post(gateway.port, "/v1/chat/completions", BODY, key=key).status


def play(upstream: FakeUpstream, gate: Gate | None = None) -> str:
    """Let an upstream answer every request, and return its section."""
    upstream.answers = [Answer(msgspec.json.encode(REPLY), content_type="application/json", gate=gate)]
    return provider_section("chat", upstream.url)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_requests_a_minute_are_exact_for_three_gateways(
    tmp_path: Path, valkey: ValkeyServer, request: pytest.FixtureRequest, kind: str
) -> None:
    url = request.getfixturevalue("postgres").empty_database() if kind == "postgresql" else ""
    limits = "[limits]\nrequests_per_min = 30\nusd_per_month = 1000\n"
    with FakeUpstream() as upstream, run_gateways(tmp_path, limits + play(upstream), valkey, url) as gateways:
        began = time.monotonic()
        with ThreadPoolExecutor(12) as threads:
            statuses = [*threads.map(ask, gateways * 20)]
        assert set(statuses) == {200, 429}
        assert 30 <= statuses.count(200) <= 31 + (time.monotonic() - began) / 2


def test_requests_at_a_time_are_exact_for_three_gateways(tmp_path: Path, valkey: ValkeyServer) -> None:
    opened = threading.Event()
    with FakeUpstream() as upstream:
        toml = "[limits]\nconcurrent = 4\n" + play(upstream, Gate(opened, -1))
        with run_gateways(tmp_path, toml, valkey) as gateways, ThreadPoolExecutor(12) as threads:
            pending = [threads.submit(ask, gateway) for gateway in gateways * 4]
            wait_until(lambda: sum(one.done() for one in pending) == 8)
            opened.set()
            statuses = sorted(one.result() for one in pending)
            assert statuses == [200] * 4 + [429] * 8
            for gateway in gateways:
                assert ask(gateway) == 200  # their slots are free again


@pytest.mark.rest
def test_while_postgresql_is_out_requests_are_refused_soon_and_leave_no_slot(
    tmp_path: Path, valkey: ValkeyServer, postgres: "Postgres"
) -> None:
    url = postgres.empty_database()
    limits = "[limits]\nconcurrent = 5\nusd_per_month = 1000\n"
    with FakeUpstream() as upstream, run_gateways(tmp_path, limits + play(upstream), valkey, url) as gateways:
        first = gateways[0]
        assert ask(first) == 200
        postgres.stop()
        try:
            for _ in range(3):
                assert ask(first) in (429, 503)
            wait_until(lambda: read_ready(first) == {"status": "degraded", "degraded": ["store"]})
            began = time.monotonic()
            assert ask(first) in (429, 503)
            assert time.monotonic() - began < NO_WAIT_S
        finally:
            postgres.start()
        wait_until(lambda: read_ready(first) == {"status": "ready"})
        wait_until(lambda: ask(first) == 200)
        wait_until(lambda: count_slots(first) == 0)


@pytest.mark.rest
def test_while_postgresql_is_out_rates_hold_though_dollars_may_pass_and_these_count_later(
    tmp_path: Path, valkey: ValkeyServer, postgres: "Postgres"
) -> None:
    limits = '[limits]\nrequests_per_min = 30\nusd_per_total = 1000\non_outage = "open"\n'
    url = postgres.empty_database()
    with FakeUpstream() as upstream, run_gateways(tmp_path, limits + play(upstream), valkey, url) as gateways:
        assert [ask(gateway) for gateway in gateways] == [200] * GATEWAYS
        wait_until(lambda: read_level(gateways[0], "all:usd:total").spent == GATEWAYS * COST)
        began = time.monotonic()
        postgres.stop()
        try:
            statuses = [ask(gateway) for gateway in gateways * 12]
            assert set(statuses) == {200, 429}
            assert 27 <= statuses.count(200) <= 28 + (time.monotonic() - began) / 2
        finally:
            postgres.start()
        spent = (GATEWAYS + statuses.count(200)) * COST
        wait_until(lambda: read_level(gateways[0], "all:usd:total").spent == spent)


@pytest.mark.rest
def test_ready_says_that_postgresql_is_out_though_nothing_is_limited(tmp_path: Path, postgres: "Postgres") -> None:
    toml = '[providers.echo]\nkind = "echo"\n'
    with Running(toml, tmp_path, stored=("laptop",), store_url=postgres.empty_database()) as gateway:
        assert read_ready(gateway) == {"status": "ready"}
        postgres.stop()
        try:
            wait_until(lambda: read_ready(gateway) == {"status": "degraded", "degraded": ["store"]})
        finally:
            postgres.start()
        wait_until(lambda: read_ready(gateway) == {"status": "ready"})


def read_ready(gateway: Running) -> Json:
    return msgspec.json.decode(get(gateway.port, "/ready").body)


def count_slots(gateway: Running) -> int:
    return read_level(gateway, "all:concurrent").running


def read_level(gateway: Running, counter: str) -> Level:
    levels = asyncio.run_coroutine_threadsafe(gateway.app.meter.read([counter]), gateway.loop).result(60)
    return levels[0] if levels else Level(counter)
