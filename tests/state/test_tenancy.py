"""What one client key keeps, no other key can see, use or end: every path of clients has its cases here."""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from dragoman.server.routes import AccessRole
from fakes.upstream import Answer, End
from gateway import KEY
from state.parked_rig import Parking, parking
from state.socket_rig import error, response, run, socket
from state.state_rig import AGAIN, HELLO, THOUGHT, StateRig, state_rigged
from waiting import wait_until

ASK = {"model": "chat/m", "input": "Hi"}
KEEPS_NOTHING = re.compile(
    r"GET .*/models(/\*)?|POST .*:countTokens|POST /messages/count_tokens"
    r"|POST /(embeddings|completions|moderations|rerank|images/.*|audio/.*)"
)
STREAMS = re.compile(r"POST (/chat/completions|/messages|/responses|.*:streamGenerateContent)")
REQUEST_ID = re.compile(rb"req_[0-9a-f]{24}")
IDEMPOTENT = re.compile(
    r"POST (/chat/completions|/messages|/responses|/responses/compact|.*:(g|streamG)enerateContent)"
)
SOCKET = "GET /responses"
pairs = pytest.mark.parametrize(
    ("owner", "other"), [("alice", "bob"), ("alice", "environment"), ("environment", "alice")]
)


class Kept(NamedTuple):
    """The ids of what a key keeps."""

    response: str
    item: str
    conversation: str


UNKNOWN = Kept("resp_unknown", "msg_unknown", "conv_unknown")


class Case(NamedTuple):
    route: str
    path: str
    body: object = None


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateRig]:
    with state_rigged(tmp_path_factory.mktemp("tenancy")) as shared:
        shared.gateway.keys["environment"] = KEY
        yield shared


@pytest.fixture(scope="module")
def parked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parking]:
    with parking(tmp_path_factory.mktemp("parked"), "[responses]\npark_s = 600\n") as shared:
        yield shared


def client_routes(rig: StateRig | Parking) -> list[str]:
    return [
        f"{route.method} {route.path}"
        for route in rig.gateway.app.site.routes.routes
        if route.role is AccessRole.CLIENT
    ]


def list_cases(kept: Kept) -> Iterator[Case]:
    """Yield every way to name what is kept by its id."""
    by_parent = {**ASK, "previous_response_id": kept.response}
    in_conversation = {**ASK, "conversation": kept.conversation}
    by_reference = {"model": "chat/m", "input": [{"type": "item_reference", "id": kept.item}]}
    by_bare_id = {"model": "chat/m", "input": [{"id": kept.item}]}
    for body in (by_parent, in_conversation, by_reference, by_bare_id):
        yield Case("POST /responses", "/responses", body)
        yield Case("POST /responses", "/responses", {**body, "stream": True})
        yield Case("POST /responses", "/responses", {**body, "store": False})
        yield Case("POST /responses", "/responses", {**body, "background": True})
        yield Case("POST /responses/input_tokens", "/responses/input_tokens", body)
        yield Case("POST /responses/compact", "/responses/compact", body)
    yield Case("POST /responses", "/responses", {**ASK, "conversation": {"id": kept.conversation}})
    response, conversation = f"/responses/{kept.response}", f"/conversations/{kept.conversation}"
    for query in ("", "?stream=true", "?stream=true&starting_after=0", "?include[]=reasoning.encrypted_content"):
        yield Case("GET /responses/*", response + query)
    yield Case("GET /responses/*", f"{response}/input_items")
    yield Case("POST /responses/*", f"{response}/cancel")
    yield Case("DELETE /responses/*", response)
    mine = [{"role": "user", "content": "Mine."}]
    yield Case("POST /conversations", "/conversations", {"items": [{"type": "item_reference", "id": kept.item}]})
    yield Case("GET /conversations/*", conversation)
    yield Case("GET /conversations/*", f"{conversation}/items")
    yield Case("GET /conversations/*", f"{conversation}/items/{kept.item}")
    yield Case("POST /conversations/*", conversation, {"metadata": {}})
    yield Case("POST /conversations/*", f"{conversation}/items", {"items": mine})
    yield Case("DELETE /conversations/*", f"{conversation}/items/{kept.item}")
    yield Case("DELETE /conversations/*", conversation)


def keep(rig: StateRig, owner: str) -> Kept:
    """Have a key store a response within a conversation."""
    rig.play("chat", HELLO, AGAIN)
    conversation = rig.http("POST", "/conversations", owner, {}).json["id"]
    made = rig.http("POST", "/responses", owner, {**ASK, "conversation": conversation}).json
    return Kept(made["id"], made["output"][0]["id"], conversation)


def test_every_route_of_clients_has_a_case(rig: StateRig) -> None:
    covered = {case.route for case in list_cases(UNKNOWN)} | {SOCKET}
    patterns = (KEEPS_NOTHING, STREAMS, IDEMPOTENT)
    missing = [
        route
        for route in client_routes(rig)
        if route not in covered and not any(pattern.fullmatch(route) for pattern in patterns)
    ]
    assert missing == [], "add their cases to list_cases, or name them in KEEPS_NOTHING"
    assert covered <= set(client_routes(rig))


def check_foreign(rig: StateRig, kept: Kept, other: str) -> None:
    """Another key gets the same answers for these ids as for unknown ones, and nothing reaches an upstream."""
    calls = len(rig.calls("chat"))
    for foreign, missing in zip(list_cases(kept), list_cases(UNKNOWN), strict=True):
        method, _, _ = foreign.route.partition(" ")
        ours, theirs = (rig.http(method, case.path, other, case.body) for case in (foreign, missing))
        renamed = ours.body.decode()
        for one, another in zip(kept, UNKNOWN, strict=True):
            renamed = renamed.replace(one, another)
        assert (ours.status, renamed) == (theirs.status, theirs.body.decode()), foreign
        assert ours.headers.keys() == theirs.headers.keys(), foreign
        assert ours.status in (400, 404), foreign
    assert len(rig.calls("chat")) == calls


