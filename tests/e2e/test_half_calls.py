"""A tool call that is not whole is a failure; clients that get arguments as text get them as they are."""

import re
from collections.abc import Iterator

import msgspec
import pytest

from e2e.broken_calls import BROKEN
from fakes.upstream import Answer
from raw_http import post
from rig import ENCODERS, ONCE, PATHS, PROTOCOLS, Rig, run_rig
from scripting.replies import ScriptedReply, Stop, ToolCall

JSON = "application/json"
CROSSED = [(client, *broken) for client in PROTOCOLS for broken in BROKEN if broken[0] != client]
ARGUMENTS = re.compile(rb'"arguments":"((?:[^"\\]|\\.)*)"')
RAW = [case for case in CROSSED if case[0] != "messages" and case[2].startswith("arguments")]
FAILED = [case for case in CROSSED if case not in RAW]
# What stands in a stream that failed, and what would make a client take it for whole.
ERROR = {"chat": b'data: {"error":', "responses": b"event: response.failed\n", "messages": b"event: error\n"}
GOOD_END = {"chat": b'"finish_reason":"', "responses": b"event: response.completed\n", "messages": b"message_stop"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), ONCE) as shared:
        yield shared


def body(client: str, model: str, *, stream: bool) -> bytes:
    fields: dict[str, object] = {"model": model, "stream": stream}
    if client == "responses":
        fields["input"] = "Hi"
    else:
        fields |= {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 99}
    return msgspec.json.encode(fields)


@pytest.mark.parametrize(("client", "upstream", "how"), FAILED)
def test_a_streamed_half_call_ends_in_the_error_event_of_the_client(
    rig: Rig, client: str, upstream: str, how: str
) -> None:
    rig.play(upstream, Answer(BROKEN[upstream, how].streamed))
    answered = post(rig.gateway.port, PATHS[client], body(client, rig.model(upstream), stream=True))
    assert ERROR[client] in answered.body or answered.status == 502
    assert GOOD_END[client] not in answered.body
    request_id = answered.get("x-request-id")
    assert request_id
    assert rig.gateway.outcome(request_id).outcome == "corrupt"


@pytest.mark.parametrize(("client", "upstream", "how"), [case for case in FAILED if BROKEN[case[1:]].whole])
def test_a_half_call_in_a_whole_reply_is_a_502(rig: Rig, client: str, upstream: str, how: str) -> None:
    rig.play(upstream, Answer(BROKEN[upstream, how].whole or b"", content_type=JSON))
    answered = post(rig.gateway.port, PATHS[client], body(client, rig.model(upstream), stream=False))
    assert answered.status == 502
    assert msgspec.json.decode(answered.body)["error"]["message"]


@pytest.mark.parametrize(("client", "upstream", "how"), RAW)
def test_arguments_that_are_text_for_the_client_pass_as_they_are(
    rig: Rig, client: str, upstream: str, how: str
) -> None:
    scripted = {"break off": '{"city":"Z', "are a list": "[1]", "are text": "city=Bonn", "are a number": "7"}
    arguments = next(text for words, text in scripted.items() if how.endswith(words))
    rig.play(upstream, Answer(BROKEN[upstream, how].streamed))
    answered = post(rig.gateway.port, PATHS[client], body(client, rig.model(upstream), stream=True))
    assert GOOD_END[client] in answered.body
    assert msgspec.json.encode(arguments)[1:-1] in b"".join(ARGUMENTS.findall(answered.body))
    whole = BROKEN[upstream, how].whole
    if whole is not None:
        rig.play(upstream, Answer(whole, content_type=JSON))
        answered = post(rig.gateway.port, PATHS[client], body(client, rig.model(upstream), stream=False))
        assert b'"arguments":' + msgspec.json.encode(arguments) in answered.body


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same_protocol_passes_a_half_call_as_it_came(rig: Rig, protocol: str) -> None:
    broken = BROKEN[protocol, "arguments that break off"]
    rig.play(protocol, Answer(broken.streamed))
    answered = post(rig.gateway.port, PATHS[protocol], body(protocol, rig.model(protocol), stream=True))
    assert answered.body == broken.streamed


@pytest.mark.parametrize(("client", "upstream"), [(a, b) for a in PROTOCOLS for b in PROTOCOLS if a != b])
def test_a_call_that_a_cap_has_cut_ends_as_cut_and_not_as_an_error(rig: Rig, client: str, upstream: str) -> None:
    scripted = ScriptedReply((ToolCall("call_e", "clock", '{"city":"Z'),), Stop.CAP)
    rig.play(upstream, Answer(ENCODERS[upstream].encode_stream(scripted)))
    answered = post(rig.gateway.port, PATHS[client], body(client, rig.model(upstream), stream=True))
    assert ERROR[client] not in answered.body
    cut = {"chat": b'"finish_reason":"length"', "responses": b"response.incomplete", "messages": b'"max_tokens"'}
    assert cut[client] in answered.body
