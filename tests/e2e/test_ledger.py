"""The ledger in the headers, and strict mode: losses are reported, or refused before the upstream gets a request."""

import msgspec
import pytest

from asking import Reply
from rig import PATHS, PROTOCOLS, Rig
from scripting import Scripted
from scripting.replies import ScriptedReply, Stop, Text
from wire_json import JsonObject

USER = [{"role": "user", "content": "Go on."}]
# No other protocol has these: what the ledger must name, in the client's own terms.
LOSSY: dict[str, tuple[JsonObject, set[str]]] = {
    "chat": ({"messages": USER, "logit_bias": {"50": 1}, "größe": 1}, {"/logit_bias", "/größe"}),
    "responses": ({"input": USER, "truncation": "auto", "größe": 1}, {"/truncation", "/größe"}),
    "messages": ({"messages": USER, "max_tokens": 99, "top_k": 5, "größe": 1}, {"/top_k", "/größe"}),
}
LOSSLESS: dict[str, JsonObject] = {
    "chat": {"messages": USER, "max_completion_tokens": 99, "temperature": 0.5},
    "responses": {"input": USER, "max_output_tokens": 99, "temperature": 0.5},
    "messages": {"messages": USER, "max_tokens": 99, "temperature": 0.5},
}
PAIRS = [(client, upstream) for client in PROTOCOLS for upstream in PROTOCOLS if client != upstream]

pairs = pytest.mark.parametrize(("client", "upstream"), PAIRS)
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def send(
    rig: Rig, client: str, upstream: str, request: JsonObject, *named: str, scripted: Scripted = "The reply."
) -> Reply:
    """Send the request; `named` are headers that are switched on."""
    stream = bool(request.get("stream"))
    rig.play(upstream, scripted, stream=stream)
    body = {"model": rig.model(upstream), **request}
    return rig.send("POST", PATHS[client], body, headers=dict.fromkeys(named, "1"))


def losses(answer: Reply) -> list[dict[str, str]]:
    detail = answer.headers["x-dragoman-loss-detail"]
    assert detail.isascii()
    entries = msgspec.json.decode(detail, type=list[dict[str, str]])
    for entry in entries:
        assert entry.keys() == {"path", "how", "why"}
        assert entry["how"] in ("dropped", "approximated", "invented")
        assert entry["why"]
    return entries


@pairs
@modes
def test_every_loss_is_counted_and_explained_on_demand(rig: Rig, client: str, upstream: str, stream: bool) -> None:
    request, lost = LOSSY[client]
    answer = send(rig, client, upstream, {**request, "stream": stream}, "x-dragoman-explain")
    assert answer.status == 200
    response = losses(answer)
    assert lost <= {entry["path"] for entry in response}
    assert answer.headers["x-dragoman-loss"] == str(len(response))
    assert answer.headers["x-dragoman-route"] == rig.model(upstream)


@pairs
@modes
def test_by_default_only_the_number_of_losses_is_sent(rig: Rig, client: str, upstream: str, stream: bool) -> None:
    answer = send(rig, client, upstream, {**LOSSY[client][0], "stream": stream})
    assert int(answer.headers["x-dragoman-loss"]) >= len(LOSSY[client][1])
    assert "x-dragoman-loss-detail" not in answer.headers


@pairs
@modes
def test_strict_mode_refuses_before_the_upstream_is_called(rig: Rig, client: str, upstream: str, stream: bool) -> None:
    request, lost = LOSSY[client]
    answer = send(rig, client, upstream, {**request, "stream": stream}, "x-dragoman-strict")
    assert answer.status == 400
    error = answer.json["error"]
    assert error["type"] == "invalid_request_error"
    assert all(path in error["message"] for path in lost)
    if client == "messages":
        assert lost <= {entry["path"] for entry in error["details"]["losses"]}
    assert rig.fakes[upstream].calls == []


@pairs
@modes
def test_strict_mode_lets_a_lossless_request_pass(rig: Rig, client: str, upstream: str, stream: bool) -> None:
    fields = ("x-dragoman-strict", "x-dragoman-explain")
    answer = send(rig, client, upstream, {**LOSSLESS[client], "stream": stream}, *fields)
    assert answer.status == 200, answer.body
    assert losses(answer) == []
    assert answer.headers["x-dragoman-loss"] == "0"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@modes
def test_a_passthrough_has_no_losses(rig: Rig, protocol: str, stream: bool) -> None:
    fields = ("x-dragoman-strict", "x-dragoman-explain")
    answer = send(rig, protocol, protocol, {**LOSSY[protocol][0], "stream": stream}, *fields)
    assert answer.status == 200
    assert [name for name in answer.headers if name.startswith("x-dragoman-loss")] == []


@pytest.mark.parametrize("client", ["chat", "responses"])
def test_losses_of_a_whole_reply_are_sent_too(rig: Rig, client: str) -> None:
    scripted = ScriptedReply((Text("I will not."),), Stop.FILTERED, explanation="It is forbidden.")
    answer = send(rig, client, "messages", LOSSLESS[client], "x-dragoman-explain", scripted=scripted)
    assert "/stop_details/category" in {entry["path"] for entry in losses(answer)}


@pytest.mark.parametrize("client", ["chat", "responses"])
def test_the_headers_of_a_stream_list_only_losses_of_the_request(rig: Rig, client: str) -> None:
    scripted = ScriptedReply((Text("I will not."),), Stop.FILTERED, explanation="It is forbidden.")
    request = {**LOSSLESS[client], "stream": True}
    answer = send(rig, client, "messages", request, "x-dragoman-explain", scripted=scripted)
    assert losses(answer) == []
    assert answer.headers["x-dragoman-loss"] == "0"
    assert rig.gateway.outcome(answer.headers["x-request-id"]).losses > 0


def test_an_invented_cap_is_a_loss(rig: Rig) -> None:
    answer = send(rig, "chat", "messages", {"messages": USER}, "x-dragoman-explain")
    assert [entry["how"] for entry in losses(answer)] == ["invented"]


@pytest.mark.parametrize("client", PROTOCOLS)
def test_a_thousand_losses_fit_into_the_header(rig: Rig, client: str) -> None:
    upstream = "messages" if client != "messages" else "chat"
    strange = {f"unbekannte_größe_{n}": n for n in range(1000)}
    answer = send(rig, client, upstream, {**LOSSLESS[client], **strange}, "x-dragoman-explain")
    assert answer.status == 200
    assert int(answer.headers["x-dragoman-loss"]) == 1000
    assert "more losses" in losses(answer)[-1]["why"]
    assert sum(len(name) + len(value) + 4 for name, value in answer.fields) < 16 * 1024
