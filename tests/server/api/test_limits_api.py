"""Limits over HTTP: what is set where, what the file keeps to itself, and who may change what."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import asking
from asking import Reply
from dragoman.tenancy.keys import ENVIRONMENT_KEY, KeyId, Scope
from gateway import Running, running
from server.api.rig import ECHO, chat, make_team_token, make_token
from tables import each_row
from waiting import wait_until
from wire_json import Json

PATH = "/api/v1/limits"
SETTINGS = f"""{ECHO}
[limits]
usd_per_month = 500
[limits.user]
usd_per_day = 20
[[limits.providers]]
names = ["echo"]
credits_per_month = 1000
[[teams]]
name = "ops"
members = ["anna@example.com"]
limits = {{ usd_per_day = 20 }}
each_user = {{ usd_per_day = 5 }}
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(SETTINGS, Path(tmp_path_factory.mktemp("limits")), stored=["someone"]) as started:
        yield started


def put(gateway: Running, where: str, body: object, **headers: str) -> Reply:
    return asking.send(gateway, "PUT", f"{PATH}/{where}", body=body, headers=headers)


def rows(gateway: Running, query: str = "") -> list[tuple[object, ...]]:
    listed = asking.send(gateway, "GET", f"{PATH}{query}").json["limits"]
    return [(row["scope"], row["name"], row["limit"], row["value"], row["origin"]) for row in listed]


def error(reply: Reply) -> tuple[int, object, object]:
    found = reply.json["error"]
    return reply.status, found["code"], found["field"]


def newest_audit(gateway: Running) -> Json:
    return asking.send(gateway, "GET", "/api/v1/audit?limit=1").json["audit"][0]


def test_what_the_file_sets_is_listed_and_cannot_be_changed(gateway: Running) -> None:
    listed = rows(gateway)
    for row in (
        ("all", "all", "usd_per_month", 500, "file"),
        ("team", "ops", "usd_per_day", 20, "file"),
        ("each_user", "ops", "usd_per_day", 5, "file"),
        ("user", "*", "usd_per_day", 20, "file"),
        ("provider", "echo", "credits_per_month", 1000, "file"),
    ):
        assert row in listed
    assert error(put(gateway, "all/all", {"usd_per_month": 1})) == (409, "conflict", "limits")
    assert newest_audit(gateway)["action"] == "limits.set.failed"
    assert error(asking.send(gateway, "DELETE", f"{PATH}/provider/echo")) == (409, "conflict", "name")


def test_limits_are_replaced_read_and_removed(gateway: Running) -> None:
    assert put(gateway, "all/all", {"concurrent": 200, "usd_per_day": 0.1}).json["limits"] == {
        "concurrent": 200,
        "usd_per_day": 0.1,
    }
    replaced = put(gateway, "all/all", {"concurrent": 100, "usd_per_week": 7})
    assert replaced.json == {
        "scope": "all",
        "name": "all",
        "limits": {"concurrent": 100, "usd_per_week": 7},
        "in_file": {"usd_per_month": 500},
        "version": 2,
    }
    assert ("all", "all", "concurrent", 100, "store") in rows(gateway, "?scope=all")
    assert ("all", "all", "usd_per_day", 0.1, "store") not in rows(gateway, "?scope=all")
    read = asking.send(gateway, "GET", f"{PATH}/all/all")
    assert (read.json, read.headers["etag"]) == (replaced.json, '"2"')
    removed = asking.send(gateway, "DELETE", f"{PATH}/all/all")
    assert removed.json["limits"] == {}
    assert rows(gateway, "?scope=all") == [("all", "all", "usd_per_month", 500, "file")]
    assert error(asking.send(gateway, "DELETE", f"{PATH}/user/nobody")) == (404, "not_found", "name")
    assert newest_audit(gateway)["action"] == "limits.remove.failed"


