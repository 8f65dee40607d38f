"""Prompt caches through a running gateway: what upstreams get, with each setting."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import EXPLAIN, PATHS, send
from fakes.upstream import FakeUpstream
from gateway import KEY, running
from rig import ONCE, Rig, run_rig
from scripting import write_error, write_reply
from translate.caching.agent import prose
from wire_json import Json, JsonObject

STRICT = {"x-dragoman-strict": "1"}
SYSTEM = {"role": "system", "content": prose(3000, "rule")}
MODEL = "messages/claude-sonnet-5"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("rig"), upstreams=("messages",)) as rig:
        yield rig


def ask(rig: Rig, *messages: JsonObject, **fields: Json) -> JsonObject:
    """Send a Chat request in strict mode, and return what the upstream got."""
    body = {"model": MODEL, "max_tokens": 99, "messages": [SYSTEM, *messages], **fields}
    fake = rig.play("messages", "Yes.", stream=False)
    reply = rig.send("POST", PATHS["chat"], body, headers={**STRICT, "session-id": str(messages[0]["content"])})
    assert reply.status == 200, reply.body
    assert reply.headers.get("x-dragoman-loss", "0") == "0"
    got: JsonObject = fake.calls[-1].json
    return got


def say(role: str, text: str) -> JsonObject:
    return {"role": role, "content": text}


REST = (say("assistant", "a"), say("user", "two"), say("assistant", "b"), say("user", "three"))


def list_marked(body: JsonObject) -> list[str]:
    blocks = [*body["system"], *(block for message in body["messages"] for block in message["content"])]
    return [block["text"] for block in blocks if "cache_control" in block]


def test_a_conversation_is_marked_where_it_ended_before(rig: Rig) -> None:
    first = ask(rig, say("user", "one"))
    assert list_marked(first) == [SYSTEM["content"], "one"]
    later = ask(rig, say("user", "one"), *REST)
    # Without a memory, the previous end would be thought to be at "two".
    assert list_marked(later) == [SYSTEM["content"], "one", "three"]


def test_what_is_refused_is_not_remembered(rig: Rig) -> None:
    body = {"model": MODEL, "max_tokens": 99, "messages": [SYSTEM, say("user", "refused")]}
    rig.play("messages", write_error(400, "No."))
    rig.send("POST", PATHS["chat"], body, headers={"session-id": "refused"})
    later = ask(rig, say("user", "refused"), *REST)
    assert list_marked(later) == [SYSTEM["content"], "two", "three"]


def test_a_client_of_the_same_protocol_is_left_alone(rig: Rig) -> None:
    body = {"model": MODEL, "max_tokens": 99, "system": SYSTEM["content"], "messages": [say("user", "hi")]}
    fake = rig.play("messages", "Yes.", stream=False)
    rig.send("POST", PATHS["messages"], body)
    assert b"cache_control" not in fake.calls[-1].body


def test_a_client_may_ask_for_explicit_breakpoints_only(rig: Rig) -> None:
    body = ask(rig, say("user", "explicit"), prompt_cache_options={"mode": "explicit"})
    assert list_marked(body) == []


def test_of_many_marks_of_a_client_the_latest_four_are_sent_without_a_loss(rig: Rig) -> None:
    parts = [{"type": "text", "text": f"{number}", POINT: {"mode": "explicit"}} for number in range(6)]
    assert list_marked(ask(rig, {"role": "user", "content": parts})) == ["2", "3", "4", "5"]


@pytest.mark.parametrize(("setting", "marked"), [('cache = "client"\n', True), ('cache = "off"\n', False)])
def test_the_setting_decides(tmp_path: Path, setting: str, marked: bool) -> None:
    part = {"type": "text", "text": prose(2000, "read"), "prompt_cache_breakpoint": {"mode": "explicit"}}
    messages = [{"role": "user", "content": [part]}]
    body = {"model": MODEL, "max_tokens": 99, "messages": messages, "prompt_cache_key": "k"}
    with run_rig(tmp_path, ONCE, upstreams=("messages",), options={"messages": setting}) as rig:
        fake = rig.play("messages", "Yes.", stream=False)
        reply = rig.send("POST", PATHS["chat"], body, headers=EXPLAIN)
        assert reply.status == 200
        assert fake.calls[-1].body.count(b"cache_control") == marked
        lost = ["/messages/0/content/0/prompt_cache_breakpoint", "/prompt_cache_key"]
        assert sorted(path for path, _ in reply.losses) == ([] if marked else lost)


def test_a_fixed_lifetime_is_used(tmp_path: Path) -> None:
    with run_rig(tmp_path, ONCE, upstreams=("messages",), options={"messages": 'cache_ttl = "1h"\n'}) as rig:
        body = ask(rig, say("user", "one"))
        assert body["system"][-1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


def ask_openai(rig: Rig, model: str, upstream: str = "openai", **more: Json) -> JsonObject:
    """Send a Messages request with marks everywhere, and return what the upstream got at its first try."""
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": SYSTEM["content"], **mark}]
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi", **mark}]}]
    tools = [{"name": "f", "input_schema": {"type": "object"}, **mark}]
    body = {"model": f"{upstream}/{model}", "max_tokens": 99, "system": system, "messages": messages, "tools": tools}
    key = more.pop("key", KEY)
    fake = rig.play(upstream, "Yes.", stream=False)
    reply = rig.send("POST", PATHS["messages"], {**body, **more}, key=key, headers={**STRICT, **NAMED})
    assert reply.status == 200, reply.body
    assert len(fake.calls) == 1
    got: JsonObject = fake.calls[0].json
    return got


NAMED = {"x-claude-code-session-id": "a-session"}
POINT = "prompt_cache_breakpoint"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    upstreams = ("openai", "responses", "chat")
    with run_rig(tmp_path_factory.mktemp("keyed"), upstreams=upstreams, keys=("alice", "bob")) as rig:
        yield rig


def test_openais_newer_models_get_one_breakpoint_and_a_key(keyed: Rig) -> None:
    body = ask_openai(keyed, "gpt-5.6")
    assert str(body).count(POINT) == 1
    assert body["input"][0]["content"][-1][POINT] == {"mode": "explicit"}
    assert len(body["prompt_cache_key"]) == 36
    assert ask_openai(keyed, "gpt-5.6")["prompt_cache_key"] == body["prompt_cache_key"]


def test_earlier_and_unknown_models_get_a_key_but_no_breakpoint(keyed: Rig) -> None:
    for model in ("gpt-5.5", "a-fine-tune"):
        body = ask_openai(keyed, model)
        assert POINT not in str(body)
        assert body["instructions"] == SYSTEM["content"]
        assert "prompt_cache_key" in body


@pytest.mark.parametrize("upstream", ["responses", "chat"])
def test_compatible_servers_get_neither(keyed: Rig, upstream: str) -> None:
    assert "cache" not in str(ask_openai(keyed, "gpt-5.6", upstream)).replace("cached", "")


@pytest.mark.parametrize(("protocol", "in_header"), [("chat", True), ("responses", False)])
def test_xai_gets_the_key_of_chat_in_a_header(tmp_path: Path, protocol: str, in_header: bool) -> None:
    body = {"model": "grok/grok-5", "max_tokens": 99, "messages": [say("user", "hi")]}
    with FakeUpstream(choose=lambda request: write_reply(protocol, "Yes.", stream=False)) as fake:
        section = (
            f'[providers.grok]\nkind = "xai"\nprotocol = "{protocol}"\nendpoint = "{fake.url}"\napi_key = "fake"\n'
        )
        with running(ONCE + section, tmp_path) as gateway:
            assert send(gateway, "POST", PATHS["messages"], body, headers={**STRICT, **NAMED}).status == 200
        sent = fake.calls[-1]
        assert (len(sent.headers.get("x-grok-conv-id", "")) == 36) is in_header
        assert ("prompt_cache_key" in sent.json) is not in_header


@pytest.mark.parametrize(
    ("setting", "own", "sent"),
    [("auto", "mine", "mine"), ("client", "mine", "mine"), ("off", "mine", None), ("auto", "\u00e9", 36)],
)
def test_a_clients_own_key_reaches_xais_header_as_it_is(
    tmp_path: Path, setting: str, own: str, sent: str | int | None
) -> None:
    body = {"model": "grok/grok-5", "input": "hi", "prompt_cache_key": own}
    with FakeUpstream(choose=lambda request: write_reply("chat", "Yes.", stream=False)) as fake:
        section = f'[providers.grok]\nkind = "xai"\nprotocol = "chat"\nendpoint = "{fake.url}"\napi_key = "fake"\n'
        with running(f'{ONCE}{section}cache = "{setting}"\n', tmp_path) as gateway:
            assert send(gateway, "POST", PATHS["responses"], body, headers=NAMED).status == 200
        got = fake.calls[-1].headers.get("x-grok-conv-id")
        assert (len(got or "") if isinstance(sent, int) else got) == sent


def test_two_client_keys_never_have_the_same_key(keyed: Rig) -> None:
    keys = {ask_openai(keyed, "gpt-5.5", key=keyed.gateway.keys[name])["prompt_cache_key"] for name in ("alice", "bob")}
    assert len(keys) == 2


@pytest.mark.parametrize("setting", ["client", "off"])
def test_no_key_is_derived_unless_the_gateway_may(tmp_path: Path, setting: str) -> None:
    with run_rig(tmp_path, ONCE, upstreams=("openai",), options={"openai": f'cache = "{setting}"\n'}) as rig:
        fake = rig.play("openai", "Yes.", stream=False)
        contents = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        path = "/v1beta/models/openai%2Fgpt-5.6:generateContent"
        assert rig.send("POST", path, contents, headers=NAMED).status == 200
        assert "cache" not in str(fake.calls[-1].json)


def test_two_sessions_of_claude_code_begin_alike_at_other_vendors(keyed: Rig) -> None:
    prompts = []
    for session in ("a1b", "c2d"):
        line = f"x-anthropic-billing-header: cc_version=2.1.325.{session}; cc_entrypoint=cli;"
        system = [{"type": "text", "text": text} for text in (line, SYSTEM["content"])]
        body = {"model": "chat/m", "max_tokens": 99, "system": system, "messages": [say("user", session)]}
        fake = keyed.play("chat", "Yes.", stream=False)
        assert keyed.send("POST", PATHS["messages"], body).status == 200
        prompts.append(fake.calls[-1].json["messages"][0])
    assert prompts == [{"role": "system", "content": SYSTEM["content"]}] * 2
