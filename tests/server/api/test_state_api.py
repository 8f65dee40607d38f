"""What the admin API says about the running gateway: models, accounts, settings, keys, doctor, captures, audit."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import asking
from dragoman.upstreams.credentials.cooldowns import CredentialCooldown
from gateway import KEY, Running, running
from server.api.rig import capture_all, chat, wait_for_captures

MORE = """
[[models]]
name = "fast-*"
to = ["echo/echo", "echo/*"]
[[prices]]
model = "echo/echo"
input = 1.5
output = 6
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("state"))
    with running(capture_all(directory) + MORE, directory, stored=["alice"]) as started:
        assert chat(started, started.keys["alice"], request_id="req_captured") == 200
        wait_for_captures(started, 1)
        yield started


def test_models_have_routes_targets_names_and_prices(gateway: Running) -> None:
    body = asking.send(gateway, "GET", "/api/v1/models").json
    [route] = body["routes"]
    assert (route["name"], [target["model"] for target in route["targets"]]) == ("fast-*", ["echo", "*"])
    assert [target["cooling_down_until"] for target in route["targets"]] == [None, None]
    model = body["models"][0]
    assert (model["provider"], model["model"], model["names"]) == ("echo", "echo", ["echo", "echo/echo"])
    assert model["usd_per_million"] == {"input": 1.5, "output": 6.0, "cache_read": None, "cache_write": None}
    assert [(one["name"], one["kind"], one["problem"]) for one in body["providers"]] == [("echo", "echo", "")]


def test_accounts_have_credentials_and_cooldowns(gateway: Running) -> None:
    [account] = asking.send(gateway, "GET", "/api/v1/accounts").json["accounts"]
    assert (account["provider"], account["kind"], account["has_quotas"]) == ("echo", "echo", False)
    assert [one["is_available"] for one in account["credentials"]] == [True]
    assert asking.send(gateway, "GET", "/api/v1/accounts/quotas").json == {"quotas": [], "problems": {}}


def is_available(gateway: Running) -> bool:
    [account] = asking.send(gateway, "GET", "/api/v1/accounts").json["accounts"]
    return bool(account["credentials"][0]["is_available"])


def test_the_cooldowns_of_a_provider_are_ended(gateway: Running) -> None:
    now = time.time()
    cooldowns = gateway.app.gateway.runtime.providers["echo"].account.cooldowns
    assert cooldowns is not None
    cooldowns.start_cooldown(0, CredentialCooldown("", now + 600, "quota"), now)
    assert not is_available(gateway)
    assert asking.send(gateway, "DELETE", "/api/v1/accounts/echo/cooldowns").json == {"ended": 1}
    assert is_available(gateway)
    assert asking.send(gateway, "GET", "/api/v1/audit").json["audit"][0]["action"] == "accounts.end_cooldowns"
    unknown = asking.send(gateway, "DELETE", "/api/v1/accounts/nothing/cooldowns")
    assert (unknown.status, unknown.json["error"]["field"]) == (404, "id")


def test_settings_have_their_origin(gateway: Running) -> None:
    body = asking.send(gateway, "GET", "/api/v1/config").json
    settings = {one["key"]: one for one in body["settings"]}
    assert settings["debug.capture"]["value"] == "all"
    assert settings["debug.capture"]["origin"].endswith("dragoman.toml:4")
    assert settings["server.max_body_mb"]["origin"] == "default"
    assert body["source"].endswith("dragoman.toml")


def test_keys_are_listed_without_their_secrets(gateway: Running) -> None:
    found = asking.send(gateway, "GET", "/api/v1/keys")
    [row] = found.json["keys"]
    assert (row["name"], row["role"], row["scopes"], row["version"]) == ("alice", "client", [], 1)
    assert found.json["environment_key"] is True
    assert gateway.keys["alice"].encode() not in found.body


