"""GET /api/v1/usage with steps and time zones, and the speed of routes: of all keys for the owner, else of one."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import asking
from gateway import KEY, Running, running
from server.api.rig import ECHO, chat
from tables import each_row
from wire_json import Json


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(ECHO, Path(tmp_path_factory.mktemp("usage")), stored=["alice", "bob"]) as started:
        for name, times in (("alice", 3), ("bob", 2)):
            for _ in range(times):
                assert chat(started, started.keys[name]) == 200
        yield started


def report(gateway: Running, query: str, key: str = KEY) -> Json:
    found = asking.send(gateway, "GET", f"/api/v1/usage?{query}", key=key)
    assert found.status == 200, found.body
    return found.json


def test_every_group_and_step_counts_all_requests(gateway: Running) -> None:
    for by, step in product(("all", "model", "key", "client", "provider"), ("quarter", "hour", "day", "all")):
        whole = report(gateway, f"by={by}&step={step}&time_zone=Europe/Berlin")
        assert sum(part["requests"] for part in whole["sums"]) == 5, (by, step)
        own = report(gateway, f"by={by}&step={step}", gateway.keys["alice"])
        assert (own["whole"], sum(part["requests"] for part in own["sums"])) == (False, 3), (by, step)


def test_the_names_of_keys_are_those_that_the_caller_may_see(gateway: Running) -> None:
    assert sorted(report(gateway, "by=key&step=all")["names"].values()) == ["alice", "bob"]
    own = report(gateway, "by=key&step=all", gateway.keys["bob"])
    assert list(own["names"].values()) == ["bob"]
    assert [own["names"][part["group"]] for part in own["sums"]] == ["bob"]


def test_the_speed_of_routes_is_reported(gateway: Running) -> None:
    found = asking.send(gateway, "GET", "/api/v1/usage/speed").json
    [route] = found["routes"]
    assert (found["whole"], route["route"], route["requests"]) == (True, "echo/echo", 5)
    assert 0 < route["ttft_p50_ms"] <= route["ttft_p95_ms"]
    own = asking.send(gateway, "GET", "/api/v1/usage/speed", key=gateway.keys["alice"]).json
    assert (own["whole"], [one["requests"] for one in own["routes"]]) == (False, [3])


@each_row(
    ("query", "field"),
    [
        ("by=colour", "by"),
        ("step=week", "step"),
        ("by=rows&step=day", "step"),
        ("by=day&step=hour", "step"),
        ("step=day&time_zone=Mars/Olympus", "time_zone"),
        ("step=day&time_zone=../../etc/passwd", "time_zone"),
        ("since_ms=yesterday", "since_ms"),
    ],
)
def test_a_bad_parameter_is_named(gateway: Running, query: str, field: str) -> None:
    found = asking.send(gateway, "GET", f"/api/v1/usage?{query}")
    assert (found.status, found.json["error"]["field"]) == (400, field)
