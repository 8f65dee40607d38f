"""Arguments that break off have one outcome for every client, upstream and mode.

A reply that claims to be complete fails. A reply that says it was cut by a limit passes as far as it was received, and
so does one of Kiro, which has no other sign of a limit. Bytes that pass unchanged stay as they are, and the row of a
stream says that the call breaks off.
"""

from collections.abc import Iterator
from itertools import product

import pytest

from asking import CLIENTS, Reply
from e2e.broken_calls import BROKEN
from fakes.kiro import make_framed, tool, words
from fakes.upstream import Answer
from rig import PROTOCOLS, Rig, run_rig
from scripting import write_reply
from scripting.replies import ScriptedReply, Stop, ToolCall

JSON = "application/json"
CUT_CALL = ToolCall("call_e", "clock", '{"city":"Z')
KIRO_REPLY = make_framed(words("Let me look."), tool("t1", "weather", input='{"city": "Z'))
# What stands in a stream that failed, in one that looks complete, and in a reply that was cut.
FAILED = {
    "chat": b'data: {"error":',
    "responses": b"event: response.failed\n",
    "messages": b"event: error\n",
    "gemini": b'data: {"error":',
}
COMPLETE = {
    "chat": b'"finish_reason":"tool_calls"',
    "responses": b"event: response.completed",
    "messages": b'"stop_reason":"tool_use"',
    "gemini": b'"finishReason":"STOP"',
}
CUT = {
    "chat": b'"finish_reason":"length"',
    "responses": b'"incomplete_details":{"reason":"max_output_tokens"}',
    "messages": b'"stop_reason":"max_tokens"',
    "gemini": b'"finishReason":"MAX_TOKENS"',
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("cut"), upstreams=(*PROTOCOLS, "kiro")) as rig:
        rig.gateway.settle()
        yield rig


def outcome_of(rig: Rig, reply: Reply) -> str:
    return rig.gateway.outcome(reply.headers["x-request-id"]).outcome


def test_a_reply_that_claims_to_be_complete_fails_for_every_client_in_every_mode(rig: Rig) -> None:
    for row in product(CLIENTS, PROTOCOLS, (True, False)):
        client, upstream, stream = row
        broken = BROKEN[upstream, "arguments that break off"]
        body = broken.streamed if stream else broken.whole
        if client == upstream or body is None:  # the input of a whole Messages reply is JSON, which is never cut
            continue
        rig.play(upstream, Answer(body) if stream else Answer(body, content_type=JSON))
        reply = rig.ask(client, upstream, stream=stream)
        assert COMPLETE[client] not in reply.body, (row, reply.body)
        assert b"with input that breaks off" in reply.body, (row, reply.body)
        assert (FAILED[client] in reply.body) if stream else (reply.status == 502), (row, reply.body)
        assert outcome_of(rig, reply) == "corrupt", row


def test_a_reply_that_was_cut_by_a_limit_says_so(rig: Rig) -> None:
    for row in product(CLIENTS, (*PROTOCOLS, "kiro"), (True, False)):
        client, upstream, stream = row
        if client == upstream or (upstream, stream) == ("messages", False):
            continue
        cut = write_reply(upstream, ScriptedReply((CUT_CALL,), Stop.CAP), stream=stream) if upstream != "kiro" else None
        rig.play(upstream, *([cut] if cut else [KIRO_REPLY, KIRO_REPLY]))  # Kiro is asked for the rest, in vain
        reply = rig.ask(client, upstream, stream=stream)
        assert reply.status == 200, (row, reply.body)
        assert CUT[client] in reply.body, (row, reply.body)
        assert FAILED[client] not in reply.body, (row, reply.body)
        assert outcome_of(rig, reply) == "ok", row


def test_the_same_protocol_passes_every_byte_and_its_row_tells_the_truth(rig: Rig) -> None:
    for protocol in PROTOCOLS:
        broken = BROKEN[protocol, "arguments that break off"].streamed
        rig.play(protocol, Answer(broken))
        reply = rig.ask(protocol, protocol, stream=True)
        assert reply.body == broken, protocol
        assert outcome_of(rig, reply) == "corrupt", protocol
        cut = write_reply(protocol, ScriptedReply((CUT_CALL,), Stop.CAP))
        rig.play(protocol, cut)
        reply = rig.ask(protocol, protocol, stream=True)
        assert (reply.body, outcome_of(rig, reply)) == (cut.body, "ok"), protocol