def test_doctor_streams_its_findings(gateway: Running) -> None:
    found = asking.send(gateway, "GET", "/api/v1/doctor")
    assert found.headers["content-type"] == "application/x-ndjson"
    assert found.headers["transfer-encoding"] == "chunked"
    findings = [msgspec.json.decode(line) for line in found.body.splitlines()]
    assert {"configuration", "store", "client keys", "clock"} <= {finding["what"] for finding in findings}
    assert all(set(finding) == {"what", "state", "found", "to_do"} for finding in findings)


def test_reading_a_capture_leaves_a_row_in_the_audit_log(gateway: Running) -> None:
    [listed] = asking.send(gateway, "GET", "/api/v1/captures").json["captures"]
    id = listed["request_id"]
    assert listed["client_request_id"] == "req_captured"
    before = asking.send(gateway, "GET", "/api/v1/audit").json["audit"]
    found = asking.send(gateway, "GET", f"/api/v1/captures/{id}")
    assert {entry["side"] for entry in found.json["timeline"]} == {"upstream", "hub", "client"}
    assert "Hello" in found.json["request"]["body"]
    assert gateway.keys["alice"].encode() not in found.body
    first, *others = asking.send(gateway, "GET", "/api/v1/audit").json["audit"]
    assert others == before
    assert (first["actor"], first["action"], first["subject"]) == ("environment", "captures.read", id)
    assert first["address"] == "127.0.0.1"


def test_a_capture_that_does_not_exist_is_named(gateway: Running) -> None:
    for which in ("nothing", "..", "*", "%00"):
        found = asking.send(gateway, "GET", f"/api/v1/captures/{which}")
        assert (found.status, found.json["error"]["field"]) == (404, "id"), found.body
    for which in ("../store.db", "%2e%2e%2fdragoman.toml", "/etc/passwd"):
        assert asking.send(gateway, "GET", f"/api/v1/captures/{which}").status == 404


def test_an_unknown_parameter_is_named(gateway: Running) -> None:
    for path in ("models", "accounts", "accounts/quotas", "config", "keys", "doctor", "audit", "captures", "usage"):
        found = asking.send(gateway, "GET", f"/api/v1/{path}?colour=red", key=KEY)
        assert (found.status, found.json["error"]["field"]) == (400, "colour"), path


def test_an_unknown_parameter_of_a_write_is_named(gateway: Running) -> None:
    writes = [route for route in gateway.app.site.routes.routes if route.path.startswith("/api/v1/")]
    for route in writes:
        if route.method != "GET":
            path = f"{route.path.replace('{id}', 'x').replace('/*', '/x')}?colour=red"
            found = asking.send(gateway, route.method, path, body={})
            assert (found.status, found.json["error"]["field"]) == (400, "colour"), (route.method, route.path)


def test_a_capture_is_replayed_and_made_a_fixture(gateway: Running) -> None:
    id = gateway.outcome("req_captured").request_id
    replayed = asking.send(gateway, "POST", f"/api/v1/captures/{id}/replay", body={})
    assert (replayed.status, replayed.json["same"]) == (200, True), replayed.body
    assert all(set(part) == {"name", "size", "changes"} for part in replayed.json["parts"])
    fixture = asking.send(gateway, "POST", f"/api/v1/captures/{id}/fixture", body={})
    assert fixture.headers["content-disposition"] == f'attachment; filename="{id}.json"'
    assert fixture.json["request_id"] == id
    actions = [row["action"] for row in asking.send(gateway, "GET", "/api/v1/audit?limit=2").json["audit"]]
    assert actions == ["captures.fixture", "captures.replay"]
    for action in ("replay", "fixture"):
        odd = asking.send(gateway, "POST", f"/api/v1/captures/{id}/{action}", body={"colour": "red"})
        assert (odd.status, odd.json["error"]["field"]) == (400, "colour")
        unknown = asking.send(gateway, "POST", f"/api/v1/captures/nothing/{action}", body={})
        assert (unknown.status, unknown.json["error"]["field"]) == (404, "id")
