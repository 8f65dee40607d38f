"""Same protocol in and out: every byte arrives as it was sent, in both directions."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from asking import NO_HEADERS, Reply
from e2e.cases import CASES
from fakes.upstream import Answer, End
from rig import ENCODERS, PATHS, PROTOCOLS, Rig, walk
from scripting.replies import Ending, ScriptedReply, Text

FIXTURES = Path(__file__).parent.parent / "fixtures" / "passthrough"
# Odd spaces, escapes, numbers and key order, unknown and repeated fields; the model and `stream` are filled in.
ODD_BODY = (FIXTURES / "request.json").read_bytes()
PIECES = {"in one piece": 0, "byte by byte": 1, "in pieces of seven": 7}

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
cuts = pytest.mark.parametrize("cut", PIECES)
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

# Comments, unknown events and fields, id and retry lines, CRLF, values without a space, data in two lines.
STRANGE = {name: (FIXTURES / f"{name}.sse").read_bytes() for name in PROTOCOLS}


def odd_body(protocol: str, stream: bool) -> bytes:
    return ODD_BODY % (protocol.encode(), b"true" if stream else b"false")


def send(rig: Rig, protocol: str, *, stream: bool, headers: Mapping[str, str] = NO_HEADERS) -> Reply:
    return rig.send("POST", PATHS[protocol], odd_body(protocol, stream), headers=headers)


@protocols
@modes
def test_a_request_arrives_as_it_was_sent_but_for_its_model(rig: Rig, protocol: str, stream: bool) -> None:
    fake = rig.play(protocol, "The reply.", stream=stream)
    betas = {"openai-beta": "one=1, two=2", "anthropic-beta": "odd-2026"}
    answer = send(rig, protocol, stream=stream, headers=betas)
    assert answer.status == 200, answer.body
    call = fake.calls[-1]
    sent = odd_body(protocol, stream)
    assert call.body == sent.replace(b'"%b/vendor-model"' % protocol.encode(), b'"vendor-model"')
    assert betas.items() <= call.headers.items()
    assert call.path == PATHS[protocol]


@protocols
def test_a_query_arrives_and_the_key_in_it_does_not(rig: Rig, protocol: str) -> None:
    fake = rig.play(protocol, "The reply.", stream=False)
    path = PATHS[protocol] + "?beta=true&key=dgm_fake-client-key-for-tests-only&x=a%20b"
    assert rig.send("POST", path, odd_body(protocol, False), key=None).status == 200
    assert fake.calls[-1].path in (PATHS[protocol] + "?beta=true&x=a+b", PATHS[protocol] + "?beta=true&x=a%20b")


@protocols
def test_of_two_model_names_the_one_that_counts_is_replaced(rig: Rig, protocol: str) -> None:
    fake = rig.play(protocol, "The reply.", stream=False)
    body = b'{"model":"first","model":"%b/vendor-model","input":"x","messages":[],"max_tokens":1}' % protocol.encode()
    assert rig.send("POST", PATHS[protocol], body).status == 200
    assert msgspec.json.decode(fake.calls[-1].body)["model"] == "vendor-model"
    assert b"%b/vendor-model" % protocol.encode() not in fake.calls[-1].body


@protocols
@cuts
def test_a_stream_arrives_as_it_was_sent(rig: Rig, protocol: str, cut: str) -> None:
    headers = (("x-ratelimit-remaining-tokens", "12"), ("request-id", "req_vendor"), ("x-odd", "a, b"))
    rig.play(protocol, Answer(STRANGE[protocol], headers=headers, cut=PIECES[cut]))
    answer = send(rig, protocol, stream=True)
    assert answer.body == STRANGE[protocol]
    assert answer.status == 200
    assert set(headers) <= set(answer.fields)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-dragoman-route"] == f"{protocol}/vendor-model"
    assert "x-dragoman-loss" not in answer.headers


@protocols
@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
def test_a_whole_reply_arrives_as_it_was_sent(rig: Rig, protocol: str, chunked: bool) -> None:
    body = b" \r\n" + ENCODERS[protocol].encode_whole(CASES["Unicode"].scripted).replace(b":", b" :\t", 9) + b"\n"
    headers = (("x-ratelimit-remaining-tokens", "12"), ("request-id", "req_vendor"))
    kind = "application/json; charset=utf-8"
    rig.play(protocol, Answer(body, headers=headers, content_type=kind, chunked=chunked, cut=7))
    answer = send(rig, protocol, stream=False)
    assert answer.body == body
    assert set(headers) <= set(answer.fields)
    assert answer.headers["content-type"] == kind
    assert "x-dragoman-loss" not in answer.headers


@protocols
def test_headers_of_the_connection_and_of_other_sites_do_not_pass(rig: Rig, protocol: str) -> None:
    headers = (("set-cookie", "a=b"), ("keep-alive", "timeout=5"), ("access-control-allow-origin", "*"))
    rig.play(protocol, Answer(STRANGE[protocol], headers=(*headers, ("x-request-id", "theirs"))))
    answer = send(rig, protocol, stream=True, headers={"x-request-id": "ours"})
    names = set(answer.headers)
    assert not names & {"set-cookie", "keep-alive", "access-control-allow-origin"}
    assert [value for name, value in answer.fields if name == "x-request-id"] == ["ours"]


@pytest.mark.parametrize(
    ("protocol", "end", "ragged", "cut"), walk([PROTOCOLS, [End.CLEAN, End.CUT, End.RESET], [0, 9]], [PIECES])
)
def test_a_truncated_stream_is_its_bytes_and_an_error_event(
    rig: Rig, protocol: str, cut: str, end: End, ragged: int
) -> None:
    sent = ENCODERS[protocol].encode_stream(ScriptedReply((Text("It was a dark and"),), ending=Ending.NONE))
    sent = sent[: len(sent) - ragged]
    rig.play(protocol, Answer(sent, cut=PIECES[cut], end=end))
    answer = send(rig, protocol, stream=True)
    assert answer.body.startswith(sent)
    appended = answer.body[len(sent) :]
    if ragged:
        assert appended.startswith(b"\n\n")
    blocks = appended.strip().split(b"\n\n")
    ASSERT_ERROR[protocol](blocks, sent.count(b"\n\n") + bool(ragged))


@cuts
def test_a_chat_stream_that_finished_gets_no_error_where_its_connection_breaks(rig: Rig, cut: str) -> None:
    sent = ENCODERS["chat"].encode_stream(CASES["text"].scripted)
    sent = sent[: sent.rindex(b"data:", 0, sent.index(b'"choices":[]'))]
    rig.play("chat", Answer(sent, cut=PIECES[cut], end=End.CUT))
    assert send(rig, "chat", stream=True).body == sent


def assert_chat_error(blocks: list[bytes], frames: int) -> None:
    (block,) = blocks
    assert set(msgspec.json.decode(block.removeprefix(b"data: "))["error"]) == {"message", "type", "param", "code"}


def assert_messages_error(blocks: list[bytes], frames: int) -> None:
    (block,) = blocks
    name, data = block.split(b"\ndata: ")
    assert name == b"event: error"
    assert msgspec.json.decode(data)["type"] == "error"


def assert_responses_error(blocks: list[bytes], frames: int) -> None:
    error, failed = ((name, msgspec.json.decode(data)) for name, data in (b.split(b"\ndata: ") for b in blocks[:2]))
    assert error[0] == b"event: error"
    assert error[1]["error"]["message"]
    assert failed[0] == b"event: response.failed"
    assert (failed[1]["response"]["id"], failed[1]["response"]["status"]) == ("resp_fake1", "failed")
    assert error[1]["sequence_number"] in (frames, frames - 1)
    assert failed[1]["sequence_number"] == error[1]["sequence_number"] + 1


ASSERT_ERROR = {"chat": assert_chat_error, "messages": assert_messages_error, "responses": assert_responses_error}


def test_a_chat_stream_without_done_is_left_alone(rig: Rig) -> None:
    sent = ENCODERS["chat"].encode_stream(CASES["text"].scripted).removesuffix(b"data: [DONE]\n\n")
    rig.play("chat", Answer(sent))
    assert send(rig, "chat", stream=True).body == sent


def test_a_message_without_its_stop_event_is_reported_as_truncated(rig: Rig) -> None:
    whole = ENCODERS["messages"].encode_stream(CASES["text"].scripted)
    sent = whole[: whole.index(b"event: message_stop")]
    rig.play("messages", Answer(sent))
    answer = send(rig, "messages", stream=True)
    assert answer.body.startswith(sent + b"event: error\n")


@protocols
def test_an_error_of_the_upstream_is_not_sent_twice(rig: Rig, protocol: str) -> None:
    sent = ENCODERS[protocol].encode_stream(ScriptedReply((Text("It was a dark and"),), ending=Ending.ERROR))
    rig.play(protocol, Answer(sent))
    assert send(rig, protocol, stream=True).body == sent
