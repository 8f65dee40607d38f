"""The gateway's own id finds a request; the client's is sent back and shown, and identifies nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import asking
from asking import Reply
from gateway import Running, running
from server.api.rig import capture_all, wait_for_captures
from tables import each_row
from wire_json import JsonObject

OWN, CLIENTS = "x-dragoman-request-id", "x-request-id"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    with running(capture_all(tmp_path), tmp_path, stored=["someone"]) as started:
        yield started


def ask(gateway: Running, text: str, request_id: str, protocol: str = "chat", model: str = "echo") -> Reply:
    return asking.ask(gateway, protocol, model, text, headers={CLIENTS: request_id})


def list_requests(gateway: Running, query: str = "") -> list[JsonObject]:
    found: list[JsonObject] = asking.send(gateway, "GET", f"/api/v1/requests?{query}").json["requests"]
    return found


def test_requests_that_share_a_clients_id_have_rows_and_captures_of_their_own(gateway: Running) -> None:
    replies = [ask(gateway, text, "same") for text in ("first question", "second question")]
    assert [reply.headers[CLIENTS] for reply in replies] == ["same", "same"]
    first, second = (reply.headers[OWN] for reply in replies)
    assert first != second
    wait_for_captures(gateway, 2)
    rows = list_requests(gateway)
    assert [(row["request_id"], row["client_request_id"]) for row in rows] == [(second, "same"), (first, "same")]
    assert [row["captured"] for row in rows] == [True, True]
    for id, text in ((first, "first question"), (second, "second question")):
        capture = asking.send(gateway, "GET", f"/api/v1/captures/{id}").json
        assert text in capture["request"]["body"]
        assert (capture["summary"]["request_id"], capture["summary"]["client_request_id"]) == (id, "same")
    assert asking.send(gateway, "GET", "/api/v1/captures/same").status == 404
    assert list_requests(gateway, "q=client_request_id:same") == rows
    assert list_requests(gateway, "q=request_id:same") == []


@each_row("given", ["..", ".", "a:b", "req_0123456789abcdef00000001", "x" * 128])
def test_a_client_cannot_hide_a_request_by_its_id(gateway: Running, given: str) -> None:
    reply = ask(gateway, "Hello", given)
    assert reply.headers[CLIENTS] == given
    own = reply.headers[OWN]
    assert own.startswith("req_")
    assert own != given
    assert gateway.capture(own).client_request_id == given
    assert asking.send(gateway, "GET", f"/api/v1/captures/{own}").status == 200
    assert gateway.outcome(own).client_request_id == given


@each_row("given", ["a b", "x" * 129, "<img>", "é", ""])
def test_a_long_or_odd_id_is_ignored(gateway: Running, given: str) -> None:
    reply = asking.ask(gateway, "chat", "echo", headers={CLIENTS: given})
    assert reply.headers[CLIENTS] == reply.headers[OWN]
    assert gateway.outcome(reply.headers[OWN]).client_request_id == ""


def test_a_client_cannot_choose_the_gateways_id(gateway: Running) -> None:
    reply = asking.ask(gateway, "chat", "echo", headers={OWN: "req_mine", CLIENTS: "mine"})
    assert reply.headers[OWN] != "req_mine"
    assert [value for name, value in reply.fields if name == OWN] == [reply.headers[OWN]]


@each_row(
    ("protocol", "model"), [(protocol, model) for protocol in asking.CLIENTS for model in ("echo", "no-such-model")]
)
def test_every_response_has_both_ids(gateway: Running, protocol: str, model: str) -> None:
    reply = ask(gateway, "Hello", "mine", protocol, model)
    own = reply.headers[OWN]
    assert (reply.headers[CLIENTS], own[:4]) == ("mine", "req_")
    if protocol == "messages":
        assert reply.headers["request-id"] == own
        assert reply.status == 200 or reply.json["request_id"] == own


@each_row(
    ("method", "path"),
    [
        ("GET", "/health"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
        ("PUT", "/v1/models"),
        ("GET", "/api/v1/models"),
        ("GET", "/api/v1/captures/none"),
        ("GET", "/console"),
        ("GET", "/v1/responses/resp_none"),
    ],
)
def test_every_path_sends_both_ids(gateway: Running, method: str, path: str) -> None:
    reply = asking.send(gateway, method, path, headers={CLIENTS: "mine"})
    assert (reply.headers[CLIENTS], reply.headers[OWN][:4]) == ("mine", "req_")
    without = asking.send(gateway, method, path)
    assert without.headers[CLIENTS] == without.headers[OWN]
    assert asking.send(gateway, method, path, key="dgm_wrong").headers[OWN][:4] == "req_"
