"""Two client keys of one gateway: nothing that one key's requests leave behind reaches or steers the other's."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import pytest

from asking import PATHS, send
from e2e.pool_rig import Keyed, keys_of, make_section
from fakes.codex import RESPONSES, FakeCodex
from fakes.kiro import FakeKiro, make_framed, tail, tool, words
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, provider_section, running
from rig import QUICK
from scripting import write_reply
from waiting import wait_until
from wire_json import Json

STORED = ("alice", "bob")
PRIVATE = '{"path": "private-notes.txt'
CUT = make_framed(words("I will write it."), tool("t1", "write", input=PRIVATE))
SORRY = make_framed(words("Sorry."), tail())
WRITE = {"name": "write", "description": "Writes a file.", "input_schema": {"type": "object", "required": ["text"]}}
REPLY = write_reply("chat", "Hello.", stream=False)


def ask(gateway: Running, key: str, protocol: str, body: dict[str, object], **headers: str) -> Json:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = send(gateway, "POST", PATHS[protocol], body, key=key, headers=fields)
    assert reply.status == 200, reply.body
    return None if body.get("stream") else reply.json


@pytest.fixture(params=["two stored keys", "a stored key and the environment's"])
def pair(request: pytest.FixtureRequest) -> Callable[[Running], tuple[str, str]]:
    """The key whose request comes first, and the key that must not be affected."""
    if request.param == "two stored keys":
        return lambda gateway: (gateway.keys["alice"], gateway.keys["bob"])
    return lambda gateway: (KEY, gateway.keys["bob"])


@contextmanager
def kiro(directory: Path) -> Iterator[tuple[FakeKiro, Running]]:
    with FakeKiro() as fake:
        credentials = fake.sign_in(directory / "kiro-auth-token.json")
        toml = QUICK + fake.section(credentials, "kiro", repair_truncation=False)
        with running(toml, directory, stored=STORED) as gateway:
            yield fake, gateway


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_lost_call_of_one_key_is_not_in_requests_of_another_key(
    tmp_path: Path, stream: bool, pair: Callable[[Running], tuple[str, str]]
) -> None:
    body = {
        "model": "kiro/claude-sonnet-4.5",
        "max_tokens": 1000,
        "stream": stream,
        "tools": [WRITE],
        "messages": [{"role": "user", "content": "Write my notes."}],
    }
    with kiro(tmp_path) as (fake, gateway):
        first, second = pair(gateway)
        fake.replies = [CUT, SORRY, SORRY]
        ask(gateway, first, "messages", body)
        ask(gateway, second, "messages", body)
        assert b"private-notes" not in fake.chats[1].body
        ask(gateway, first, "messages", body)
        assert b"private-notes" in fake.chats[2].body, "its own key still gets the notice"


CONVERSATIONS: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "by its first words": ({}, {}),
    "by a header": ({}, {"x_session_id": "s-1"}),
    "by a cache key": ({"prompt_cache_key": "c-1"}, {}),
}


@pytest.mark.parametrize("named", CONVERSATIONS)
def test_one_key_does_not_move_another_keys_conversation_to_a_credential(tmp_path: Path, named: str) -> None:
    fields, headers = CONVERSATIONS[named]
    body = {"model": "up/m", "messages": [{"role": "user", "content": "Go on."}], **fields}
    keyed = Keyed("chat")
    with FakeUpstream(choose=keyed) as upstream:
        toml = QUICK + make_section("chat", upstream.url, keys_of(8))
        with running(toml, tmp_path, stored=STORED) as gateway:
            gateway.settle()
            alice, bob = gateway.keys["alice"], gateway.keys["bob"]
            ask(gateway, alice, "chat", body, **headers)
            (home,) = keyed.take_used()
            others = [key for key in keys_of(8) if key != home]
            # All but one of the credentials refuse: bob's conversation moves to that one. Alice's must stay.
            limited = Answer(b'{"error":{"message":"slow down"}}', 429, "application/json", (("retry-after", "9"),))
            keyed.refusals = {key: limited for key in keys_of(8) if key != others[0]}
            ask(gateway, bob, "chat", body, **headers)
            keyed.take_used()
            keyed.refusals = {}
            pool = gateway.app.gateway.runtime.providers["up"].account.pool
            assert pool is not None
            pool.clock = lambda: time.time() + 1000
            ask(gateway, alice, "chat", body, **headers)
            assert keyed.take_used() == [home]
            ask(gateway, bob, "chat", body, **headers)
            assert keyed.take_used() == [others[0]]


def test_a_kept_response_binds_only_the_key_that_got_it(tmp_path: Path) -> None:
    keyed, numbers = Keyed("responses"), count(1)

    def answer(sent_request: ReceivedRequest) -> Answer:
        played = keyed(sent_request)
        return replace(
            played, body=msgspec.json.encode({**msgspec.json.decode(played.body), "id": f"resp_{next(numbers)}"})
        )

    with FakeUpstream(choose=answer) as upstream:
        toml = QUICK + make_section("responses", upstream.url, keys_of(8))
        with running(toml, tmp_path, stored=STORED) as gateway:
            gateway.settle()
            first = ask(gateway, gateway.keys["alice"], "responses", {"model": "up/m", "input": "Go on."})
            (home,) = keyed.take_used()
            body = {"model": "up/m", "input": "And now?", "previous_response_id": first["id"]}
            for number in range(12):
                ask(gateway, gateway.keys["alice"], "responses", {**body, "prompt_cache_key": f"c-{number}"})
                assert keyed.take_used() == [home]
                with pytest.raises(AssertionError, match="previous_response_not_found"):
                    ask(gateway, gateway.keys["bob"], "responses", {**body, "prompt_cache_key": f"c-{number}"})
                assert keyed.take_used() == [], "bob's request is refused as if the id were unknown"


def repeat_in_error(sent_request: ReceivedRequest) -> Answer:
    """Repeats the client's text in an error that names a field."""
    if b"Provoke" in sent_request.body and b'"max_completion_tokens"' in sent_request.body:
        body = b'{"error":{"message":"max_completion_tokens: Extra inputs are not permitted","type":"invalid"}}'
        return Answer(body, status=422, content_type="application/json")
    return REPLY