@each_row(
    ("where", "body", "expected"),
    [
        ("user/a", {"usd_per_day": -1}, (400, "bad_request", "usd_per_day")),
        ("user/a", {"usd_per_day": 1e10}, (400, "bad_request", "usd_per_day")),
        ("user/a", {"usd_per_day": 0.0000000001}, (400, "bad_request", "usd_per_day")),
        ("user/a", {"usd_per_day": "5"}, (400, "bad_request", "usd_per_day")),
        ("user/a", {"concurrent": 1.5}, (400, "bad_request", "concurrent")),
        ("user/a", {"concurrent": True}, (400, "bad_request", "concurrent")),
        ("user/a", {"tokens_per_day": 10**16}, (400, "bad_request", "tokens_per_day")),
        ("user/a", {"usd_per_dy": 1}, (400, "bad_request", "usd_per_dy")),
        ("users/a", {"usd_per_day": 1}, (400, "bad_request", "scope")),
        ("team/core", {"usd_per_day": 1}, (404, "not_found", "name")),
        ("key/nope", {"usd_per_day": 1}, (404, "not_found", "name")),
        ("provider/ecko", {"usd_per_day": 1}, (404, "not_found", "name")),
        ("user/%20", {"usd_per_day": 1}, (400, "bad_request", "name")),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    gateway: Running, where: str, body: dict[str, object], expected: tuple[int, str, str]
) -> None:
    assert error(put(gateway, where, body)) == expected
    assert rows(gateway, "?scope=user") == [("user", "*", "usd_per_day", 20, "file")]


@pytest.mark.parametrize("where", ["limits/user/a", "teams/ops"])
def test_a_field_that_is_there_twice_is_refused_by_name(gateway: Running, where: str) -> None:
    method, body = ("PUT", b'{"usd_per_day": 1, "usd_per_day": 2}')
    if where.startswith("teams"):
        method, body = "PATCH", b'{"limits": {"usd_per_day": 1, "usd_per_day": 2}}'
    reply = asking.send(gateway, method, f"/api/v1/{where}", body=body)
    assert error(reply) == (400, "bad_request", "usd_per_day")
    assert rows(gateway, "?scope=user") == [("user", "*", "usd_per_day", 20, "file")]


def test_a_key_is_found_by_its_name_and_by_its_id(gateway: Running) -> None:
    key = str(asking.send(gateway, "GET", "/api/v1/keys/someone").json["id"])
    assert put(gateway, "key/someone", {"usd_per_total": 3}).json["name"] == "someone"
    assert put(gateway, f"key/{key}", {"usd_per_total": 4}).json["version"] == 2
    assert rows(gateway, "?scope=key") == [("key", "someone", "usd_per_total", 4, "store")]
    assert asking.send(gateway, "GET", "/api/v1/keys/someone").json["limits"] == {"usd_per_total": 4}
    policy = gateway.app.keyring.policies.find(KeyId(key))
    assert [scope.name for scope in policy.scopes] == ["all", f"key:{key}"]
    assert asking.send(gateway, "DELETE", f"{PATH}/key/someone").status == 200


def test_limits_that_were_changed_meanwhile_are_left_alone(gateway: Running) -> None:
    old = put(gateway, "user/eve", {"usd_per_day": 1}).headers["etag"]
    assert put(gateway, "user/eve", {"usd_per_day": 2}, **{"if-match": old}).status == 200
    assert error(put(gateway, "user/eve", {"usd_per_day": 3}, **{"if-match": old})) == (
        412,
        "version_mismatch",
        "If-Match",
    )
    late = asking.send(gateway, "DELETE", f"{PATH}/user/eve", headers={"if-match": old})
    assert error(late) == (412, "version_mismatch", "If-Match")
    assert asking.send(gateway, "DELETE", f"{PATH}/user/eve").status == 200
    # A version is never used twice, so new limits are never taken for those that were removed.
    assert put(gateway, "user/eve", {"usd_per_day": 1}).json["version"] == 4
    assert asking.send(gateway, "DELETE", f"{PATH}/user/eve").status == 200


def test_effective_limits_are_those_that_users_and_keys_get(gateway: Running) -> None:
    made = asking.send(gateway, "POST", "/api/v1/keys", body={"name": "bob's", "user": "bob"})
    assert made.status == 201
    listed = asking.send(gateway, "GET", f"{PATH}?effective=1&scope=user").json["limits"]
    found = {(row["name"], row["limit"], row["value"], row["set_for"]) for row in listed}
    assert found == {("anna@example.com", "usd_per_day", 5, "each_user:ops"), ("bob", "usd_per_day", 20, "user:*")}
    assert asking.send(gateway, "DELETE", "/api/v1/keys/bob's").status == 200


def test_a_window_says_when_it_ends(gateway: Running) -> None:
    [month] = asking.send(gateway, "GET", f"{PATH}?scope=all").json["limits"]
    assert [*month] == ["scope", "name", "limit", "value", "spent", "reserved", "resets_at", "origin"]
    assert 0 < month["resets_at"] - time.time() <= 31 * 86_400
    assert (month["spent"], month["reserved"]) == (0, 0)
    put(gateway, "user/zoe", {"usd_per_total": 1, "concurrent": 2})
    assert [row["resets_at"] for row in asking.send(gateway, "GET", f"{PATH}?name=zoe").json["limits"]] == [None, None]
    asking.send(gateway, "DELETE", f"{PATH}/user/zoe")


def test_what_is_spent_is_shown_and_can_be_forgiven(tmp_path: Path) -> None:
    priced = f'{ECHO}[[prices]]\nmodel = "*"\ninput = 1000000\noutput = 0\n[limits]\nusd_per_month = 5000000\n'
    with running(priced, tmp_path, stored=["someone"]) as gateway:

        def read_spent() -> float:
            [row] = asking.send(gateway, "GET", PATH).json["limits"]
            return float(row["spent"] or 0)

        assert chat(gateway, gateway.keys["someone"]) == 200
        wait_until(lambda: bool(read_spent()))
        before = read_spent()
        body = {"usd": 0.25, "reason": "a loop of ours"}
        given = asking.send(gateway, "POST", f"{PATH}/all/all/forgive", body=body, headers={"idempotency-key": "one"})
        assert (given.status, given.json["unit"], given.json["amount"]) == (200, "usd", 0.25)
        assert newest_audit(gateway)["action"] == "limits.forgive"
        again = asking.send(gateway, "POST", f"{PATH}/all/all/forgive", body=body, headers={"idempotency-key": "one"})
        assert again.body == given.body
        wait_until(lambda: read_spent() == before - 0.25)
        for wrong, field in (
            ({}, "usd"),
            ({"usd": 1, "tokens": 1}, "usd"),
            ({"usd": -1}, "usd"),
            ({"tokens": 1.5}, "tokens"),
            ({"usd": 1, "until": 5}, "until"),
            ({"dollars": 1}, "dollars"),
        ):
            refused = asking.send(gateway, "POST", f"{PATH}/all/all/forgive", body=wrong)
            assert error(refused) == (400, "bad_request", field), wrong
        for_each = asking.send(gateway, "POST", f"{PATH}/user/*/forgive", body={"usd": 1})
        assert error(for_each) == (400, "bad_request", "name")
        assert read_spent() == before - 0.25


def test_a_list_has_pages(gateway: Running) -> None:
    every = rows(gateway)
    found, cursor = [], ""
    while cursor is not None:
        page = asking.send(gateway, "GET", f"{PATH}?limit=2{cursor and f'&cursor={cursor}'}").json
        assert len(page["limits"]) <= 2
        found += [(row["scope"], row["name"], row["limit"], row["value"], row["origin"]) for row in page["limits"]]
        cursor = page["next"]
    assert found == every


def test_an_edit_of_the_file_is_in_force_at_once(tmp_path: Path) -> None:
    with running(SETTINGS, tmp_path, stored=["someone"]) as gateway:
        gateway.adopt(SETTINGS.replace("usd_per_month = 500", "usd_per_month = 400"))
        assert ("all", "all", "usd_per_month", 400, "file") in rows(gateway)
        [everyone] = gateway.app.keyring.policies.find(ENVIRONMENT_KEY).scopes
        assert everyone.limits.usd_per_month == 400 * 10**9


def test_a_token_of_one_team_sees_and_changes_its_limits_only(gateway: Running) -> None:
    assert asking.send(gateway, "POST", "/api/v1/teams", body={"name": "blue", "members": ["kim"]}).status == 201
    made = asking.send(gateway, "POST", "/api/v1/keys", body={"name": "blue-key", "team": "blue", "user": "lee"})
    assert made.status == 201
    token = make_team_token(gateway, "blue", Scope.LIMITS_READ, Scope.LIMITS_WRITE)
    for where in ("team/blue", "each_user/blue", "user/kim", "user/lee", "key/blue-key"):
        reply = asking.send(gateway, "PUT", f"{PATH}/{where}", key=token, body={"usd_per_day": 1})
        assert reply.status == 200, where
    for where in ("team/ops", "each_user/ops", "user/bob", "user/*", "key/someone", "key/*", "all/all"):
        for method, body in (("PUT", {"usd_per_week": 1}), ("DELETE", None), ("GET", None)):
            refused = asking.send(gateway, method, f"{PATH}/{where}", key=token, body=body)
            assert error(refused) == (403, "scope_required", "name"), where
    listed = asking.send(gateway, "GET", PATH, key=token).json["limits"]
    assert {(row["scope"], row["name"]) for row in listed} == {
        ("team", "blue"),
        ("each_user", "blue"),
        ("user", "kim"),
        ("user", "lee"),
        ("key", "blue-key"),
    }


def test_limits_need_their_scopes(gateway: Running) -> None:
    reader = make_token(gateway, Scope.LIMITS_READ)
    assert asking.send(gateway, "GET", PATH, key=reader).status == 200
    refused = asking.send(gateway, "PUT", f"{PATH}/all/all", key=reader, body={"usd_per_day": 1})
    assert error(refused) == (403, "scope_required", None)
    keys = make_token(gateway, Scope.KEYS_READ, Scope.KEYS_WRITE)
    body = {"name": "rich", "limits": {"usd_per_day": 1}}
    assert error(asking.send(gateway, "POST", "/api/v1/keys", key=keys, body=body)) == (403, "scope_required", "limits")
