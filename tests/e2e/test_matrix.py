"""Every client protocol against every upstream protocol, judged by the official SDKs.

`test_page.py` has every case with every pair, whole and streamed in one piece. Here it is streamed in other pieces.
"""

import anthropic
import openai
import pytest
from google import genai

from e2e.cases import BROKEN, CASES, WORDS, request_for
from fakes.upstream import Answer, End
from rig import ALL_UPSTREAMS, CLIENTS, CROSSED, ENCODERS, UPSTREAMS, Rig, walk
from scripting import write_reply
from scripting.replies import ScriptedReply, Text, limit_to_protocol
from sdk_replies import Broke, Halted, SdkReply
from sdk_replies_gemini import STREAMS, WHOLE, expect_for

ERRORS: dict[str, type[Exception]] = {
    "chat": openai.APIError,
    "responses": openai.APIError,
    "messages": anthropic.APIStatusError,
    "gemini": genai.errors.ServerError,
}
ENDS = {"body ended": End.CLEAN, "connection closed": End.CUT}
CUTS = {"in one piece": 0, "byte by byte": 1, "in pieces of seven": 7}

clients = pytest.mark.parametrize("client", CLIENTS)
cuts = pytest.mark.parametrize(
    "cut", [name if size == 7 else pytest.param(name, marks=pytest.mark.rest) for name, size in CUTS.items()]
)


def make_stream_answer(upstream: str, scripted: ScriptedReply, cut: str, end: End = End.CLEAN) -> Answer:
    return write_reply(upstream, limit_to_protocol(scripted, upstream), cut=CUTS[cut], end=end)


def whole(upstream: str, scripted: ScriptedReply) -> Answer:
    return write_reply(upstream, limit_to_protocol(scripted, upstream), stream=False)


@pytest.mark.parametrize(("client", "case", "upstream", "cut"), walk([CLIENTS, CASES], [ALL_UPSTREAMS, CUTS]))
def test_a_stream_arrives_unchanged_in_meaning(matrix: Rig, client: str, upstream: str, case: str, cut: str) -> None:
    scripted = CASES[case].scripted
    matrix.play(upstream, make_stream_answer(upstream, scripted, cut))
    for listen in STREAMS[client]:
        reply = listen(matrix.sdk, request_for(client, matrix.model(upstream), CASES[case]))
        expected = expect_for(client, upstream, scripted)
        assert reply == (Halted(expected.text, expected.stop) if isinstance(reply, Halted) else expected)


@pytest.mark.parametrize(("client", "case", "end", "upstream", "cut"), walk([CLIENTS, BROKEN, ENDS], [UPSTREAMS, CUTS]))
def test_a_broken_stream_never_ends_cleanly(
    matrix: Rig, client: str, upstream: str, case: str, end: str, cut: str
) -> None:
    scripted = BROKEN[case]
    matrix.play(upstream, make_stream_answer(upstream, scripted, cut, ENDS[end]))
    for listen in STREAMS[client]:
        reply = listen(matrix.sdk, request_for(client, matrix.model(upstream)))
        assert isinstance(reply, Broke), reply
        assert isinstance(reply.error, ERRORS[client])
        assert reply.text == "".join(part.text for part in scripted.parts if isinstance(part, Text))
        if case == "an error in mid-stream":
            assert "The engine overheated." in str(reply.error)


@clients
@cuts
def test_a_chat_stream_that_finished_needs_no_done(matrix: Rig, client: str, cut: str) -> None:
    scripted = CASES["one tool call"].scripted
    sent = ENCODERS["chat"].encode_stream(scripted).removesuffix(b"data: [DONE]\n\n")
    matrix.play("chat", Answer(sent, cut=CUTS[cut]))
    for listen in STREAMS[client]:
        assert listen(matrix.sdk, request_for(client, matrix.model("chat"))) == expect_for(client, "chat", scripted)


@pytest.mark.parametrize("client", ["responses", "messages"])
@cuts
def test_a_chat_stream_that_finished_is_whole_though_its_connection_breaks(matrix: Rig, client: str, cut: str) -> None:
    scripted = CASES["one tool call"].scripted
    sent = ENCODERS["chat"].encode_stream(scripted)
    matrix.play("chat", Answer(sent[: sent.index(b'"choices":[]')], cut=CUTS[cut], end=End.CUT))  # in its counts
    for listen in STREAMS[client]:
        reply = listen(matrix.sdk, request_for(client, matrix.model("chat")))
        expected = expect_for(client, "chat", scripted)
        assert isinstance(reply, SdkReply), reply
        assert (reply.calls, reply.stop) == (expected.calls, expected.stop)


@clients
@cuts
def test_a_message_without_its_stop_event_is_not_whole(matrix: Rig, client: str, cut: str) -> None:
    sent = ENCODERS["messages"].encode_stream(CASES["text"].scripted)
    matrix.play("messages", Answer(sent[: sent.index(b"event: message_stop")], cut=CUTS[cut]))
    for listen in STREAMS[client]:
        reply = listen(matrix.sdk, request_for(client, matrix.model("messages")))
        assert isinstance(reply, Broke)
        assert reply.text == WORDS


@clients
@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_a_whole_answer_to_a_stream_request_is_streamed(matrix: Rig, client: str, upstream: str) -> None:
    scripted = CASES["parallel interleaved tool calls"].scripted
    matrix.play(upstream, whole(upstream, scripted))
    for listen in STREAMS[client]:
        reply = listen(matrix.sdk, request_for(client, matrix.model(upstream), CASES["one tool call"]))
        assert reply == expect_for(client, upstream, scripted)


@pytest.mark.parametrize(("client", "upstream"), CROSSED)
def test_a_streamed_answer_to_a_whole_request_is_sent_whole(matrix: Rig, client: str, upstream: str) -> None:
    scripted = CASES["parallel interleaved tool calls"].scripted
    matrix.play(upstream, make_stream_answer(upstream, scripted, "in one piece"))
    reply = WHOLE[client](matrix.sdk, request_for(client, matrix.model(upstream), CASES["one tool call"]))
    assert reply == expect_for(client, upstream, scripted)
