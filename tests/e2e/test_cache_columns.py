"""What usage rows say of the upstream's prompt cache, for every kind of upstream."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from asking import PATHS, send
from rig import ONCE, Rig, run_rig
from scripting import write_reply
from scripting.replies import ScriptedReply, Text, Tokens
from translate.caching.agent import prose
from wire_json import Json, JsonObject

UPSTREAMS = ("messages", "responses", "chat", "gemini", "kiro")
MODELS = {"messages": "claude-sonnet-5", "gemini": "gemini-2.5-flash", "kiro": "claude-sonnet-4.5"}
SYSTEM = {"role": "system", "content": prose(9000, "rule")}
PRICES = """
[[prices]]
model = "*claude-sonnet-5"
input = 3.0
output = 15.0
cache_read = 0.3
cache_write = 3.75
"""
numbers = itertools.count()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("rig")
    prices = (
        '[[prices]]\nmodel = "*claude-sonnet-5"\ninput = 3.0\noutput = 15.0\ncache_read = 0.3\ncache_write = 3.75\n'
    )
    settings = f"{ONCE}\n{prices}"
    with run_rig(directory, settings, upstreams=UPSTREAMS, keys=("dev",)) as rig:
        yield rig


def say(role: str, text: str) -> JsonObject:
    return {"role": role, "content": text}


def turn(
    rig: Rig, upstream: str, session: str, messages: list[Json], tokens: Tokens, client: str = "", **more: Json
) -> JsonObject:
    """Send one request of a session, whose upstream reports these tokens, and return its row."""
    client = client or ("responses" if upstream == "chat" else "chat")
    rig.play(upstream, write_reply(upstream, ScriptedReply((Text("Yes."),), tokens=tokens), stream=False))
    body: JsonObject = {
        "model": f"{upstream}/{MODELS.get(upstream, 'vendor-model')}",
        "max_tokens": 99,
        "messages": messages,
    }
    if client == "responses":
        body = {"model": body["model"], "input": messages}
    reply = rig.send("POST", PATHS[client], {**body, **more}, headers={"session-id": session})
    assert reply.status == 200, reply.body
    return read_row(rig, reply.headers)


def read_row(rig: Rig, headers: Mapping[str, str]) -> JsonObject:
    [row] = send(rig.gateway, "GET", f"/api/v1/requests?q=request_id:{headers['x-request-id']}").json["requests"]
    found: JsonObject = row
    return found


FIRST: list[Json] = [SYSTEM, say("user", "one")]
SECOND: list[Json] = [*FIRST, say("assistant", "Yes."), say("user", "two")]


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_a_session_is_judged_by_what_it_sent_before(rig: Rig, upstream: str) -> None:
    session = f"session {next(numbers)}"
    first = turn(rig, upstream, session, FIRST, Tokens(10_000, 5, written=0))
    assert (first["session"], first["cache_miss"], first["cache_possible_tokens"]) == (session, "first", 0)
    second = turn(rig, upstream, session, SECOND, Tokens(10_020, 5, cached=9_990))
    assert (second["cache_miss"], second["cache_miss_path"]) == (None, None)
    assert 9_500 < second["cache_possible_tokens"] < 10_020
    changed: list[Json] = [{**SYSTEM, "content": f"Now {SYSTEM['content']}"}, *SECOND[1:]]
    third = turn(rig, upstream, session, changed, Tokens(10_030, 5))
    assert third["cache_miss"] == ("messages" if upstream == "kiro" else "system")
    assert third["cache_miss_path"].startswith("/")
    assert third["cache_possible_tokens"] < 100


def test_what_was_saved_is_priced(rig: Rig) -> None:
    session = f"session {next(numbers)}"
    first = turn(rig, "messages", session, FIRST, Tokens(10_000, 0, written=8_000))
    assert first["cache_saved_nano_usd"] == -8_000 * 750
    second = turn(rig, "messages", session, SECOND, Tokens(10_000, 0, cached=8_000))
    assert second["cache_saved_nano_usd"] == 8_000 * 2_700
    unpriced = turn(rig, "chat", session, FIRST, Tokens(10_000, 0, cached=8_000))
    assert unpriced["cache_saved_nano_usd"] is None


def test_of_bytes_that_pass_only_the_usage_is_known(rig: Rig) -> None:
    session = f"session {next(numbers)}"
    messages: list[Json] = [say("user", prose(9000, "rule"))]
    missed = turn(rig, "messages", session, messages, Tokens(10_000, 5), client="messages")
    assert (missed["session"], missed["cache_miss"], missed["cache_possible_tokens"]) == (session, "unknown", None)
    assert missed["cache_saved_nano_usd"] == 0
    read = turn(rig, "messages", session, messages, Tokens(10_000, 5, cached=1), client="messages")
    assert (read["cache_miss"], read["cache_possible_tokens"]) == (None, None)


@pytest.mark.parametrize(
    ("change", "cause"),
    [({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}, "tools"),
     ({"tool_choice": "none"}, "settings"), ({"model": "messages/claude-opus-4-1"}, "model")],
)  # fmt: skip
def test_a_miss_names_its_cause(rig: Rig, change: JsonObject, cause: str) -> None:
    session = f"session {next(numbers)}"
    tool = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
    turn(rig, "messages", session, FIRST, Tokens(10_000, 5), tools=[tool])
    row = turn(rig, "messages", session, SECOND, Tokens(10_000, 5), **{"tools": [tool], **change})
    assert row["cache_miss"] == cause


def test_eight_conversations_of_one_session_continue_themselves(rig: Rig) -> None:
    session = f"session {next(numbers)}"
    for number in range(8):
        turn(rig, "responses", session, [SYSTEM, say("user", f"{number}")], Tokens(10_000, 5))
    for number in range(8):
        more = [SYSTEM, say("user", f"{number}"), say("assistant", "a"), say("user", "more")]
        row = turn(rig, "responses", session, more, Tokens(10_000, 5, cached=9_900))
        assert row["cache_miss"] is None


def test_sessions_of_two_keys_have_nothing_in_common(rig: Rig) -> None:
    session = f"session {next(numbers)}"
    turn(rig, "chat", session, FIRST, Tokens(10_000, 5))
    rig.play("chat", write_reply("chat", ScriptedReply((Text("Yes."),), tokens=Tokens(10_000, 5)), stream=False))
    body = {"model": "chat/vendor-model", "messages": SECOND}
    reply = rig.send("POST", PATHS["chat"], body, key=rig.gateway.keys["dev"], headers={"session-id": session})
    assert read_row(rig, reply.headers)["cache_miss"] == "unknown"  # these bytes pass
    body["model"] = "messages/claude-sonnet-5"
    rig.play("messages", "Yes.", stream=False)
    reply = rig.send("POST", PATHS["chat"], body, key=rig.gateway.keys["dev"], headers={"session-id": session})
    assert read_row(rig, reply.headers)["cache_miss"] == "first"


def test_off_has_no_mark(tmp_path: Path) -> None:
    with run_rig(tmp_path, ONCE, upstreams=("messages",), keys=("a",), options={"messages": 'cache = "off"\n'}) as rig:
        turn(rig, "messages", "s", FIRST, Tokens(10_000, 5))
        assert turn(rig, "messages", "s", SECOND, Tokens(10_000, 5))["cache_miss"] == "no_mark"
