"""GET /api/v1/requests and its export: pages, filters, and what each key may see."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

import asking
from gateway import KEY, Running, running
from server.api.rig import capture_all, chat, wait_for_captures
from tables import each_row
from wire_json import Json

IDS = [f"req_own_{number}" for number in range(3)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("requests"))
    with running(capture_all(directory), directory, stored=["alice", "bob"]) as started:
        for request_id in IDS:
            assert chat(started, started.keys["alice"], request_id=request_id) == 200
        assert chat(started, started.keys["bob"], "=2+5", request_id="req_bob") == 404
        assert chat(started, KEY, request_id="req_environment") == 200
        wait_for_captures(started, len(IDS) + 2)
        yield started


def search(gateway: Running, query: str = "", key: str = KEY) -> Json:
    found = asking.send(gateway, "GET", f"/api/v1/requests?{query}", key=key)
    assert found.status == 200, found.body
    assert found.headers["cache-control"] == "no-store"
    return found.json


def ids(body: Json) -> list[str]:
    """Return the ids that the clients have given to their requests."""
    return [row["client_request_id"] for row in body["requests"]]


def test_the_owner_sees_all_requests_newest_first(gateway: Running) -> None:
    body = search(gateway)
    assert ids(body) == ["req_environment", "req_bob", *reversed(IDS)]
    assert sorted(body["names"].values()) == ["alice", "bob", "environment"]
    assert body["next"] is None
    row = body["requests"][-1]
    assert (row["route"], row["outcome"], row["client_protocol"], row["captured"]) == ("echo/echo", "ok", "chat", True)


def test_a_client_key_sees_its_own_requests_whatever_it_requests(gateway: Running) -> None:
    alice = gateway.keys["alice"]
    for query in ("", "q=key:bob", "q=key:!alice", "q=key:*", "q=req_bob", "q=key:environment", "q=outcome:!ok"):
        body = search(gateway, query, alice)
        assert set(ids(body)) <= set(IDS), query
        assert set(body["names"].values()) <= {"alice"}, query
    assert ids(search(gateway, "q=key:alice", alice)) == list(reversed(IDS))
    assert ids(search(gateway, "q=key:bob", alice)) == []


@each_row(
    ("query", "expected"),
    [
        ("q=key:alice", list(reversed(IDS))),
        ("q=outcome:!ok", ["req_bob"]),
        ("q=route:echo/*+after:1h+key:!alice", ["req_environment"]),
        ("q=client_request_id:req_own_1", ["req_own_1"]),
        ("q=before:1h", []),
        ("q=duration%3E1h", []),
    ],
)
def test_a_filter_restricts_the_list(gateway: Running, query: str, expected: list[str]) -> None:
    assert ids(search(gateway, query)) == expected


def test_a_cursor_leads_through_all_pages(gateway: Running) -> None:
    seen, cursor = [], ""
    for _ in range(10):
        body = search(gateway, f"limit=2{cursor}")
        seen += ids(body)
        if body["next"] is None:
            break
        cursor = f"&cursor={body['next']}"
    assert seen == ["req_environment", "req_bob", *reversed(IDS)]


@each_row(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("cursor=%21", "cursor"),
        ("cursor=AAAA", "cursor"),
        (f"cursor={'AAAA' * 8}", "cursor"),  # as long as those of an earlier version
        ("q=colour:red", "q"),
        ("offset=5", "offset"),
    ],
)
def test_a_bad_parameter_is_named(gateway: Running, query: str, field: str) -> None:
    found = asking.send(gateway, "GET", f"/api/v1/requests?{query}")
    assert (found.status, found.json["error"]["field"]) == (400, field)
    assert found.json["error"]["request_id"] == found.headers["x-dragoman-request-id"]
    assert (found.headers["cache-control"], found.headers["x-content-type-options"]) == ("no-store", "nosniff")


def test_a_key_in_the_query_is_no_filter(gateway: Running) -> None:
    found = asking.send(gateway, "GET", f"/api/v1/requests?key={KEY}", key=None)
    assert found.status == 200


def test_the_export_has_the_rows_of_the_query_and_no_formula(gateway: Running) -> None:
    exported = asking.send(gateway, "GET", "/api/v1/requests/export?q=key:bob")
    assert exported.headers["content-type"].startswith("text/csv")
    assert "attachment" in exported.headers["content-disposition"]
    [row] = csv.DictReader(io.StringIO(exported.body.decode()))
    assert (row["client_request_id"], row["requested_model"], row["outcome"]) == ("req_bob", "'=2+5", "not_found")
    as_json = asking.send(gateway, "GET", "/api/v1/requests/export?format=json")
    assert [one["client_request_id"] for one in as_json.json] == ids(search(gateway))
    own = asking.send(gateway, "GET", "/api/v1/requests/export?format=json", key=gateway.keys["alice"])
    assert {one["client_request_id"] for one in own.json} == set(IDS)
    assert asking.send(gateway, "GET", "/api/v1/requests/export?format=json&q=before:1h").json == []
    assert asking.send(gateway, "GET", "/api/v1/requests/export?format=xml").json["error"]["field"] == "format"
