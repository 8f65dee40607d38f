"""A tool call that is not whole is a failure; clients that get arguments as text get invalid ones as they are."""

import re

import msgspec

from asking import make_body
from e2e.broken_calls import BROKEN
from fakes.upstream import Answer
from rig import PROTOCOLS, Rig

JSON = "application/json"
CROSSED = [(client, *broken) for client in PROTOCOLS for broken in BROKEN if broken[0] != client]
ARGUMENTS = re.compile(rb'"arguments":"((?:[^"\\]|\\.)*)"')
RAW = [case for case in CROSSED if case[0] != "messages" and case[2].startswith("arguments that are")]
FAILED = [case for case in CROSSED if case not in RAW]
SCRIPTED = {"are a list": "[1]", "are text": "city=Bonn", "are a number": "7"}
# What stands in a stream that failed, and what would make a client take it for whole.
ERROR = {"chat": b'data: {"error":', "responses": b"event: response.failed\n", "messages": b"event: error\n"}
GOOD_END = {"chat": b'"finish_reason":"', "responses": b"event: response.completed\n", "messages": b"message_stop"}


def body(client: str, model: str, *, stream: bool) -> bytes:
    return msgspec.json.encode(make_body(client, model, "Hi", stream=stream))


def test_a_half_call_ends_in_the_error_event_of_the_client_or_in_a_502(rig: Rig) -> None:
    for row in FAILED:
        client, upstream, how = row
        broken = BROKEN[upstream, how]
        rig.play(upstream, Answer(broken.streamed))
        reply = rig.ask(client, upstream, stream=True)
        assert ERROR[client] in reply.body or reply.status == 502, row
        assert GOOD_END[client] not in reply.body, row
        assert rig.gateway.outcome(reply.headers["x-request-id"]).outcome == "corrupt", row
        if broken.whole is not None:
            rig.play(upstream, Answer(broken.whole, content_type=JSON))
            reply = rig.ask(client, upstream)
            assert reply.status == 502, row
            assert reply.json["error"]["message"], row


def test_arguments_that_are_text_for_the_client_pass_as_they_are(rig: Rig) -> None:
    for row in RAW:
        client, upstream, how = row
        broken = BROKEN[upstream, how]
        arguments = msgspec.json.encode(next(text for words, text in SCRIPTED.items() if how.endswith(words)))
        rig.play(upstream, Answer(broken.streamed))
        reply = rig.ask(client, upstream, stream=True)
        assert GOOD_END[client] in reply.body, row
        assert arguments[1:-1] in b"".join(ARGUMENTS.findall(reply.body)), row
        if broken.whole is not None:
            rig.play(upstream, Answer(broken.whole, content_type=JSON))
            assert b'"arguments":' + arguments in rig.ask(client, upstream).body, row
