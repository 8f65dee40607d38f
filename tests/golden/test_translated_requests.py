"""What each upstream is sent for a client's request: whole requests as files, for whoever reviews a change.

`tests/golden/CLIENT_PROTOCOL/REQUEST/UPSTREAM_PROTOCOL.json` has the path, the body and the losses; where the bytes
pass, only what differs. `refused` says which parts of the request this upstream cannot be sent; the rest is sent. Write
the files again with DRAGOMAN_WRITE_PAGES=1, and review the difference.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import asking
from clients.captured import list_captured
from deletion import Turned, find_blamed, leaves, outcome, pointer, remove_value
from rig import ALL_UPSTREAMS, CLIENTS, Rig, run_rig
from wire_json import Json, JsonObject

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
VERSION = re.compile(r"-\d.*")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Prompts and descriptions fill most of an agent's request, and are copied as they are.
PROSE = frozenset(("text", "description", "content", "instructions", "system"))
LONGEST_PROSE = 80
MOST_TOOLS = 4
MOST_BYTES = 600_000


@dataclass(frozen=True)
class ClientRequest:
    """A request of a client, with long prose shortened."""

    protocol: str
    name: str
    body: JsonObject
    stream: bool


def list_requests() -> Iterator[ClientRequest]:
    """Return a request with every field for each protocol, and the largest request of the newest of each client."""
    for protocol in CLIENTS:
        body = msgspec.json.decode((FIXTURES / protocol / "request.json").read_bytes(), type=JsonObject)
        yield ClientRequest(protocol, "every-field", body, body.get("stream") is True)
    newest: dict[tuple[str, str], tuple[str, int, ClientRequest]] = {}
    for found in list_captured():
        folder = found.name.partition("/")[0]
        if found.method != "POST" or found.protocol is None:
            continue
        stream = found.path.endswith(":streamGenerateContent") or found.json.get("stream") is True
        client = VERSION.sub("", folder)
        request = ClientRequest(found.protocol, client, shorten(found.json), stream)
        ranked = (folder, len(found.body), request)
        if (client, found.protocol) not in newest or ranked[:2] > newest[client, found.protocol][:2]:
            newest[client, found.protocol] = ranked
    yield from (request for _, _, request in newest.values())


def shorten(value: Json, key: str = "") -> Json:
    """Return a body with the first words of long prose, and the first tools."""
    if isinstance(value, dict):
        return {name: shorten(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        few = value[:MOST_TOOLS] if key in ("tools", "functionDeclarations") else value
        return [shorten(inner, key) for inner in few]
    is_long = isinstance(value, str) and key in PROSE and len(value) > LONGEST_PROSE
    return f"{value[:LONGEST_PROSE]}…" if is_long else value


REQUESTS = {f"{request.protocol}/{request.name}": request for request in list_requests()}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("golden"), upstreams=ALL_UPSTREAMS) as shared:
        shared.gateway.settle()
        yield shared


def send(rig: Rig, request: ClientRequest, upstream: str) -> JsonObject:
    """Send a request, and describe what the upstream got."""
    rig.play(upstream, "Hello", stream=request.stream)
    accepted, refusals = leave_out_refused(request, upstream)
    model = rig.model(upstream)
    if request.protocol == "gemini":
        verb = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        path, body = f"/v1beta/models/{model}:{verb}", accepted
    else:
        path, body = asking.PATHS[request.protocol], accepted | {"model": model}
    reply = rig.send("POST", path, body, headers=asking.EXPLAIN)
    assert reply.status == 200, reply.body
    [sent] = rig.calls(upstream)
    if request.protocol == upstream:
        return {"path": sent.path, "changed": list_changes(body, sent.json)}
    losses = msgspec.json.decode(reply.headers["x-dragoman-loss-detail"])
    described = {"path": sent.path, "losses": losses, "body": name_ids(sent.json, body)}
    return {"refused": refusals, **described} if refusals else described


def leave_out_refused(request: ClientRequest, upstream: str) -> tuple[JsonObject, list[str]]:
    """Return the request less what is refused for this upstream, and each refusal."""
    body, refusals = request.body, list[str]()
    while request.protocol != upstream and isinstance(found := outcome(request.protocol, upstream, body), Turned):
        assert found.at, f"a refusal that names nothing: {found.message}"
        body = remove_value(body, find_blamed(body, found.at))
        refusals.append(found.message)
    return body, refusals


def list_changes(before: JsonObject, after: JsonObject) -> dict[str, object]:
    """Return the leaves that differ, with their new values; None for one that is gone."""
    old = {pointer(path): value for path, value in leaves(before)}
    new = {pointer(path): value for path, value in leaves(after)}
    return {where: new.get(where) for where in (old | new) if old.get(where) != new.get(where)}


def name_ids(sent: JsonObject, received: JsonObject) -> Json:
    """Return the body with a name instead of each random id that the gateway has made."""
    text, known = msgspec.json.encode(sent).decode(), msgspec.json.encode(received).decode()
    made = dict.fromkeys(id for id in UUID.findall(text) if id not in known)
    for number, id in enumerate(made, 1):
        text = text.replace(id, f"random-id-{number}")
    return msgspec.json.decode(text)


def format_golden(value: JsonObject) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


@pytest.mark.parametrize("upstream", ALL_UPSTREAMS)
@pytest.mark.parametrize("name", REQUESTS)
def test_the_upstream_gets_the_request_of_the_file(rig: Rig, name: str, upstream: str) -> None:
    file = HERE / name / f"{upstream}.json"
    found = format_golden(send(rig, REQUESTS[name], upstream))
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(found)
    assert file.is_file(), f"there is no {file.name} of {name}: write it with DRAGOMAN_WRITE_PAGES=1"
    assert found.decode() == file.read_text()


def test_every_file_belongs_to_a_request_and_they_are_small() -> None:
    files = sorted(HERE.rglob("*.json"))
    expected = {HERE / name / f"{upstream}.json" for name in REQUESTS for upstream in ALL_UPSTREAMS}
    assert set(files) == expected
    assert sum(file.stat().st_size for file in files) < MOST_BYTES
