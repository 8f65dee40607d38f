"""Thinking that the gateway asks for where clients ask for nothing: by provider, by key, and never where bytes pass."""

from collections.abc import Iterator
from itertools import product

import msgspec
import pytest

from asking import CLIENTS, EXPLAIN, Reply, find_path, make_body
from dragoman.operate.captures.replay.difference import compare_captures
from dragoman.operate.captures.replay.rerun import rerun
from dragoman.server.handler import replay_site
from gateway import KEY
from rig import Rig, run_rig
from waiting import wait_until
from wire_json import Json, JsonObject

UPSTREAMS = ("chat", "responses", "messages", "gemini", "kiro")
SETTING = 'default_thinking = "medium"\n'
PLACES = {
    "chat": "/reasoning_effort",
    "responses": "/reasoning",
    "messages": "/thinking",
    "gemini": "/generationConfig/thinkingConfig",
}
OFF: dict[str, JsonObject] = {
    "chat": {"reasoning_effort": "none"},
    "responses": {"reasoning": {"effort": "none"}},
    "messages": {"thinking": {"type": "disabled"}},
    "gemini": {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}},
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("thinking")
    settings = f'[retry]\nattempts = 1\n[debug]\ncapture = "all"\ndirectory = "{directory / "captures"}"\n'
    options = dict.fromkeys(UPSTREAMS, SETTING)
    with run_rig(directory, settings, upstreams=UPSTREAMS, options=options, keys=["other"]) as rig:
        rig.gateway.settle()
        yield rig


def find_effort(rig: Rig, upstream: str) -> Json:
    """Return how much thinking the last request asked for, in the upstream's own words; None if for none."""
    body = rig.calls(upstream)[-1].json
    match upstream:
        case "chat":
            return body.get("reasoning_effort")
        case "responses":
            return body.get("reasoning", {}).get("effort")
        case "messages":
            return body.get("output_config", {}).get("effort") if body.get("thinking") == {"type": "adaptive"} else None
        case "gemini":
            return body.get("generationConfig", {}).get("thinkingConfig", {}).get("thinkingLevel", "").lower() or None
    text = msgspec.json.encode(body["conversationState"]).decode()
    return text.partition("<thinking_effort>")[2].partition("<")[0] or None


def ask(rig: Rig, client: str, upstream: str, key: str = KEY, **fields: object) -> Reply:
    rig.play(upstream, "Well.", stream=False)
    model = rig.model(upstream)
    return rig.send("POST", find_path(client, model), make_body(client, model) | fields, key=key, headers=EXPLAIN)


def make_key(rig: Rig, **fields: object) -> str:
    reply = rig.send("POST", "/api/v1/keys", fields)
    assert reply.status == 201, reply.body
    return str(reply.json["secret"])


def test_every_translated_pair_asks_for_the_providers_default(rig: Rig) -> None:
    for client, upstream in product(CLIENTS, UPSTREAMS):
        if client == upstream:
            continue
        reply = ask(rig, client, upstream)
        assert reply.status == 200, (client, upstream, reply.body)
        assert find_effort(rig, upstream) == "medium", (client, upstream)
        assert reply.losses.count((PLACES[client], "invented")) == 1, (client, upstream, reply.losses)
        assert [loss for loss in reply.losses if loss[0] == PLACES[client]] == [(PLACES[client], "invented")]


def test_a_kiro_model_with_fields_of_its_own_gets_these(rig: Rig) -> None:
    rig.play("kiro", "Well.")
    reply = rig.send("POST", find_path("chat", ""), make_body("chat", "kiro/claude-opus-4.6"), headers=EXPLAIN)
    fields = rig.calls("kiro")[-1].json["additionalModelRequestFields"]
    assert fields == {"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}
    assert reply.losses == [(PLACES["chat"], "invented")]


def test_a_client_that_switches_thinking_off_keeps_it_off(rig: Rig) -> None:
    for client, upstream in product(CLIENTS, UPSTREAMS):
        if client != upstream:
            reply = ask(rig, client, upstream, **OFF[client])
            assert find_effort(rig, upstream) in (None, "none", "minimal"), (client, upstream)
            assert (PLACES[client], "invented") not in reply.losses, (client, upstream)


def test_bytes_that_pass_unchanged_stay_unchanged(rig: Rig) -> None:
    for protocol in CLIENTS:
        rig.play(protocol, "Well.", stream=False)
        rig.ask(protocol, protocol)
        assert find_effort(rig, protocol) is None, protocol


def test_strict_mode_refuses_the_request_and_names_the_setting(rig: Rig) -> None:
    reply = rig.ask("chat", "responses", headers={"x-dragoman-strict": "1"})
    assert reply.status == 400
    assert "default_thinking is 'medium'" in reply.json["error"]["message"]


def test_a_keys_default_is_used_before_the_providers_and_is_shown(rig: Rig) -> None:
    high = make_key(rig, name="thinker", default_thinking="high")
    budget = make_key(rig, name="budgeted", default_thinking=1000)
    plain = make_key(rig, name="plain")
    for key, effort in ((high, "high"), (budget, "low"), (plain, "medium"), (KEY, "medium")):
        ask(rig, "messages", "chat", key)
        assert find_effort(rig, "chat") == effort
    ask(rig, "messages", "chat", high, thinking={"type": "disabled"})
    assert find_effort(rig, "chat") == "none"
    listed = {key["name"]: key["default_thinking"] for key in rig.send("GET", "/api/v1/keys").json["keys"]}
    assert (listed["thinker"], listed["budgeted"], listed["plain"]) == ("high", 1000, None)
    rotated = rig.send("POST", "/api/v1/keys/thinker/rotate", {"grace_s": 60}).json
    assert rotated["default_thinking"] == "high"
    for key in (high, rotated["secret"]):
        ask(rig, "messages", "chat", key)
        assert find_effort(rig, "chat") == "high"


def test_a_background_response_has_the_default_of_its_key(rig: Rig) -> None:
    key = make_key(rig, name="patient", default_thinking="low")
    rig.play("messages", "Well.")
    created = rig.ask("responses", "messages", key=key, background=True)
    assert created.status == 200, created.body
    path = f"/v1/responses/{created.json['id']}"
    wait_until(lambda: rig.send("GET", path, key=key).json["status"] == "completed")
    assert find_effort(rig, "messages") == "low"


def test_a_captured_request_replays_with_the_defaults_of_its_provider_and_its_key(rig: Rig) -> None:
    for key in (make_key(rig, name="captured", default_thinking=1000), KEY):
        reply = ask(rig, "messages", "responses", key)
        capture = rig.gateway.capture(reply.headers["x-request-id"])
        parts = compare_captures(capture, rerun(capture, replay_site))
        assert [change for part in parts for change in part.changes] == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"default_thinking": "meduim"}, 'did you mean "medium"?'),
        ({"default_thinking": 0}, "a budget of 1 to 1000000 tokens, got '0'"),
        ({"default_thinking": "low", "role": "admin", "scopes": ["usage:read"]}, "makes no model requests"),
    ],
)
def test_a_key_with_a_wrong_default_is_refused(rig: Rig, fields: JsonObject, words: str) -> None:
    reply = rig.send("POST", "/api/v1/keys", {"name": "wrong", **fields})
    assert reply.status == 400, reply.body
    assert words in reply.json["error"]["message"]
    assert reply.json["error"]["field"] == "default_thinking"
