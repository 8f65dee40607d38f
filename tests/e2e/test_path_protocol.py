"""A protocol with model and mode in the path is served and used like any other: only its record knows of the path."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dragoman.translate.protocols import PROTOCOLS
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, Running, provider_section, running
from raw_http import Answered, ask, post, request_bytes
from scripting import JSON, write_reply
from translate.protocols.path_protocol import NAME, PROTOCOL

BODY = b'{ "ask" : "hello" }'
WHOLE = Answer(b'{"text":"hi"}', content_type=JSON)
STREAM = Answer(b'data: {"text":"h"}\n\ndata: {"text":"i"}\n\ndata: {"end":true}\n\n')
CHAT_BODY = b'{"model":"%b","stream":%b,"messages":[{"role":"user","content":"hello"}]}'


class Site:
    """A gateway in front of an upstream of the path protocol and one of Chat."""

    def __init__(self, gateway: Running, own: FakeUpstream, chat: FakeUpstream) -> None:
        self.gateway, self.own, self.chat = gateway, own, chat

    def post(self, path: str, body: bytes = BODY, *fields: str, key: str | None = KEY) -> Answered:
        return post(self.gateway.port, path, body, *fields, key=key)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setitem(PROTOCOLS, NAME, PROTOCOL)
    with FakeUpstream() as own, FakeUpstream(models=("m",)) as chat:
        toml = provider_section(NAME, own.url, "own") + provider_section("chat", chat.url, "chat")
        with running(toml, tmp_path) as gateway:
            yield Site(gateway, own, chat)


@pytest.mark.parametrize("model", ["own/m", "own/a/b:8", "own%2Fm"])
@pytest.mark.parametrize("version", ["/v1", "/v1beta", ""])
def test_the_clients_bytes_pass_to_an_upstream_of_the_same_protocol(site: Site, version: str, model: str) -> None:
    site.own.answers = [WHOLE]
    answer = site.post(f"{version}/models/{model}:generateContent?x=1")
    assert (answer.status, answer.body) == (200, WHOLE.body)
    request = site.own.calls[-1]
    assert request.path == f"/v1/models/{model.replace('%2F', '/').removeprefix('own/')}:generateContent?x=1"
    assert request.body == BODY


def test_the_mode_of_the_path_is_passed_on(site: Site) -> None:
    site.own.answers = [STREAM]
    answer = site.post("/v1beta/models/own/m:streamGenerateContent?alt=sse")
    assert (answer.status, answer.body) == (200, STREAM.body)
    assert site.own.calls[-1].path == "/v1/models/m:streamGenerateContent?alt=sse"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_its_clients_are_served_by_another_protocol(site: Site, stream: bool) -> None:
    site.chat.answers = [write_reply("chat", "hi", stream=stream)]
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    answer = site.post(f"/v1beta/models/chat/m:{verb}")
    assert answer.status == 200, answer.body
    assert (b'data: {"end":true}' in answer.body) is stream
    assert b'"model":"chat/m"' in answer.body
    sent = site.chat.calls[-1]
    assert sent.path == "/v1/chat/completions"
    assert (sent.json["model"], sent.json.get("stream", False)) == ("m", stream)


def test_the_client_chooses_the_framing_of_its_stream(site: Site) -> None:
    site.chat.answers = [write_reply("chat", "hi")]
    answer = site.post("/v1beta/models/chat/m:streamGenerateContent")
    assert answer.get("content-type") == "application/json"
    *pieces, end = msgspec.json.decode(answer.body, type=list[dict[str, object]])
    assert pieces
    assert end == {"end": True}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_its_upstream_serves_another_protocol(site: Site, stream: bool) -> None:
    site.own.answers = [STREAM if stream else WHOLE]
    answer = site.post("/v1/chat/completions", CHAT_BODY % (b"own/m", b"true" if stream else b"false"))
    assert answer.status == 200, answer.body
    assert b"hi" in answer.body or b'"content":"h"' in answer.body
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    assert site.own.calls[-1].path == f"/v1/models/m:{verb}"
    assert site.own.calls[-1].body == b'{"ask":"hello"}'


@pytest.mark.parametrize(
    ("query", "fields"), [(f"?key={KEY}", ()), ("", (f"x-goog-api-key: {KEY}",))], ids=["query", "header"]
)
def test_a_key_in_its_own_place_is_accepted_and_not_forwarded(site: Site, query: str, fields: tuple[str, ...]) -> None:
    site.own.answers = [WHOLE]
    answer = site.post(f"/v1beta/models/own/m:generateContent{query}", BODY, *fields, key=None)
    assert answer.status == 200, answer.body
    request = site.own.calls[-1]
    assert KEY not in request.path
    assert KEY not in str(request.fields)


@pytest.mark.parametrize(
    ("path", "key", "status", "word"),
    [
        ("/v1beta/models/own/m:generateContent", "dgm_wrong", 401, "AUTH"),
        ("/v1beta/models/own/m:generateContent", None, 401, "AUTH"),
        ("/v1beta/models/own/m:doSomethingElse", KEY, 404, "NOT_FOUND"),
        ("/v1beta/unknown/path", KEY, 404, "NOT_FOUND"),
    ],
)
def test_errors_have_its_own_shape(site: Site, path: str, key: str | None, status: int, word: str) -> None:
    answer = site.post(path, key=key)
    error = msgspec.json.decode(answer.body, type=dict[str, dict[str, object]])["error"]
    assert (answer.status, error["code"], error["status"]) == (status, status, word)


def test_tokens_are_estimated_where_its_upstream_does_not_count(site: Site) -> None:
    answer = site.post("/v1beta/models/chat/m:countTokens")
    assert answer.status == 200
    assert msgspec.json.decode(answer.body, type=dict[str, int])["totalTokens"] > 0


def test_the_list_of_models_has_its_shape_on_its_own_path_and_for_its_own_header(site: Site) -> None:
    site.gateway.settle()
    for path, fields in (("/v1beta/models", ()), ("/v1/models", ("x-goog-api-key: x",))):
        listed = ask(site.gateway.port, request_bytes(path, b"", *fields, method="GET"))
        assert "models/chat/m" in msgspec.json.decode(listed.body, type=dict[str, list[str]])["models"]
    one = ask(site.gateway.port, request_bytes("/v1beta/models/chat/m", b"", method="GET"))
    assert one.body == b'{"name":"models/chat/m"}'
    plain = ask(site.gateway.port, request_bytes("/v1/models", b"", method="GET"))
    assert msgspec.json.decode(plain.body, type=dict[str, object])["object"] == "list"