@pairs
def test_the_ids_of_another_key_are_answered_exactly_like_unknown_ones(rig: StateRig, owner: str, other: str) -> None:
    kept = keep(rig, owner)
    check_foreign(rig, kept, other)
    assert rig.http("GET", f"/responses/{kept.response}", owner).json["id"] == kept.response
    assert len(rig.http("GET", f"/conversations/{kept.conversation}/items", owner).json["data"]) == 2


@pairs
def test_a_background_response_under_way_is_seen_and_cancelled_by_its_key_alone(
    rig: StateRig, owner: str, other: str
) -> None:
    upstream = rig.play("chat", HELLO)
    upstream.answers = [Answer(b": working\n\n", end=End.HANG)]
    made = rig.http("POST", "/responses", owner, {**ASK, "background": True, "stream": False}).json
    wait_until(lambda: rig.http("GET", f"/responses/{made['id']}", owner).json["status"] == "in_progress")
    wait_until(lambda: bool(rig.calls("chat")))
    check_foreign(rig, UNKNOWN._replace(response=made["id"]), other)
    assert rig.http("GET", f"/responses/{made['id']}", owner).json["status"] == "in_progress"
    assert rig.http("POST", f"/responses/{made['id']}/cancel", owner).json["status"] == "cancelled"


@pairs
def test_a_websocket_knows_only_the_ids_of_its_key(rig: StateRig, owner: str, other: str) -> None:
    kept = keep(rig, owner)
    rig.play("chat", HELLO, stream=True)
    with socket(rig, owner) as remembering, socket(rig, other) as foreign, socket(rig, owner) as second:
        remembered = response(run(remembering))["id"]
        for name in (kept.response, remembered):
            refused = run(foreign, previous_response_id=name)
            assert error(refused)["code"] == "previous_response_not_found"
            assert name in str(error(refused)["message"])
            refused = run(foreign, previous_response_id=name, generate=False)
            assert error(refused)["code"] == "previous_response_not_found"
        assert error(run(second, previous_response_id=remembered))["code"] == "previous_response_not_found"
        for fields in (
            {"input": [{"type": "item_reference", "id": kept.item}]},
            {"input": [{"id": kept.item}]},
            {"conversation": kept.conversation},
        ):
            assert run(foreign, **fields)[-1]["status"] == 404
    assert len(rig.calls("chat")) == 1


@pairs
def test_the_opaque_reasoning_of_another_key_is_not_filled_in(rig: StateRig, owner: str, other: str) -> None:
    rig.play("messages", THOUGHT, AGAIN, AGAIN)
    body = {"model": rig.model("messages"), "reasoning": {"effort": "high"}}
    thought = rig.http("POST", "/responses", owner, {**body, "input": "Hi"}).json["output"][0]
    history = [{"type": "reasoning", "id": thought["id"], "summary": []}, {"role": "user", "content": "More"}]
    for key, expected in ((other, 0), (owner, 1)):
        assert rig.http("POST", "/responses", key, {**body, "input": history}).status == 200
        assert rig.calls("messages")[-1].body.count(b"sig-1") == expected


def write_body(route: str) -> tuple[str, bytes]:
    """Return the path and the body of a request to a route, for an upstream of the same protocol."""
    path = route.removeprefix("POST ").replace("projects/{model}", "projects/p/locations/l/publishers/{model}")
    path = path.replace("publishers/{model}", "publishers/google/models/{model}").replace("{model}", "gemini/m")
    if ":" in path:
        return path, json.dumps({"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}).encode()
    protocol = {"/chat/completions": "chat", "/messages": "messages"}.get(path, "responses")
    turns = {"input": "Hi"} if protocol == "responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    stream = {} if path.endswith("/compact") else {"stream": True}
    return f"/v1{path}", json.dumps({"model": f"{protocol}/m", "max_tokens": 99, **turns, **stream}).encode()


def test_a_run_is_resumed_by_its_key_alone_on_every_path(parked: Parking) -> None:
    routes = [route for route in client_routes(parked) if STREAMS.fullmatch(route)]
    assert len(routes) > 10
    unknown = "run_" + "0" * 48
    for route in routes:
        path, body = write_body(route)
        begun = parked.post(path, body, "x-dragoman-park: 1")
        found = begun.get("x-dragoman-run")
        assert (begun.status, bool(found)) == (200, True), route
        foreign, missing = (parked.post(path, b"", f"x-dragoman-resume: {id}:0", key="bob") for id in (found, unknown))
        assert foreign.status == 404, route
        masked = REQUEST_ID.sub(b"", foreign.body).replace(str(found).encode(), unknown.encode())
        assert masked == REQUEST_ID.sub(b"", missing.body), route
        assert parked.post(path, b"", f"last-event-id: {found}:0", key="bob").status == 404
        assert parked.post(path, b"", f"x-dragoman-resume: {found}:0").status == 200, route


def test_an_idempotency_key_belongs_to_one_client_key_on_every_path(parked: Parking) -> None:
    routes = [route for route in client_routes(parked) if IDEMPOTENT.fullmatch(route)]
    assert len(routes) > 20
    for number, route in enumerate(routes):
        path, body = write_body(route)
        key = f"idempotency-key: same-{number}"
        replies = [parked.post(path, body, key, key=name) for name in ("alice", "alice", "bob")]
        assert [reply.status for reply in replies] == [200, 200, 200], (route, replies[0].body)
        runs = [reply.get("x-dragoman-run") for reply in replies]
        assert runs[0] == runs[1] != runs[2], route
