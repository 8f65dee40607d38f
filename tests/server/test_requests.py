"""Requests as clients send them over HTTP, and what reaches the upstream: keys, versions, shapes and caps."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import asking
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, provider_section, running
from scripting import write_reply
from wire_json import JsonObject

LISTED = [
    {"id": "writer", "display_name": "Writer", "created": 1, "max_input_tokens": 5000, "max_tokens": 7777},
    {"id": "reader", "display_name": "Reader", "created": 1},
]
BEARER = {"authorization": f"Bearer {KEY}"}


class Upstream(FakeUpstream):
    """Answers in Chat and in Messages, and lists two models."""

    def _answer(self, request: ReceivedRequest) -> Answer:
        if request.method == "GET":
            return Answer(msgspec.json.encode({"data": LISTED}), content_type="application/json")
        protocol = "chat" if request.path.endswith("/chat/completions") else "messages"
        return write_reply(protocol, "Hello.", stream=False)


@dataclass
class Door:
    gateway: Running
    upstream: FakeUpstream

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, JsonObject]:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = asking.send(self.gateway, method, path, body, key=None, headers=fields)
        return reply.status, reply.json

    def last_request(self) -> ReceivedRequest:
        return self.upstream.calls[-1]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with Upstream() as upstream:
        sections = [
            provider_section("messages", upstream.url, "vendor"),
            provider_section("chat", upstream.url, "local"),
        ]
        with running("\n".join(sections), Path(tmp_path_factory.mktemp("door"))) as gateway:
            yield Door(gateway, upstream)


def make_body(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], **more}


# Keys


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer of-another-server", "x_api_key": KEY},
        {"authorization": f"Bearer {KEY}", "x_api_key": "of-another-server"},
        {"authorization": "Basic abc", "x_goog_api_key": KEY},
    ],
    ids=["the second is right", "the first is right", "another scheme"],
)
def test_a_client_that_sends_two_keys_needs_one_that_is_right(door: Door, headers: dict[str, str]) -> None:
    assert door.ask("GET", "/v1/models", **headers)[0] == 200


def test_two_wrong_keys_are_no_key(door: Door) -> None:
    status, body = door.ask("GET", "/v1/models", authorization="Bearer a", x_api_key="b")
    assert status == 401
    assert body["error"]["code"] == "invalid_api_key"


# Models


def test_anthropics_clients_get_every_field_of_a_model(door: Door) -> None:
    _, body = door.ask("GET", "/v1/models", anthropic_version="2023-06-01", **BEARER)
    writer = next(model for model in body["data"] if model["id"] == "vendor/writer")
    assert writer == {
        "id": "vendor/writer",
        "type": "model",
        "display_name": "Writer",
        "created_at": "1970-01-01T00:00:01Z",
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "capabilities": None,
        "max_input_tokens": 5000,
        "max_tokens": 7777,
    }


@pytest.mark.parametrize("number", ["9" * 5000, "%C2%B2", "%D9%A3", "-1", "1e9", ""])
@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("limit", {"anthropic_version": "2023-06-01"}),
        ("pageSize", {"x_goog_api_client": "x"}),
        ("pageToken", {"x_goog_api_client": "x"}),
    ],
)
def test_no_number_breaks_a_list_of_models(door: Door, name: str, headers: dict[str, str], number: str) -> None:
    status, body = door.ask("GET", f"/v1/models?{name}={number}", **BEARER, **headers)
    assert status == 200, body


@pytest.mark.parametrize("header", ["x_goog_api_key", "x_goog_api_client"])
def test_googles_clients_get_the_same_names_in_their_own_shape(door: Door, header: str) -> None:
    _, plain = door.ask("GET", "/v1/models", **BEARER)
    _, body = door.ask("GET", "/v1/models", **BEARER, **{header: KEY})
    assert [model["name"] for model in body["models"]] == [f"models/{model['id']}" for model in plain["data"]]
    writer = next(model for model in body["models"] if model["name"] == "models/vendor/writer")
    assert (writer["inputTokenLimit"], writer["outputTokenLimit"]) == (5000, 7777)
    assert "generateContent" in writer["supportedGenerationMethods"]


def test_a_model_may_be_requested_before_the_list_is_read(tmp_path: Path) -> None:
    with Upstream() as upstream, running(provider_section("chat", upstream.url, "local"), tmp_path) as gateway:
        status, body = Door(gateway, upstream).ask("GET", "/v1/models/local%2Fwriter", **BEARER)
    assert (status, body["id"]) == (200, "local/writer")


# Versions


def test_a_request_without_a_version_gets_the_one_that_every_server_knows(door: Door) -> None:
    assert door.ask("POST", "/v1/messages", make_body("vendor/writer", max_tokens=5), **BEARER)[0] == 200
    assert [value for name, value in door.last_request().fields if name == "anthropic-version"] == ["2023-06-01"]


def test_a_version_that_the_client_names_stays(door: Door) -> None:
    body = make_body("vendor/writer", max_tokens=5)
    door.ask("POST", "/v1/messages", body, anthropic_version="2026-10-21", **BEARER)
    assert [value for name, value in door.last_request().fields if name == "anthropic-version"] == ["2026-10-21"]


def test_betas_belong_to_the_body_even_where_it_is_opened_for_its_envelopes(door: Door) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "dgm1.AAAA"}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [thought]}]
    body = make_body("vendor/writer", max_tokens=5, stop_sequences=["x"]) | {"messages": [*turns, turns[0]]}
    fields = {"anthropic_version": "2026-10-21", "anthropic_beta": "context-management-2025-06-27"}
    assert door.ask("POST", "/v1/messages?beta=true", body, **BEARER, **fields)[0] == 200
    sent = door.last_request()
    assert sent.path.endswith("/messages?beta=true")
    assert sent.headers["anthropic-version"] == "2026-10-21"
    assert sent.headers["anthropic-beta"] == "context-management-2025-06-27"
    assert b"dgm1" not in sent.body


# Caps


@pytest.mark.parametrize(("model", "cap"), [("writer", 7777), ("reader", 32_000)], ids=["listed", "not listed"])
def test_a_missing_cap_is_the_most_that_the_model_writes(door: Door, model: str, cap: int) -> None:
    door.ask("GET", "/v1/models", **BEARER)
    door.ask("POST", "/v1/chat/completions", make_body(f"vendor/{model}"), **BEARER)
    assert door.last_request().json["max_tokens"] == cap


def test_a_cap_beyond_what_the_model_writes_is_lowered(door: Door) -> None:
    door.ask("GET", "/v1/models", **BEARER)
    body = make_body("vendor/writer", max_completion_tokens=9000)
    status, refusal = door.ask("POST", "/v1/chat/completions", body, **BEARER, x_dragoman_strict="1")
    assert status == 400
    assert "/max_completion_tokens approximated" in refusal["error"]["message"]


# Shapes

FUNCTION = {"type": "function", "name": "f", "parameters": {"properties": {"messages": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("model", "content"), [("local/m", "Hi"), ("vendor/m", [{"type": "text", "text": "Hi"}])], ids=["chat", "messages"]
)
@pytest.mark.parametrize("tools", [[], [FUNCTION]], ids=["plain", "with a property called messages"])
def test_a_body_of_responses_on_chats_path_is_answered_as_chat_answers(
    door: Door, model: str, content: object, tools: list[JsonObject]
) -> None:
    body = {"model": model, "input": [{"role": "user", "content": "Hi"}], "tools": tools}
    status, reply = door.ask("POST", "/v1/chat/completions", body, **BEARER)
    assert status == 200
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"]["content"] == "Hello."
    assert door.last_request().json["messages"] == [{"role": "user", "content": content}]


def test_a_chat_body_may_use_input_too(door: Door) -> None:
    assert door.ask("POST", "/v1/chat/completions", make_body("local/m", input="x"), **BEARER)[0] == 200
    assert door.last_request().json["input"] == "x"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"], ids=["translated", "passed through"])
def test_half_a_surrogate_pair_is_no_reason_to_refuse(door: Door, path: str) -> None:
    body = msgspec.Raw(b'{"model":"vendor/m","max_tokens":9,"messages":[{"role":"user","content":"a \\ud83d b"}]}')
    assert door.ask("POST", path, body, **BEARER)[0] == 200
    translated = path == "/v1/chat/completions"
    assert ("a \ufffd b".encode() if translated else b"a \\ud83d b") in door.last_request().body
