"""Create, rotate and revoke keys over HTTP: what they may do at once, and what a token cannot give or take."""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import asking
from dragoman.tenancy.keys import Scope
from gateway import KEY, Running, running
from server.api.rig import ECHO, chat, make_token
from tables import each_row
from wire_json import Json

PATH = "/api/v1/keys"
names = count(1)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(ECHO, Path(tmp_path_factory.mktemp("keys")), stored=["someone"]) as started:
        yield started


def create(gateway: Running, **fields: object) -> Json:
    made = asking.send(gateway, "POST", PATH, body={"name": f"made {next(names)}", **fields})
    assert made.status == 201, made.body
    return made.json


def error(response: asking.Reply) -> tuple[int, str, str | None]:
    found = response.json["error"]
    return response.status, found["code"], found["field"]


def newest_audit(gateway: Running) -> Json:
    return asking.send(gateway, "GET", "/api/v1/audit?limit=1").json["audit"][0]


def test_a_new_key_works_at_once_and_its_secret_is_shown_once(gateway: Running) -> None:
    made = create(gateway, name="ci")
    assert made["secret"].startswith("dgm_")
    assert chat(gateway, made["secret"]) == 200
    read = asking.send(gateway, "GET", f"{PATH}/{made['id']}")
    assert read.json == {name: value for name, value in made.items() if name != "secret"} | {"last_used_at": None}
    row = newest_audit(gateway)
    assert (row["action"], row["subject"], row["detail"]["role"]) == ("keys.create", "ci", "client")
    assert made["secret"].encode() not in asking.send(gateway, "GET", "/api/v1/audit").body
    taken = asking.send(gateway, "POST", PATH, body={"name": "ci"})
    assert error(taken) == (409, "conflict", "name")
    row = newest_audit(gateway)
    assert (row["action"], row["subject"], row["detail"]["error"][:10]) == ("keys.create.failed", "ci", "A key name")


def test_the_audit_log_has_the_name_that_was_chosen_for_a_key(gateway: Running) -> None:
    made = create(gateway)
    assert newest_audit(gateway)["subject"] == made["name"]


def test_a_rotated_key_keeps_its_id_and_the_old_secret_works_until_the_grace_ends(gateway: Running) -> None:
    made = create(gateway)
    rotated = asking.send(gateway, "POST", f"{PATH}/{made['id']}/rotate", body={"grace_s": 60})
    assert (rotated.status, rotated.json["id"], rotated.json["version"]) == (200, made["id"], 2)
    assert chat(gateway, made["secret"]) == chat(gateway, rotated.json["secret"]) == 200
    again = asking.send(gateway, "POST", f"{PATH}/{made['id']}/rotate", body={"grace_s": 0}).json
    assert [chat(gateway, one["secret"]) for one in (made, rotated.json, again)] == [401, 401, 200]
    assert newest_audit(gateway)["action"] == "keys.rotate"


def test_a_revoked_key_is_rejected_at_once(gateway: Running) -> None:
    made = create(gateway)
    revoked = asking.send(gateway, "DELETE", f"{PATH}/{made['id']}")
    assert revoked.status == 200
    assert revoked.json["revoked_at"] is not None
    assert chat(gateway, made["secret"]) == 401
    assert error(asking.send(gateway, "DELETE", f"{PATH}/{made['id']}")) == (404, "not_found", "id")
    assert newest_audit(gateway)["detail"] == {"name": made["name"]}


def test_a_key_that_was_changed_meanwhile_is_left_alone(gateway: Running) -> None:
    made = create(gateway)
    old = asking.send(gateway, "GET", f"{PATH}/{made['id']}").headers["etag"]
    assert asking.send(gateway, "POST", f"{PATH}/{made['id']}/rotate", body={}, headers={"if-match": old}).status == 200
    for method, path, body in (("POST", "/rotate", {}), ("DELETE", "", None)):
        late = asking.send(gateway, method, f"{PATH}/{made['id']}{path}", body=body, headers={"if-match": old})
        assert error(late) == (412, "version_mismatch", "If-Match")
        assert newest_audit(gateway)["action"].endswith(".failed")
    assert asking.send(gateway, "DELETE", f"{PATH}/{made['id']}", headers={"if-match": "*"}).status == 200


