"""Headers about the gateway's own account pass to its owner's key only; what `Connection` names, to none."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from e2e.test_replays import Kept, assert_same, debug
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, Running, provider_section, running
from rig import ENCODERS, ONCE, PATHS, PROTOCOLS
from scripting.replies import ScriptedReply, Text

ACCOUNT = {
    "x-ratelimit-remaining-tokens": "12",
    "x-ratelimit-limit-requests": "500",
    "ratelimit-policy": "100;w=60",
    "anthropic-ratelimit-unified-status": "allowed",
    "anthropic-ratelimit-requests-remaining": "5",
    "anthropic-organization-id": "org-fake",
    "openai-organization": "org-fake",
    "openai-project": "proj_fake",
    "x-codex-primary-used-percent": "7.5",
    "x-codex-plan-type": "plus",
    "x-other-limit-secondary-reset-at": "1800000000",
    "x-quota-snapshot-premium_models": "ent=300&rem=12",
    "retry-after-tokens": "9",
}
PLAIN = {
    "x-should-retry": "true",
    "request-id": "req_vendor",
    "x-codex-turn-state": "opaque",
    "openai-processing-ms": "5",
    "x-odd": "a, b",
}

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@contextmanager
def serve(directory: Path, protocol: str) -> Iterator[tuple[FakeUpstream, Running]]:
    with FakeUpstream() as fake:
        toml = f"{ONCE}\n{provider_section(protocol, fake.url)}"
        with running(toml, directory, stored=("alice",)) as gateway:
            yield fake, gateway


def ask(gateway: Running, key: str, protocol: str, stream: bool, **headers: str) -> HTTPResponse:
    words = {"input": "Hi"} if protocol == "responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    body = json.dumps({"model": "up/m", "stream": stream, "max_tokens": 9, **words})
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    connection.request("POST", PATHS[protocol], body, {"authorization": f"Bearer {key}", **fields})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def answer(protocol: str, stream: bool, *headers: tuple[str, str]) -> Answer:
    encoder, scripted = ENCODERS[protocol], ScriptedReply((Text("Hello"),))
    if stream:
        return Answer(encoder.encode_stream(scripted), headers=headers)
    return Answer(encoder.encode_whole(scripted), content_type="application/json", headers=headers)


def select_headers(answer: HTTPResponse, names: dict[str, str]) -> dict[str, str]:
    return {name: value for name in names if (value := answer.getheader(name)) is not None}


@protocols
@modes
def test_account_headers_of_a_good_answer_pass_to_the_owners_key_only(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    with serve(tmp_path, protocol) as (fake, gateway):
        fake.answers = [answer(protocol, stream, *ACCOUNT.items(), *PLAIN.items())]
        owner = ask(gateway, KEY, protocol, stream)
        stored = ask(gateway, gateway.keys["alice"], protocol, stream)
    assert (owner.status, stored.status) == (200, 200)
    assert select_headers(owner, ACCOUNT) == ACCOUNT
    assert select_headers(stored, ACCOUNT) == {}
    assert select_headers(owner, PLAIN) == select_headers(stored, PLAIN) == PLAIN


@protocols
@modes
def test_account_headers_of_a_refusal_pass_to_the_owners_key_only(tmp_path: Path, protocol: str, stream: bool) -> None:
    error = {"type": "rate_limit_error", "message": "Slow down.", "param": None, "code": None}
    body = json.dumps({"type": "error", "error": error}).encode()
    headers = (*ACCOUNT.items(), *PLAIN.items(), ("retry-after", "7"))
    with serve(tmp_path, protocol) as (fake, gateway):
        fake.answers = [Answer(body, 429, "application/json", headers)]
        owner = ask(gateway, KEY, protocol, stream)
        stored = ask(gateway, gateway.keys["alice"], protocol, stream)
    assert (owner.status, stored.status) == (429, 429)
    assert select_headers(owner, ACCOUNT) == ACCOUNT
    assert select_headers(stored, ACCOUNT) == {}
    assert owner.getheader("retry-after") == stored.getheader("retry-after") == "7"
    assert select_headers(stored, PLAIN) == PLAIN


@protocols
@modes
def test_what_connection_names_does_not_pass_in_either_direction(tmp_path: Path, protocol: str, stream: bool) -> None:
    named = ("connection", "keep-alive, X-Hop-One , x-hop-two")
    hops = {"x-hop-one": "1", "x-hop-two": "2"}
    with serve(tmp_path, protocol) as (fake, gateway):
        fake.answers = [answer(protocol, stream, named, *hops.items(), ("x-kept", "3"))]
        response = ask(gateway, KEY, protocol, stream, connection=named[1], x_hop_one="1", x_hop_two="2", x_kept="3")
    assert response.status == 200
    assert select_headers(response, hops) == {}
    assert response.getheader("x-kept") == "3"
    (request,) = fake.calls
    assert not {"x-hop-one", "x-hop-two"} & request.headers.keys()
    assert request.headers["x-kept"] == "3"


def test_a_version_that_connection_names_is_sent_all_the_same(tmp_path: Path) -> None:
    with serve(tmp_path, "messages") as (fake, gateway):
        fake.answers = [answer("messages", False)]
        ask(gateway, KEY, "messages", False, connection="anthropic-version", anthropic_version="2023-06-01")
    assert fake.calls[0].headers["anthropic-version"] == "2023-06-01"


def test_only_the_owners_key_chooses_an_organisation_upstream(tmp_path: Path) -> None:
    chosen = {"openai_organization": "org-fake", "openai_project": "proj_fake"}
    with serve(tmp_path, "chat") as (fake, gateway):
        fake.answers = [answer("chat", False)]
        ask(gateway, KEY, "chat", False, **chosen)
        ask(gateway, gateway.keys["alice"], "chat", False, **chosen)
    owner, stored = ({"openai-organization", "openai-project"} & request.headers.keys() for request in fake.calls)
    assert owner == {"openai-organization", "openai-project"}
    assert stored == set()


@modes
def test_a_capture_of_a_stored_keys_request_replays_as_it_was(tmp_path: Path, stream: bool) -> None:
    directory = tmp_path / "captures"
    settings = ONCE + debug(directory)
    with (
        FakeUpstream([answer("chat", stream, *ACCOUNT.items())]) as fake,
        running(settings + provider_section("chat", fake.url), tmp_path, stored=("alice",)) as gateway,
    ):
        ask(gateway, gateway.keys["alice"], "chat", stream)
        ask(gateway, KEY, "chat", stream)
        captures = Kept(directory, gateway).take_new(2)
    shown = [sum(name in ACCOUNT for name, _ in capture.response.headers) for capture in captures if capture.response]
    assert sorted(shown) == [0, len(ACCOUNT)]
    assert_same(captures)
