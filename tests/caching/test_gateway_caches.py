"""Prompt caches through a running gateway: what upstreams get, with each setting."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import EXPLAIN, PATHS
from caching.agent import prose
from rig import ONCE, Rig, run_rig
from scripting import write_error
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
