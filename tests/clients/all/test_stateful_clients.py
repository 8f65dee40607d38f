"""Clients that leave their history to the server hold conversations with tools, over upstreams that keep nothing."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from clients.codex import LAST, SOCKET, ask, is_complete, list_messages
from clients.driven import DRIVERS, outcomes
from clients.node_sdks import drive
from clients.proof import Proves
from clients.rig import Ran, Rig
from fakes.agent import Use
from waiting import wait_until
from wire_json import JsonObject

Rigging = Callable[..., Rig]
Client = Callable[[str], Path]
NOTES = [Use("write_note", {"title": title, "text": f"Grüße, {title} 👋"}) for title in ("first", "second")]
PROMPTS = (b"Write a note.", b"What did the last tool say?")
PARENT = re.compile(rb'"previous_response_id": ?"resp_')
CONVERSATION = re.compile(rb'"conversation": ?"conv_')
REFERENCE = re.compile(rb'"type": ?"item_reference"')
# An upstream that speaks Responses is asked to keep them itself: tests/state/test_keepers.py.
upstreams = pytest.mark.parametrize("upstream", ["chat", "messages", "kiro"])


def check_conversations(rig: Rig, ran: Ran, *modes: str) -> None:
    """Each conversation used two tools and then answered a second prompt with its whole history before it."""
    assert ran.code == 0, ran
    found = outcomes(ran)
    assert tuple(found) == modes, ran
    for mode, outcome in found.items():
        assert outcome.text == f"Finished. The last tool said: wrote second by {mode}", ran
        for note in NOTES:
            assert isinstance(note.given, dict)
            assert (rig.work / f"{mode}-{note.given['title']}.txt").read_text() == note.given["text"]
        requests = [request.body for request in rig.upstream.calls if f'some-model-{mode}"'.encode() in request.body]
        assert len(requests) == 4, "two calls of a tool, and two answers"
        assert all(prompt in requests[-1] for prompt in PROMPTS)
    assert rig.agent.complaints == []
    assert set(rig.door.answered) <= {101, 200}


@upstreams
def test_openai_agents_continues_responses_conversations_sessions_and_sockets(
    upstream: str, rig: Rigging, client: Client, proves: Proves
) -> None:
    here = rig(upstream, *NOTES)
    ran = here.run(client("openai-agents") / "bin" / "python", DRIVERS / "stateful_agents.py")
    ways = ("response", "conversation", "session", "socket")
    check_conversations(here, ran, *(f"{way}{suffix}" for way in ways for suffix in ("", "-stream")))
    assert len(PARENT.findall(here.door.received)) == 2 * 3
    assert len(CONVERSATION.findall(here.door.received)) == 2 * 4
    assert here.door.requests.count(("GET", "/v1/responses")) == 2, "one WebSocket for each conversation"
    proves("openai-agents", upstream, "state", "WebSocket")


@upstreams
def test_langchain_continues_responses(upstream: str, rig: Rigging, client: Client, proves: Proves) -> None:
    here = rig(upstream, *NOTES)
    ran = here.run(client("langchain") / "bin" / "python", DRIVERS / "stateful_langchain.py")
    check_conversations(here, ran, "response", "response-stream")
    assert len(PARENT.findall(here.door.received)) == 2 * 3
    assert here.door.received.count(PROMPTS[0]) == 2, "each prompt is sent once"
    proves("langchain", upstream, "state")


@upstreams
def test_pydantic_ai_continues_responses_and_conversations(
    upstream: str, rig: Rigging, client: Client, proves: Proves
) -> None:
    here = rig(upstream, *NOTES)
    ran = here.run(client("pydantic-ai") / "bin" / "python", DRIVERS / "stateful_pydantic_ai.py")
    check_conversations(here, ran, "response", "response-stream", "conversation", "conversation-stream")
    assert len(PARENT.findall(here.door.received)) == 2 * 3
    assert len(CONVERSATION.findall(here.door.received)) == 2 * 4
    assert here.door.received.count(PROMPTS[0]) == 4, "each prompt is sent once"
    proves("pydantic-ai", upstream, "state")


@upstreams
def test_the_vercel_ai_sdk_refers_to_stored_items_over_several_turns(
    upstream: str, rig: Rigging, client: Client, node: Path, proves: Proves
) -> None:
    here = rig(upstream, *NOTES)
    ran = drive(here, node, client("node-sdks"), "stateful_vercel_ai.mjs")
    check_conversations(here, ran, "items", "items-stream", "reasoning", "reasoning-stream")
    assert len(REFERENCE.findall(here.door.received)) >= 2 * (1 + 2 + 3), "what the model said goes by its id"
    proves("Vercel AI SDK", upstream, "state")


COMMANDS = [Use("exec_command", {"cmd": f"echo output-{number} | tee out{number}.txt"}) for number in (1, 2)]
PATCH = "*** Begin Patch\n*** Add File: patched.txt\n+Grüße 👋 from apply_patch\n*** End Patch\n"


def read_requests(rig: Rig) -> list[list[JsonObject]]:
    """Return the requests that Codex has sent over WebSockets, by connection."""
    connections: dict[str, list[JsonObject]] = {}
    for outcome in rig.gateway.outcomes:
        connection, _, _ = outcome.request_id.rpartition("-")
        body = rig.gateway.capture(outcome.request_id).request.body
        connections.setdefault(connection, []).append(msgspec.json.decode(body, type=JsonObject))
    return list(connections.values())


@upstreams
def test_codex_uses_tools_over_a_websocket_and_resumes_its_session_over_another(
    upstream: str, rig: Rigging, client: Client, tmp_path: Path
) -> None:
    captures = f'[debug]\ncapture = "all"\ndirectory = "{tmp_path}/captures"\n'
    here = rig(upstream, COMMANDS[0], Use("apply_patch", PATCH), COMMANDS[1], settings=captures)
    ran = ask(here, client("codex"), "Write three files.", config=SOCKET)
    assert ran.code == 0, ran
    assert is_complete(ran), ran
    resumed = ask(here, client("codex"), "And now?", config=SOCKET, session=LAST)
    assert resumed.code == 0, resumed
    for shown in (ran, resumed):
        assert "output-2" in list_messages(shown)[-1], shown
    assert (here.work / "out1.txt").read_text() == "output-1\n"
    assert (here.work / "patched.txt").read_text() == "Grüße 👋 from apply_patch\n"
    assert here.agent.complaints == []
    assert [method for method, _ in here.door.requests] == ["GET", "GET"], "everything goes over two WebSockets"
    wait_until(lambda: len(here.gateway.outcomes) == 5)
    first, second = read_requests(here)
    assert [len(request["input"]) for request in first] == [3, 1, 1, 1], "after the tools, only what is new"
    assert all(request.get("previous_response_id") for request in first)
    assert len(second) == 1
