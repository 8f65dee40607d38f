"""Events become Chat's chunks and bodies, judged by OpenAI's SDK."""

import msgspec
import openai
import pytest

from dragoman.translate.framing.sse import SseFramer
from dragoman.translate.hub.events import (
    CallBlock,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    collect,
)
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import decode_envelope
from dragoman.translate.hub.ports import EVENT_STREAM, Issuer
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.chat.decode import Decoder
from dragoman.translate.protocols.chat.encode import Encoder
from dragoman.translate.protocols.chat.encode_whole import encode_whole
from dragoman.translate.protocols.chat.errors import render_stream_error
from laws import assert_any_recut_agrees
from tables import each_row
from translate.protocols.chat.chat_encoding import (
    FIXTURES,
    REDACTED,
    REPLIES,
    SIGNED,
    accumulate,
    block,
    chunks,
    deltas,
    encode,
    make_context,
    read_completion,
    reply,
    sdk,
    summarise,
)


@each_row("name", REPLIES)
def test_the_sdks_accumulator_reads_the_stream_as_the_whole_reply(name: str) -> None:
    streamed = summarise(accumulate(encode(REPLIES[name])))
    assert streamed == summarise(read_completion(encode_whole(REPLIES[name], make_context(), Ledger())))


@each_row("name", REPLIES)
def test_both_modes_lose_the_same(name: str) -> None:
    streamed, at_once = Ledger(), Ledger()
    encode(REPLIES[name], streamed)
    encode_whole(REPLIES[name], make_context(), at_once)
    assert list(streamed) == list(at_once)


@each_row("name", REPLIES)
def test_a_plain_stream_ends_with_one_reason_and_the_usage(name: str) -> None:
    stream = sdk(b"".join(encode(REPLIES[name]))).chat.completions.create(model="gpt-x", messages=[], stream=True)
    got = list(stream)
    assert [choice.finish_reason for chunk in got for choice in chunk.choices if choice.finish_reason] == [
        summarise(accumulate(encode(REPLIES[name])))["finish"]
    ]
    assert (got[-1].choices, got[-1].usage is not None) == ([], True)
    assert {(chunk.id, chunk.created, chunk.model) for chunk in got} == {("chatcmpl-up", 1700000000, "gpt-x")}


def test_the_bytes_of_a_stream() -> None:
    head = (
        b'data: {"id":"chatcmpl-up","object":"chat.completion.chunk","created":1700000000,"model":"gpt-x","choices":['
    )
    rest = b',"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
    assert encode(reply(block(0, TextBlock(), "Hi"))) == [
        head + b'{"index":0,"delta":{"role":"assistant","content":""}' + rest,
        head + b'{"index":0,"delta":{"content":"Hi"}' + rest,
        head + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}\n\n',
        head + b'],"usage":{"prompt_tokens":20,"completion_tokens":7,"total_tokens":27,'
        b'"prompt_tokens_details":{"cached_tokens":8,"cache_write_tokens":4},'
        b'"completion_tokens_details":{"reasoning_tokens":3}}}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_usage_is_not_sent_unless_requested() -> None:
    frames = encode(REPLIES["text"], include_usage=False)
    assert b"usage" not in b"".join(frames)
    assert frames[-1] == b"data: [DONE]\n\n"


def test_details_of_usage_are_there_even_when_zero() -> None:
    usage = chunks(encode(reply(usage=Usage(input=3, output=2))))[-1]["usage"]
    assert usage == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_an_id_of_another_protocol_is_replaced_by_one_of_chats() -> None:
    frames = encode([Started("msg_01", "claude"), Ended(Stop.END)])
    assert {chunk["id"] for chunk in chunks(frames)} == {"chatcmpl-minted"}


