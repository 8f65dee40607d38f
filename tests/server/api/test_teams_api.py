"""Teams over HTTP: what the file sets stays as it is, members are in one team, and keys hold a team."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import asking
from dragoman.tenancy.keys import KeyId, Scope
from gateway import Running, running, running_workers
from server.api.rig import ECHO, make_team_token, make_token
from tables import each_row
from waiting import wait_until
from wire_json import Json

PATH = "/api/v1/teams"
SETTINGS = f"""{ECHO}
[[teams]]
name = "ops"
members = ["anna@example.com"]
limits = {{ usd_per_day = 20 }}
models = ["echo"]
"""
names = count(1)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(SETTINGS, Path(tmp_path_factory.mktemp("teams")), stored=["someone"]) as started:
        yield started


def create(gateway: Running, **fields: object) -> Json:
    made = asking.send(gateway, "POST", PATH, body={"name": f"team-{next(names)}", **fields})
    assert made.status == 201, made.body
    return made.json


def error(reply: asking.Reply) -> tuple[int, str, str | None]:
    found = reply.json["error"]
    return reply.status, found["code"], found["field"]


def newest_audit(gateway: Running) -> Json:
    return asking.send(gateway, "GET", "/api/v1/audit?limit=1").json["audit"][0]


def test_a_team_needs_only_a_name(gateway: Running) -> None:
    made = create(gateway, name="core")
    assert {name: made[name] for name in ("name", "members", "limits", "each_user", "models", "origin", "version")} == {
        "name": "core",
        "members": [],
        "limits": {},
        "each_user": {},
        "models": [],
        "origin": "store",
        "version": 1,
    }
    assert newest_audit(gateway)["action"] == "teams.create"
    assert asking.send(gateway, "GET", f"{PATH}/core").json == made
    taken = asking.send(gateway, "POST", PATH, body={"name": "core"})
    assert error(taken) == (409, "conflict", "name")
    assert newest_audit(gateway)["action"] == "teams.create.failed"


def test_a_team_is_changed_field_by_field(gateway: Running) -> None:
    made = create(gateway, members=["max"], limits={"usd_per_day": 2}, each_user={"usd_per_day": 1})
    changed = asking.send(gateway, "PATCH", f"{PATH}/{made['name']}", body={"models": ["claude-*"]})
    assert (changed.json["members"], changed.json["limits"]) == (["max"], {"usd_per_day": 2})
    assert (changed.json["models"], changed.json["version"], changed.headers["etag"]) == (["claude-*"], 2, '"2"')
    cleared = asking.send(gateway, "PATCH", f"{PATH}/{made['name']}", body={"members": None, "limits": None})
    assert (cleared.json["members"], cleared.json["limits"], cleared.json["each_user"]) == ([], {}, {"usd_per_day": 1})


def test_a_change_of_its_limits_is_a_change_of_the_team(gateway: Running) -> None:
    made = create(gateway)
    old = asking.send(gateway, "GET", f"{PATH}/{made['name']}").headers["etag"]
    assert asking.send(gateway, "PUT", f"/api/v1/limits/team/{made['name']}", body={"usd_per_day": 1}).status == 200
    late = asking.send(gateway, "PATCH", f"{PATH}/{made['name']}", body={"members": ["x"]}, headers={"if-match": old})
    assert error(late) == (412, "version_mismatch", "If-Match")
    late = asking.send(gateway, "DELETE", f"{PATH}/{made['name']}", headers={"if-match": old})
    assert error(late) == (412, "version_mismatch", "If-Match")


def test_a_team_of_the_file_is_shown_and_cannot_be_changed(gateway: Running) -> None:
    found = asking.send(gateway, "GET", f"{PATH}/ops").json
    assert (found["origin"], found["limits"], found["created_at"]) == ("file", {"usd_per_day": 20}, None)
    for method, path, body in (
        ("PATCH", "/ops", {"members": []}),
        ("DELETE", "/ops", None),
        ("POST", "", {"name": "ops"}),
    ):
        refused = asking.send(gateway, method, f"{PATH}{path}", body=body)
        assert refused.status == 409, method
    # What the file does not set of a team can be set beside it.
    beside = asking.send(gateway, "PUT", "/api/v1/limits/team/ops", body={"requests_per_min": 60})
    assert beside.status == 200
    taken = asking.send(gateway, "PUT", "/api/v1/limits/team/ops", body={"usd_per_day": 60})
    assert error(taken) == (409, "conflict", "limits")


@each_row(
    ("body", "expected"),
    [
        ({"name": "a", "members": ["anna@example.com"]}, (409, "conflict", "name")),
        ({"name": "a", "members": ["x", "x"]}, (400, "bad_request", "members")),
        ({"name": "a", "members": [" x"]}, (400, "bad_request", "members")),
        ({"name": "a", "limits": {"usd_per_day": -1}}, (400, "bad_request", "limits.usd_per_day")),
        ({"name": "a", "limits": {"usd_per_day": 1e-10}}, (400, "bad_request", "limits.usd_per_day")),
        ({"name": "a", "limits": {"usd_per_dy": 1}}, (400, "bad_request", "limits.usd_per_dy")),
        ({"name": "a/b"}, (400, "bad_request", "name")),
        ({"name": ""}, (400, "bad_request", "name")),
        ({"nam": "a"}, (400, "bad_request", "nam")),
        ({}, (400, "bad_request", "name")),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    gateway: Running, body: dict[str, object], expected: tuple[int, str, str]
) -> None:
    assert error(asking.send(gateway, "POST", PATH, body=body)) == expected


def test_a_user_is_in_one_team(gateway: Running) -> None:
    first, second = create(gateway, members=["lea"]), create(gateway)
    refused = asking.send(gateway, "PATCH", f"{PATH}/{second['name']}", body={"members": ["lea"]})
    assert error(refused) == (409, "conflict", "id")
    key = {"name": "of lea", "user": "lea", "team": second["name"]}
    assert error(asking.send(gateway, "POST", "/api/v1/keys", body=key)) == (400, "bad_request", "team")
    key = {"name": "of lea", "user": "lea"}
    assert asking.send(gateway, "POST", "/api/v1/keys", body=key).json["team"] == first["name"]


def test_a_team_that_has_keys_stays(gateway: Running) -> None:
    made = create(gateway, limits={"usd_per_day": 1})
    key = asking.send(gateway, "POST", "/api/v1/keys", body={"team": made["name"]}).json
    assert error(asking.send(gateway, "DELETE", f"{PATH}/{made['name']}")) == (409, "conflict", "id")
    assert asking.send(gateway, "GET", f"{PATH}/{made['name']}").json["keys"] == 1
    assert asking.send(gateway, "DELETE", f"/api/v1/keys/{key['id']}").status == 200
    assert asking.send(gateway, "DELETE", f"{PATH}/{made['name']}").status == 200
    assert asking.send(gateway, "GET", f"{PATH}/{made['name']}").status == 404
    listed = asking.send(gateway, "GET", "/api/v1/limits?scope=team").json["limits"]
    assert made["name"] not in {row["name"] for row in listed}


def test_a_repeated_request_gets_the_same_answer(gateway: Running) -> None:
    headers = {"idempotency-key": "once"}
    body = {"name": "made-once"}
    replies = [asking.send(gateway, "POST", PATH, body=body, headers=headers) for _ in range(2)]
    assert [reply.status for reply in replies] == [201, 201]
    assert replies[0].body == replies[1].body
    assert replies[0].headers["etag"] == replies[1].headers["etag"]
    other = asking.send(gateway, "POST", PATH, body={"name": "another"}, headers=headers)
    assert error(other) == (409, "idempotency_mismatch", "Idempotency-Key")
    refused = asking.send(gateway, "POST", PATH, body=body, headers={"idempotency-key": "two"})
    assert refused.status == 409
    assert asking.send(gateway, "DELETE", f"{PATH}/made-once").status == 200
    again = asking.send(gateway, "POST", PATH, body=body, headers={"idempotency-key": "two"})
    assert again.status == 201  # what was refused may be repeated


def test_a_repeated_request_for_a_key_has_no_secret(gateway: Running) -> None:
    headers = {"idempotency-key": "a key"}
    first = asking.send(gateway, "POST", "/api/v1/keys", body={"name": "repeated"}, headers=headers)
    again = asking.send(gateway, "POST", "/api/v1/keys", body={"name": "repeated"}, headers=headers)
    assert (again.status, "secret" in first.json) == (201, True)
    assert again.json == {name: value for name, value in first.json.items() if name != "secret"}
    long = {"idempotency-key": "x" * 256}
    refused = asking.send(gateway, "POST", "/api/v1/keys", body={}, headers=long)
    assert error(refused) == (400, "bad_request", "Idempotency-Key")


def test_a_token_of_one_team_sees_and_changes_it_only(gateway: Running) -> None:
    made = create(gateway)
    scopes = (Scope.TEAMS_READ, Scope.TEAMS_WRITE, Scope.KEYS_READ, Scope.KEYS_WRITE)
    token = make_team_token(gateway, made["name"], *scopes)
    listed = asking.send(gateway, "GET", PATH, key=token).json["teams"]
    assert [team["name"] for team in listed] == [made["name"]]
    assert asking.send(gateway, "GET", f"{PATH}/ops", key=token).status == 404
    assert asking.send(gateway, "PATCH", f"{PATH}/ops", key=token, body={"members": []}).status == 404
    assert asking.send(gateway, "POST", PATH, key=token, body={"name": "mine"}).status == 403
    body = {"members": ["tom"]}
    assert asking.send(gateway, "PATCH", f"{PATH}/{made['name']}", key=token, body=body).status == 200
    limits = asking.send(gateway, "PATCH", f"{PATH}/{made['name']}", key=token, body={"limits": {"usd_per_day": 9}})
    assert error(limits) == (403, "scope_required", "limits")
    # Its keys are the team's, and it sees no others.
    key = asking.send(gateway, "POST", "/api/v1/keys", key=token, body={"name": "of the team"})
    assert key.json["team"] == made["name"]
    refused = asking.send(gateway, "POST", "/api/v1/keys", key=token, body={"team": "ops"})
    assert error(refused) == (403, "scope_required", "team")
    assert asking.send(gateway, "GET", "/api/v1/keys/someone", key=token).status == 404
    assert asking.send(gateway, "DELETE", "/api/v1/keys/someone", key=token).status == 404
    seen = asking.send(gateway, "GET", "/api/v1/keys", key=token).json
    assert {one["team"] for one in seen["keys"]} == {made["name"]}
    moved = asking.send(gateway, "PATCH", f"/api/v1/keys/{key.json['id']}", key=token, body={"team": "ops"})
    assert moved.status == 403
    # What it makes is limited in the same way, and has no scope that shows other teams.
    made_token = asking.send(
        gateway, "POST", "/api/v1/keys", key=token, body={"role": "admin", "scopes": ["keys:read"]}
    )
    assert made_token.json["team"] == made["name"]
    wide = asking.send(gateway, "POST", "/api/v1/keys", body={"role": "admin", "scopes": ["audit:read"], "team": "ops"})
    assert error(wide) == (400, "bad_request", "scopes")


def test_a_token_of_one_team_takes_over_no_user_who_has_keys_outside_of_it(gateway: Running) -> None:
    team = create(gateway)["name"]
    scopes = (Scope.TEAMS_READ, Scope.TEAMS_WRITE, Scope.KEYS_READ, Scope.KEYS_WRITE, Scope.LIMITS_READ)
    token = make_team_token(gateway, team, *scopes, Scope.LIMITS_WRITE)
    asking.send(gateway, "POST", "/api/v1/keys", body={"name": "of vera", "user": "vera"})
    key = asking.send(gateway, "POST", "/api/v1/keys", key=token, body={"name": "mine", "user": "vera"})
    assert error(key) == (403, "scope_required", "user")
    asking.send(gateway, "POST", "/api/v1/keys", key=token, body={"name": "ours"})
    changed = asking.send(gateway, "PATCH", "/api/v1/keys/ours", key=token, body={"user": "vera"})
    assert error(changed) == (403, "scope_required", "user")
    member = asking.send(gateway, "PATCH", f"{PATH}/{team}", key=token, body={"members": ["new", "vera"]})
    assert error(member) == (403, "scope_required", "members")
    limit = asking.send(gateway, "PUT", "/api/v1/limits/user/vera", key=token, body={"usd_per_day": 0})
    assert limit.status == 403
    # Of those who have no keys, and of those who are in the team, it may make keys.
    assert asking.send(gateway, "PATCH", f"{PATH}/{team}", key=token, body={"members": ["nina"]}).status == 200
    for name, user in (("of nina", "nina"), ("another of nina", "nina"), ("of otto", "otto")):
        assert asking.send(gateway, "POST", "/api/v1/keys", key=token, body={"name": name, "user": user}).status == 201


def test_teams_need_their_scopes(gateway: Running) -> None:
    reader = make_token(gateway, Scope.TEAMS_READ)
    assert asking.send(gateway, "GET", PATH, key=reader).status == 200
    assert error(asking.send(gateway, "POST", PATH, key=reader, body={"name": "x"})) == (403, "scope_required", None)


def test_a_change_is_in_force_in_every_worker_at_once(tmp_path: Path) -> None:
    with running_workers(SETTINGS, tmp_path, stored=["someone"]) as (first, other):
        key = KeyId(asking.send(first, "GET", "/api/v1/keys/someone").json["id"])
        assert asking.send(first, "PATCH", f"/api/v1/keys/{key}", body={"team": "ops"}).status == 200
        for worker in (first, other):
            assert [scope.name for scope in worker.app.keyring.policies.find(key).scopes] == ["team:ops"]


def test_a_change_by_another_process_is_in_force_within_seconds(gateway: Running, tmp_path: Path) -> None:
    with running(SETTINGS, tmp_path, stored=["one"]) as first, running(SETTINGS, tmp_path, stored=["two"]) as second:
        key = KeyId(asking.send(first, "GET", "/api/v1/keys/one").json["id"])
        assert asking.send(first, "PUT", f"/api/v1/limits/key/{key}", body={"concurrent": 1}).status == 200
        wait_until(lambda: bool(second.app.keyring.policies.find(key).scopes))


def test_keys_of_one_user_are_in_one_team_also_if_the_user_is_no_member(gateway: Running) -> None:
    first, second = create(gateway)["name"], create(gateway)["name"]
    made = {"name": "desk", "user": "zoe@example.com", "team": first}
    assert asking.send(gateway, "POST", "/api/v1/keys", body=made).status == 201
    other = {"name": "sofa", "user": "zoe@example.com"}
    refused = asking.send(gateway, "POST", "/api/v1/keys", body=other | {"team": second})
    assert (refused.status, refused.json["error"]["field"]) == (400, "team")
    assert '"desk"' in refused.json["error"]["message"]
    assert asking.send(gateway, "POST", "/api/v1/keys", body=other).status == 201
    refused = asking.send(gateway, "PATCH", "/api/v1/keys/sofa", body={"team": second})
    assert (refused.status, refused.json["error"]["field"]) == (400, "team")
    assert asking.send(gateway, "PATCH", "/api/v1/keys/sofa", body={"team": first}).status == 200


def test_a_user_whose_key_is_in_another_team_cannot_become_a_member(gateway: Running) -> None:
    first, second = create(gateway)["name"], create(gateway)["name"]
    made = {"name": "attic", "user": "ida@example.com", "team": first}
    assert asking.send(gateway, "POST", "/api/v1/keys", body=made).status == 201
    members = {"members": ["ida@example.com"]}
    refused = asking.send(gateway, "PATCH", f"{PATH}/{second}", body=members)
    assert (refused.status, '"attic"' in refused.json["error"]["message"]) == (409, True)
    assert asking.send(gateway, "POST", PATH, body={"name": "new", **members}).status == 409
    assert asking.send(gateway, "PATCH", f"{PATH}/{first}", body=members).status == 200
    assert asking.send(gateway, "PATCH", "/api/v1/keys/attic", body={"team": None}).status == 200