def test_a_quirk_that_one_key_provokes_does_not_change_another_keys_requests(
    tmp_path: Path, pair: Callable[[Running], tuple[str, str]]
) -> None:
    def body(words: str) -> dict[str, object]:
        return {"model": "up/m", "max_tokens": 9, "messages": [{"role": "user", "content": words}]}

    with (
        FakeUpstream(choose=repeat_in_error) as fake,
        running(provider_section("chat", fake.url), tmp_path, stored=STORED) as gateway,
    ):
        first, second = pair(gateway)
        ask(gateway, first, "messages", body("Provoke"))
        assert ["max_completion_tokens" in sent_request.json for sent_request in fake.calls] == [True, False]
        ask(gateway, second, "messages", body("Hi"))
        assert "max_completion_tokens" in fake.calls[-1].json
        ask(gateway, first, "messages", body("Hi"))
        assert "max_completion_tokens" not in fake.calls[-1].json, "its own key has learned it"


@pytest.mark.parametrize("cache_key", [None, "shared"], ids=["by its first words", "by a cache key"])
def test_the_session_sent_to_codex_belongs_to_the_key(tmp_path: Path, cache_key: str | None) -> None:
    body: dict[str, object] = {"model": "codex/gpt-5.5", "messages": [{"role": "user", "content": "Go on."}]}
    if cache_key is not None:
        body["prompt_cache_key"] = cache_key
    with FakeCodex() as fake:
        file = tmp_path / "auth.json"
        file.write_bytes(msgspec.json.encode(fake.auth_file(7200)))
        with running(fake.section(str(file)), tmp_path, stored=STORED) as gateway:
            for name in (*STORED, *STORED):
                ask(gateway, gateway.keys[name], "chat", body)
            sessions = [
                sent_request.headers["session-id"] for sent_request in fake.requests if sent_request.path == RESPONSES
            ]
    alice, bob, alice_again, bob_again = sessions
    assert (alice, bob) == (alice_again, bob_again)
    assert alice != bob


def test_usage_is_shown_to_the_key_that_caused_it(tmp_path: Path) -> None:
    body: dict[str, object] = {"model": "up/m", "messages": [{"role": "user", "content": "Hi"}]}
    with (
        FakeUpstream([REPLY]) as fake,
        running(provider_section("chat", fake.url), tmp_path, stored=STORED) as gateway,
    ):
        ask(gateway, gateway.keys["alice"], "chat", body)
        wait_until(lambda: bool(gateway.outcomes))
        rows = {}
        for who, key in (("alice", gateway.keys["alice"]), ("bob", gateway.keys["bob"]), ("owner", KEY)):
            rows[who] = len(send(gateway, "GET", "/api/usage?by=rows", key=key).json["rows"])
    assert rows == {"alice": 1, "bob": 0, "owner": 1}
