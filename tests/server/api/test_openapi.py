"""The OpenAPI document of the admin API: it is well formed, has every route, and real replies fit its schemas."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import msgspec
import pytest

import asking
from dragoman.server.api.wire import PREFIX
from dragoman.server.routes import HttpRoute
from fakes.kiro import FakeKiro
from gateway import KEY, Running, running
from server.api.rig import capture_all, chat, make_token, wait_for_captures
from wire_json import Json, JsonObject

PATH = "/api/v1/openapi.json"
PAGE = Path(__file__).parents[3] / "docs" / "admin-api.md"
MARK = "<!-- paths: written by tests/server/api/test_openapi.py with DRAGOMAN_WRITE_PAGES=1 -->\n"
IN_TEMPLATE = re.compile(r"\{(\w+)\}")
KIRO = '[providers.kiro]\nkind = "kiro"\nendpoint = "{0}"\nauth_endpoint = "{0}"\ncontrol_endpoint = "{0}"\n'


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("openapi"))
    toml = capture_all(directory) + '[[models]]\nname = "fast-*"\nto = ["echo/echo"]\n'
    with FakeKiro() as kiro, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(directory))
        patch.delenv("XDG_DATA_HOME", raising=False)
        kiro.device.append("authorization_pending")
        with running(toml + KIRO.format(kiro.root), directory, {"HOME": str(directory)}, ["alice"]) as started:
            assert chat(started, started.keys["alice"]) == 200
            wait_for_captures(started, 1)
            yield started


@pytest.fixture(scope="module")
def document(gateway: Running) -> JsonObject:
    reply = asking.send(gateway, "GET", PATH)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    return msgspec.json.decode(reply.body, type=JsonObject)


def list_operations(document: JsonObject) -> Iterator[tuple[str, str, Json]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def list_api_routes(gateway: Running) -> list[HttpRoute]:
    return [route for route in gateway.app.site.routes.routes if route.path.startswith(PREFIX)]


def list_schemas(document: JsonObject) -> Iterator[Json]:
    yield from document["components"]["schemas"].values()
    for _, _, operation in list_operations(document):
        yield from (parameter["schema"] for parameter in operation["parameters"])
        contents = [response["content"] for response in operation["responses"].values()]
        contents += [operation["requestBody"]["content"]] if "requestBody" in operation else []
        yield from (media["schema"] for content in contents for media in content.values())


def test_the_document_keeps_to_openapi_3_1(document: JsonObject) -> None:
    assert document["openapi"].startswith("3.1.")
    assert {"title", "version"} <= document["info"].keys()
    ids = [operation["operationId"] for _, _, operation in list_operations(document)]
    assert len(ids) == len(set(ids))
    schemes = document["components"]["securitySchemes"]
    assert {scheme["type"] for scheme in schemes.values()} <= {"http", "apiKey"}
    for method, path, operation in list_operations(document):
        names = [(parameter["in"], parameter["name"]) for parameter in operation["parameters"]]
        assert len(names) == len(set(names)), (method, path)
        in_path = [parameter for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert [parameter["name"] for parameter in in_path] == IN_TEMPLATE.findall(path)
        assert all(parameter["required"] for parameter in in_path)
        assert method in ("POST", "PUT", "PATCH") or "requestBody" not in operation
        assert all(re.fullmatch("[1-5][0-9][0-9]|default", status) for status in operation["responses"])
        assert all(response["description"] for response in operation["responses"].values())
        assert {name for one in operation["security"] for name in one} <= schemes.keys()


def test_every_schema_is_valid_and_every_reference_leads_somewhere(document: JsonObject) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(re.findall(r'"\$ref":"([^"]*)"', msgspec.json.encode(document).decode())) == known
    for schema in list_schemas(document):
        jsonschema_rs.meta.validate(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"})


def test_the_document_has_every_route_with_its_role_and_scope(gateway: Running, document: JsonObject) -> None:
    served = {
        (route.method, route.path, route.role.value, "" if route.scope is None else route.scope.value)
        for route in list_api_routes(gateway)
    }
    described = {
        (method, path, operation["x-dragoman-role"], "".join(operation["security"][0]["bearer"]))
        for method, path, operation in list_operations(document)
    }
    assert described == served


def test_all_ways_to_send_a_key_need_the_same_scope(document: JsonObject) -> None:
    for _, path, operation in list_operations(document):
        assert len({tuple(*one.values()) for one in operation["security"]}) == 1, path


def test_a_key_is_accepted_in_every_place_that_the_document_names(gateway: Running, document: JsonObject) -> None:
    for name, scheme in document["components"]["securitySchemes"].items():
        query, headers = "", {}
        if scheme["type"] == "http":
            headers = {"authorization": f"Bearer {KEY}"}
        elif scheme["in"] == "header":
            headers = {scheme["name"]: KEY}
        else:
            query = f"?{scheme['name']}={KEY}"
        assert asking.send(gateway, "GET", f"/api/v1/models{query}", key=None, headers=headers).status == 200, name


def test_the_owner_and_every_admin_token_may_read_it(gateway: Running) -> None:
    assert asking.send(gateway, "GET", PATH, key=make_token(gateway)).status == 200
    refused = asking.send(gateway, "GET", PATH, key=gateway.keys["alice"])
    assert (refused.status, refused.json["error"]["code"]) == (403, "admin_required")
    assert asking.send(gateway, "GET", PATH, key=None).status == 401
    assert asking.send(gateway, "GET", f"{PATH}?x=1").status == 400


def forbid_other_fields(schema: Json) -> Json:
    """Return the schema so that an object may have no field that is not described."""
    if isinstance(schema, list):
        return [forbid_other_fields(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: forbid_other_fields(value) for name, value in schema.items()}
    is_record = schema.get("type") == "object" and "properties" in schema
    return strict | {"additionalProperties": False} if is_record else strict


def read_values(media_type: str, body: bytes) -> list[Json]:
    """Return the values of a body that its schema is about."""
    match media_type:
        case "application/json":
            return [msgspec.json.decode(body)]
        case "application/x-ndjson":
            return [msgspec.json.decode(line) for line in body.splitlines()]
        case _:
            return [body.decode()]


class Player:
    """Sends requests and checks the requests and the replies against the document."""

    def __init__(self, gateway: Running, document: JsonObject) -> None:
        self._gateway = gateway
        self._paths: JsonObject = document["paths"]
        self._components: Json = forbid_other_fields(document["components"])
        self.played: set[str] = set()

    def play(self, method: str, path: str, at: str = "", body: object = None, **headers: str) -> asking.Reply:
        """Send a request to a path of the document; `at` is the path and query that are sent, if they differ."""
        operation: JsonObject = self._paths[PREFIX + path][method.lower()]
        if body is not None:
            self.check(operation["requestBody"]["content"]["application/json"]["schema"], body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = asking.send(self._gateway, method, PREFIX + (at or path), body=body, headers=named)
        media_type = reply.headers["content-type"].partition(";")[0]
        status = str(reply.status)
        described = operation["responses"][status if status in operation["responses"] else "default"]
        schema = described["content"][media_type]["schema"]
        values = read_values(media_type, reply.body)
        assert values
        for value in values:
            self.check(schema, value)
        assert ("etag" in reply.headers) == ("headers" in described), (method, path)
        if reply.status < 300:
            self.played.add(operation["operationId"])
        return reply

    def check(self, schema: Json, value: Json) -> None:
        strict = forbid_other_fields(schema) | {"components": self._components}
        errors = [
            f"{error.instance_path}: {error.message}"
            for error in jsonschema_rs.Draft202012Validator(strict).iter_errors(value)
        ]
        assert errors == []


@pytest.fixture(scope="module")
def player(gateway: Running, document: JsonObject) -> Player:
    return Player(gateway, document)


def play_keys(player: Player) -> None:
    made = player.play("POST", "keys", body={"name": "made", "default_thinking": "low"}).json
    player.play("POST", "keys", body={"role": "admin", "scopes": ["usage:read"], "expires_at": int(time.time()) + 60})
    player.play("GET", "keys")
    for _ in range(2):
        player.play("POST", "keys", body={"name": "once"}, idempotency_key="once")
    fields = {"models": ["echo"], "metadata": {"cost centre": "7"}, "limits": {"usd_per_day": 0.5}, "user": None}
    player.play("PATCH", "keys/{id}", f"keys/{made['id']}", fields)
    version = player.play("GET", "keys/{id}", f"keys/{made['id']}").headers["etag"]
    player.play("POST", "keys/{id}/rotate", f"keys/{made['id']}/rotate", {"grace_s": 60}, if_match=version)
    assert player.play("DELETE", "keys/{id}", f"keys/{made['id']}", if_match=version).status == 412
    player.play("DELETE", "keys/{id}", f"keys/{made['id']}")


def play_teams_and_limits(player: Player) -> None:
    player.play("POST", "teams", body={"name": "core", "members": ["dev"], "limits": {"usd_per_day": 2}})
    player.play("GET", "teams")
    version = player.play("GET", "teams/{id}", "teams/core").headers["etag"]
    player.play("PATCH", "teams/{id}", "teams/core", {"each_user": {"tokens_per_day": 1000}}, if_match=version)
    assert player.play("DELETE", "teams/{id}", "teams/core", if_match=version).status == 412
    path = "limits/{scope}/{name}"
    version = player.play("PUT", path, "limits/user/dev", {"usd_per_day": 1, "concurrent": 2}).headers["etag"]
    player.play("GET", path, "limits/user/dev")
    player.play("GET", "limits", "limits?effective=1")
    player.play("POST", f"{path}/forgive", "limits/user/dev/forgive", {"usd": 0.5, "reason": "a mistake of ours"})
    player.play("GET", "audit", "audit?action=limits&actor=nothing")
    player.play("GET", "audit/verify")
    player.play("DELETE", path, "limits/user/dev", if_match=version)
    player.play("DELETE", "teams/{id}", "teams/core")


def play_config(player: Player) -> None:
    player.play("GET", "config")
    shown = player.play("GET", "config/file")
    text = shown.json["text"]
    player.play("POST", "config/check", body={"text": text + "[server]\nprot = 1\n"})
    wrong = player.play("PUT", "config/file", body={"text": text + "[prot]\n"}, if_match=shown.headers["etag"])
    assert wrong.status == 422
    assert player.play("PUT", "config/file", body={"text": text}).status == 428
    player.play("PUT", "config/file", body={"text": text + "\n"}, if_match=shown.headers["etag"])


def play_captures(player: Player) -> None:
    [capture] = player.play("GET", "captures", "captures?limit=1").json["captures"]
    id = capture["request_id"]
    player.play("GET", "captures/{id}", f"captures/{id}?first=1")
    player.play("POST", "captures/{id}/replay", f"captures/{id}/replay", {})
    player.play("POST", "captures/{id}/fixture", f"captures/{id}/fixture", {})
    player.play("GET", "requests/{id}/cache", f"requests/{id}/cache?against={id}")
    assert player.play("GET", "requests/{id}/cache", "requests/unknown/cache").status == 404
    player.play("GET", "live/{id}", f"live/{id}")
    player.play("GET", "live/{id}", "live/unknown")
    assert player.play("DELETE", "live/{id}", "live/unknown").status == 404


def play_requests(player: Player) -> None:
    [request] = player.play("GET", "requests", "requests?q=outcome:ok").json["requests"]
    assert request["captured"]
    assert player.play("GET", "requests", "requests?q=nothing:1").status == 400
    player.play("GET", "requests/export")
    player.play("GET", "requests/export", "requests/export?format=json")
    for query in ("", "?by=rows", "?by=key&step=hour&time_zone=Europe/Berlin", "?by=day", "?by=tag:job"):
        player.play("GET", "usage", f"usage{query}")
    player.play("GET", "usage/speed")


def play_state(player: Player) -> None:
    player.play("GET", "openapi.json")
    player.play("GET", "connect")
    player.play("GET", "feed", "feed?frames=unknown")
    player.play("GET", "doctor")
    player.play("POST", "accounts/sign-in", body={"kind": "kiro"})
    player.play("GET", "models")
    player.play("GET", "accounts")
    player.play("GET", "accounts/quotas")
    player.play("DELETE", "accounts/{id}/cooldowns", "accounts/kiro/cooldowns")
    player.play("GET", "quirks")
    player.play("DELETE", "quirks/{id}", "quirks/kiro")
    player.play("DELETE", "quirks")
    player.play("GET", "audit")


def test_real_requests_and_replies_fit_the_schemas(player: Player, document: JsonObject) -> None:
    for play in (play_requests, play_captures, play_keys, play_teams_and_limits, play_state, play_config):
        play(player)
    not_played = {operation["operationId"] for _, _, operation in list_operations(document)} - player.played
    assert not_played == {"end_live"}  # only its error: tests/console/test_live_faults.py ends requests


def test_a_reply_that_does_not_fit_is_noticed(player: Player, document: JsonObject) -> None:
    schema = document["paths"]["/api/v1/usage/speed"]["get"]["responses"]["200"]["content"]["application/json"][
        "schema"
    ]
    player.check(schema, {"whole": True, "routes": []})
    for wrong in ({"whole": 1, "routes": []}, {"whole": True}, {"whole": True, "routes": [], "more": 1}):
        with pytest.raises(AssertionError):
            player.check(schema, wrong)


def render_paths(document: JsonObject) -> str:
    rows = ["| path | scope | what it does | parameters |\n|---|---|---|---|\n"]
    for method, path, operation in list_operations(document):
        [scopes] = operation["security"][0].values()
        scope = f"`{scopes[0]}`" if scopes else "any"
        own = ", or a client key" if operation["x-dragoman-role"] == "own" else ""
        names = ", ".join(f"`{one['name']}`" for one in operation["parameters"] if one["in"] == "query")
        shown = path.removeprefix(PREFIX)
        rows.append(f"| `{method} {shown}` | {scope}{own} | {operation['summary']} | {names} |\n")
    return "".join(rows)


def test_the_page_lists_every_path(document: JsonObject) -> None:
    before, mark, after = PAGE.read_text().partition(MARK)
    assert mark, f"{PAGE.name} has no place for the paths"
    rest = after[after.index("\n\n") :].removeprefix("\n")
    expected = before + MARK + render_paths(document) + rest
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        PAGE.write_text(expected)
    assert PAGE.read_text() == expected