def test_ids_and_names_of_calls_are_sent_once_and_indices_count_calls_only() -> None:
    received = [delta["tool_calls"][0] for delta in deltas(encode(REPLIES["tools"])) if "tool_calls" in delta]
    assert received == [
        {"index": 0, "id": "call_a", "type": "function", "function": {"name": "read", "arguments": ""}},
        {"index": 1, "id": "call_b", "type": "function", "function": {"name": "list", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 1, "function": {"arguments": '{"b"'}},
        {"index": 0, "function": {"arguments": "1}"}},
        {"index": 1, "function": {"arguments": ":2}"}},
    ]


def test_a_call_without_arguments_gets_an_empty_object() -> None:
    assert summarise(accumulate(encode(REPLIES["empty_arguments"])))["calls"] == [("now", "{}")]


def test_a_custom_call_is_sent_as_one_and_does_not_break_the_sdks_helper() -> None:
    events = reply(block(0, CallBlock("call_a", "patch", custom=True), "*** Be", "gin"), end=Ended(Stop.TOOL))
    first, *more = [delta["tool_calls"][0] for delta in deltas(encode(events)) if "tool_calls" in delta]
    assert first == {"index": 0, "id": "call_a", "type": "custom", "custom": {"name": "patch", "input": ""}}
    assert more == [{"index": 0, "custom": {"input": "*** Be"}}, {"index": 0, "custom": {"input": "gin"}}]
    (call,) = read_completion(encode_whole(events, make_context(), Ledger())).choices[0].message.tool_calls or []
    assert call.type == "custom"
    assert call.custom.input == "*** Begin"
    assert accumulate(encode(events)).choices[0].finish_reason == "tool_calls"


def test_opaque_reasoning_is_sent_in_the_envelope_with_the_signed_text() -> None:
    details = summarise(accumulate(encode(REPLIES["redacted"])))["details"]
    assert isinstance(details, list)
    assert [detail["index"] for detail in details] == [0, 1]
    assert decode_envelope(details[0]["data"]) == REDACTED
    assert decode_envelope(details[1]["data"]) == msgspec.structs.replace(SIGNED, text="b")


WORD, CALL = block(0, TextBlock(), "x"), block(0, CallBlock("call_a", "f"), "{}")


@each_row(
    ("content", "stop", "finish"),
    [
        (WORD, Stop.END, "stop"),
        (WORD, Stop.STOP_SEQUENCE, "stop"),
        (WORD, Stop.LENGTH, "length"),
        (WORD, Stop.CONTEXT_FULL, "length"),
        (WORD, Stop.FILTERED, "content_filter"),
        (WORD, Stop.PAUSE, "stop"),
        (WORD, Stop.TOOL, "stop"),  # there is no call in it
        (CALL, Stop.END, "tool_calls"),
    ],
)
def test_each_stop_has_its_reason(content: list[Event], stop: Stop, finish: str) -> None:
    events = reply(content, end=Ended(stop))
    assert summarise(accumulate(encode(events)))["finish"] == finish
    assert summarise(read_completion(encode_whole(events, make_context(), Ledger())))["finish"] == finish


@each_row(
    ("content", "end", "refusal", "text", "lost"),
    [
        ((), Ended(Stop.FILTERED, category="bio", explanation="Not that."), "Not that.", "", "category"),
        ((block(0, TextBlock(), "Well"),), Ended(Stop.FILTERED, explanation="Not that."), None, "Well", "explanation"),
    ],
)
def test_a_refusal_is_explained_where_there_is_no_text(
    content: tuple[list[Event], ...], end: Ended, refusal: str | None, text: str, lost: str
) -> None:
    events, ledger = reply(*content, end=end), Ledger()
    got = summarise(accumulate(encode(events, ledger)))
    assert (got["refusal"], got["text"], got["finish"]) == (refusal, text, "content_filter")
    assert [(loss.path, loss.how) for loss in ledger] == [(f"/stop_details/{lost}", LossKind.DROPPED)]
    assert summarise(read_completion(encode_whole(events, make_context(), Ledger()))) == got


def test_losses_of_a_reply_are_named() -> None:
    events = reply(
        block(0, TextBlock(), "a"),
        block(1, HostedBlock("srv_1", "web_search")),
        block(2, TextBlock(), "b", Citation(quoted="words")),
        block(3, CallBlock("call_a", "f"), "{}"),
        block(4, ThinkingBlock(), "late"),
        end=Ended(Stop.PAUSE),
    )
    ledger = Ledger()
    encode(events, ledger)
    assert [(loss.path, loss.how) for loss in ledger] == [
        ("/content/1", LossKind.DROPPED),
        ("/content/2", LossKind.APPROXIMATED),
        ("/content/2/citations", LossKind.DROPPED),
        ("/content/4", LossKind.APPROXIMATED),
        ("/stop_reason", LossKind.APPROXIMATED),
    ]


def test_citations_point_into_the_joined_text() -> None:
    first = {"url": "https://a.example/", "title": "A", "start_index": 5, "end_index": 8}
    second = {"url": "https://b.example/", "title": "https://b.example/", "start_index": 5, "end_index": 9}
    got = summarise(accumulate(encode(REPLIES["cited"])))["annotations"]
    assert got == [{"type": "url_citation", "url_citation": cited} for cited in (first, second)]


def test_a_failure_is_one_error_chunk_and_nothing_more() -> None:
    failed = Failed(Failure(Kind.OVERLOADED, "busy"))
    frames = encode([Started("x", "m"), Opened(0, TextBlock()), Delta(0, "Hi"), failed])
    assert frames[-1] == b'data: {"error":{"message":"busy","type":"server_error","param":null,"code":null}}\n\n'
    assert b'finish_reason":"' not in b"".join(frames)
    assert b"[DONE]" not in b"".join(frames)
    with pytest.raises(openai.APIError, match="busy"):
        accumulate(frames)
    assert encode([failed]) == frames[-1:]  # before anything, too


def test_a_whole_reply_that_failed_is_raised() -> None:
    with pytest.raises(RequestError, match="gone"):
        encode_whole([Started("x", "m"), Failed(Failure(Kind.LOST, "gone"))], make_context(), Ledger())


def test_a_cut_passthrough_stream_is_ended_by_an_error_the_sdk_raises() -> None:
    cut = (FIXTURES / "truncated.sse").read_bytes() + render_stream_error(
        Failure(Kind.TRUNCATED, "cut off"), None, 3, EVENT_STREAM
    )
    with pytest.raises(openai.APIError, match="cut off"):
        accumulate([cut])


def decode_all(frames: list[bytes]) -> list[Event]:
    decoder = Decoder(Issuer("us", "gpt-x"), Ledger())
    events = [event for frame in SseFramer().feed(b"".join(frames)) for event in decoder.feed(frame)]
    return events + list(decoder.finish())


@pytest.mark.parametrize("name", ["text", "tools", "refusal", "filtered", "length", "logprobs", "empty_arguments"])
def test_what_was_encoded_decodes_to_the_same_reply(name: str) -> None:
    expected, got = collect(REPLIES[name]), collect(decode_all(encode(REPLIES[name])))
    pieces = [
        msgspec.structs.replace(piece, text=piece.text or "{}") if isinstance(piece.what, CallBlock) else piece
        for piece in expected.pieces
    ]
    assert (got.id, got.model, got.end, got.usage) == (expected.id, "gpt-x", expected.end, expected.usage)
    assert list(got.pieces) == pieces


def split(event: Event, at: int) -> tuple[Event, Event] | None:
    if not isinstance(event, Delta) or len(event.text) <= at or event.logprobs is not None:
        return None
    return Delta(event.block, event.text[:at]), Delta(event.block, event.text[at:])


@pytest.mark.parametrize("name", ["text", "thinking", "tools", "cited", "redacted"])
def test_any_recut_of_the_deltas_means_the_same(name: str) -> None:
    assert_any_recut_agrees(
        lambda: Encoder(make_context(), Ledger()), REPLIES[name], split, lambda frames: collect(decode_all(frames))
    )