def test_a_key_expires(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    made = create(gateway, expires_at=int(time.time()) + 3600)
    assert chat(gateway, made["secret"]) == 200
    monkeypatch.setattr(gateway.app.keyring, "_clock", lambda: time.time() + 3601)
    assert chat(gateway, made["secret"]) == 401


def test_an_admin_token_administers_and_cannot_infer(gateway: Running) -> None:
    made = create(gateway, role="admin", scopes=["usage:read"])
    assert made["secret"].startswith("dga_")
    assert asking.send(gateway, "GET", "/api/v1/usage", key=made["secret"]).json["whole"] is True
    assert error(asking.send(gateway, "GET", PATH, key=made["secret"])) == (403, "scope_required", None)
    assert chat(gateway, made["secret"]) == 403


def test_a_token_cannot_give_or_take_over_more_than_it_has(gateway: Running) -> None:
    token = make_token(gateway, Scope.KEYS_WRITE, Scope.KEYS_READ)
    assert asking.send(gateway, "POST", PATH, key=token, body={"name": "by token"}).status == 201
    more = {"role": "admin", "scopes": ["keys:read", "config:read"]}
    assert error(asking.send(gateway, "POST", PATH, key=token, body=more)) == (403, "scope_required", "scopes")
    mighty = create(gateway, role="admin", scopes=["captures:read"])
    for method, path, body in (("POST", "/rotate", {}), ("DELETE", "", None)):
        refused = asking.send(gateway, method, f"{PATH}/{mighty['id']}{path}", key=token, body=body)
        assert error(refused) == (403, "scope_required", "id")
    soon = int(time.time()) + 3600
    short = create(gateway, role="admin", scopes=["keys:write"], expires_at=soon)["secret"]
    assert error(asking.send(gateway, "POST", PATH, key=short, body={})) == (403, "scope_required", "expires_at")
    assert asking.send(gateway, "POST", PATH, key=short, body={"expires_at": soon}).status == 201


@each_row(
    ("body", "field"),
    [
        ({"name": 5}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"role": "owner"}, "role"),
        ({"scopes": ["usage:read"]}, "scopes"),
        ({"role": "admin"}, "scopes"),
        ({"role": "admin", "scopes": ["all"]}, "scopes[0]"),
        ({"expires_at": 5}, "expires_at"),
        ({"expires_at": 2**60}, "expires_at"),
        ({"colour": "red"}, "colour"),
        ([], ""),
        (b"{", ""),
        (b"\xff", ""),
    ],
)
def test_a_bad_field_is_named_and_nothing_is_made(gateway: Running, body: object, field: str) -> None:
    before = asking.send(gateway, "GET", PATH).json
    refused = asking.send(gateway, "POST", PATH, body=body)
    assert error(refused) == (400, "bad_request", field)
    assert len(asking.send(gateway, "GET", PATH).json["keys"]) == len(before["keys"])


def test_a_write_needs_json_and_a_version_that_can_be_read(gateway: Running) -> None:
    plain = asking.send(gateway, "POST", PATH, body=b"{}", headers={"content-type": "text/plain"})
    assert error(plain) == (415, "unsupported_media_type", None)
    made = create(gateway)
    odd = asking.send(gateway, "DELETE", f"{PATH}/{made['id']}", headers={"if-match": "three"})
    assert error(odd) == (400, "bad_request", "If-Match")
    for grace in (-1, 8 * 86_400, "1h"):
        refused = asking.send(gateway, "POST", f"{PATH}/{made['id']}/rotate", body={"grace_s": grace})
        assert error(refused) == (400, "bad_request", "grace_s")
    assert chat(gateway, KEY) == 200


def test_the_list_of_keys_has_pages(gateway: Running) -> None:
    for _ in range(3):
        create(gateway)
    whole = asking.send(gateway, "GET", PATH).json
    assert whole["next"] is None
    found: list[Json] = []
    cursor = ""
    while cursor is not None:
        page = asking.send(gateway, "GET", f"{PATH}?limit=2{cursor and '&cursor='}{cursor}").json
        assert len(page["keys"]) <= 2
        found += page["keys"]
        cursor = page["next"]
    assert found == whole["keys"]
    assert error(asking.send(gateway, "GET", f"{PATH}?cursor=bm90IGEga2V5")) == (400, "bad_request", "cursor")


def test_what_is_set_for_a_key_is_changed_field_by_field(gateway: Running) -> None:
    fields = {
        "user": "dev@example.com",
        "models": ["claude-*", "echo"],
        "providers": ["echo"],
        "default_model": "echo",
        "strict": True,
        "capture": "off",
        "max_output_tokens": 4096,
        "metadata": {"cost centre": "7"},
        "limits": {"usd_per_day": 0.5, "concurrent": 2},
    }
    made = create(gateway, **fields)
    assert {name: made[name] for name in fields} == fields
    changed = asking.send(gateway, "PATCH", f"{PATH}/{made['id']}", body={"strict": False, "default_thinking": "low"})
    assert (changed.status, changed.headers["etag"]) == (200, '"2"')
    assert {name: changed.json[name] for name in fields} == fields | {"strict": False}
    row = newest_audit(gateway)
    assert (row["action"], row["detail"]["strict"], row["detail"]["default_thinking"]) == ("keys.change", False, "low")
    nothing = dict.fromkeys(fields)
    cleared = asking.send(gateway, "PATCH", f"{PATH}/{made['id']}", body={**nothing, "default_thinking": None}).json
    empty = {name: cleared[name] for name in (*fields, "default_thinking")}
    assert empty == {
        "user": "",
        "models": [],
        "providers": [],
        "default_model": "",
        "strict": False,
        "capture": "all",
        "max_output_tokens": None,
        "metadata": {},
        "limits": {},
        "default_thinking": None,
    }
    old = changed.headers["etag"]
    late = asking.send(gateway, "PATCH", f"{PATH}/{made['id']}", body={"strict": True}, headers={"if-match": old})
    assert error(late) == (412, "version_mismatch", "If-Match")
    assert newest_audit(gateway)["action"] == "keys.change.failed"


@each_row(
    ("fields", "at"),
    [
        ({"models": [""]}, "models[0]"),
        ({"models": ["x"] * 101}, "models"),
        ({"providers": "kiro"}, "providers"),
        ({"strict": "yes"}, "strict"),
        ({"capture": "some"}, "capture"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": "\u0007"}}, "metadata"),
        ({"default_model": "\n"}, "default_model"),
        ({"team": "nope"}, "team"),
        ({"user": "a/b"}, "user"),
        ({"limits": {"usd_per_day": -1}}, "limits.usd_per_day"),
        ({"limits": {"usd_per_dy": 1}}, "limits.usd_per_dy"),
        ({"modles": []}, "modles"),
        ({"expires_at": 5}, "expires_at"),
    ],
)
def test_what_cannot_be_set_for_a_key_is_refused_by_name(gateway: Running, fields: dict[str, object], at: str) -> None:
    made = create(gateway)
    for method, path in (("PATCH", f"{PATH}/{made['id']}"), ("POST", PATH)):
        assert error(asking.send(gateway, method, path, body=fields)) == (400, "bad_request", at), method
    assert asking.send(gateway, "GET", f"{PATH}/{made['id']}").json["version"] == 1


def test_an_admin_token_has_no_settings_of_a_client_key_and_changes_nothing_of_itself(gateway: Running) -> None:
    for name, value in (("models", ["x"]), ("user", "dev"), ("limits", {"usd_per_day": 1}), ("strict", True)):
        body = {"role": "admin", "scopes": ["usage:read"], name: value}
        assert error(asking.send(gateway, "POST", PATH, body=body)) == (400, "bad_request", name)
    token = make_token(gateway, Scope.KEYS_READ, Scope.KEYS_WRITE)
    own = next(
        key for key in asking.send(gateway, "GET", PATH).json["keys"] if key["name"] == "token keys:read keys:write"
    )
    refused = asking.send(gateway, "PATCH", f"{PATH}/{own['id']}", key=token, body={"expires_at": None})
    assert error(refused) == (403, "scope_required", "id")
