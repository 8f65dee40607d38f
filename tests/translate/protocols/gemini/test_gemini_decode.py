"""Decode the bytes of Gemini upstreams and compare the replies."""

from pathlib import Path

import msgspec
import pytest

from dragoman.translate.hub.events import CallBlock, HostedBlock, Stop, TextBlock, ThinkingBlock, collect
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.request import Citation, Function
from dragoman.translate.hub.usage import Usage
from laws import assert_any_cut_agrees, assert_total
from replies import join_deltas
from tables import each_row
from translate.protocols.gemini.gemini_replies import (
    FIXTURES,
    ISSUER,
    STREAMS,
    UPSTREAM,
    ByteDecoder,
    chunk,
    decode,
    end_of,
    failure_of,
    read,
    read_whole,
    stream,
)
from wire_json import JsonObject

MODEL = "gemini-3.5-flash"


def fixture(name: str, ledger: Ledger | None = None) -> bytes:
    return (FIXTURES / f"{name}.sse").read_bytes()


def make_signature(payload: str, *, of_call: bool = False) -> Opaque:
    return Opaque("gemini", OpaqueForm.SIGNATURE, payload, MODEL, of_call=of_call)


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_any_cut_of_the_bytes_gives_the_same_reply(path: Path) -> None:
    assert_any_cut_agrees(ByteDecoder, path.read_bytes(), join_deltas)
    assert_total(ByteDecoder, path.read_bytes())


def test_text_and_usage() -> None:
    reply = collect(decode(fixture("text")))
    assert [(piece.what, piece.text) for piece in reply.pieces] == [(TextBlock(), "Grüße, 世界 🌍")]
    assert (reply.usage, end_of(reply).stop) == (Usage(input=12, output=5), Stop.END)


def test_calls_thoughts_and_every_count() -> None:
    reply = collect(decode(fixture("calls")))
    assert [(piece.what, piece.text) for piece in reply.pieces] == [
        (ThinkingBlock(), "Let me look."),
        (TextBlock(), "Both."),
        (ThinkingBlock(), ""),
        (CallBlock("fc1", "weather"), '{"city":"Zürich","days":3}'),
        (CallBlock("call_r1_1", "clock"), "{}"),
    ]
    assert [piece.opaque for piece in reply.pieces if piece.opaque] == [make_signature("QUIr", of_call=True)]
    assert end_of(reply).stop is Stop.TOOL
    assert reply.usage == Usage(input=24, output=16, cache_read=8, reasoning=9)


@each_row(
    ("declared", "called", "name"),
    [
        (["Bash"], "default_api:Bash", "Bash"),
        (["Bash"], "default_api:default_api:Bash", "default_api:default_api:Bash"),
        (["default_api:Bash"], "default_api:Bash", "default_api:Bash"),
        (["default_api:Bash", "Bash"], "default_api:Bash", "default_api:Bash"),
        (["Read"], "default_api:Bash", "default_api:Bash"),
        ([], "default_api:Bash", "default_api:Bash"),
    ],
)
def test_a_models_namespace_is_cut_off_where_that_leaves_a_declared_tool(
    declared: list[str], called: str, name: str
) -> None:
    assert UPSTREAM is not None
    issuer = Issuer("gemini", MODEL, tools=tuple(map(Function, declared)))
    body = msgspec.json.encode(chunk({"functionCall": {"name": called}}, finish="STOP"))
    [call] = collect(UPSTREAM.decode_whole(body, issuer, Ledger())).pieces
    assert isinstance(call.what, CallBlock)
    assert call.what.name == name


def test_a_signature_stands_before_the_text_that_it_signs() -> None:
    ledger = Ledger()
    reply = collect(decode(fixture("signed_text"), ledger))
    assert [(piece.what, piece.text, piece.opaque) for piece in reply.pieces] == [
        (ThinkingBlock(), "Hm.", make_signature("U0lH")),
        (TextBlock(), "Yes, indeed.", None),
    ]
    assert [loss.path for loss in ledger] == ["/candidates/0/content/parts/thoughtSignature"]


@pytest.mark.parametrize("last", [{"text": "Ulm is not."}, {"functionCall": {"name": "clock"}}])
def test_a_source_of_text_in_an_earlier_block_is_noted_as_lost(last: JsonObject) -> None:
    support = {"segment": {"endIndex": 17}, "groundingChunkIndices": [0]}
    grounding = {"groundingChunks": [{"web": {"uri": "https://a.example"}}], "groundingSupports": [support]}
    thought = {"text": "Hm.", "thought": True}
    parts = ({"text": "Zürich is sunny."}, thought, last)
    ledger = Ledger()
    reply = read(chunk(*parts, finish="STOP", groundingMetadata=grounding), ledger=ledger)
    assert not any(piece.citations for piece in reply.pieces)
    assert [(loss.path, loss.how) for loss in ledger] == [
        ("/candidates/0/groundingMetadata/groundingSupports", LossKind.DROPPED)
    ]


def test_sources_are_cited_in_characters() -> None:
    reply = collect(decode(fixture("grounded")))
    text, search = reply.pieces
    first = Citation("https://a.example/1", "a.example", start=0, end=6)
    second = Citation("https://a.example/1", "a.example", start=7, end=16)
    third = Citation("https://b.example/2", "b.example", start=7, end=16)
    assert text.citations == (first, second, third)
    assert text.text[7:16] == "is sunny."
    assert text.logprobs is not None
    [token] = msgspec.json.decode(text.logprobs)
    assert (token["token"], token["logprob"]) == (" sunny", -0.5)
    assert isinstance(search.what, HostedBlock)
    assert (search.what.kind, search.what.input) == ("web_search", {"query": "weather zurich"})
    assert search.what.results == (
        Citation("https://a.example/1", "a.example"),
        Citation("https://b.example/2", "b.example"),
    )
    assert reply.usage == Usage(input=12, output=5, web_searches=1)


def test_code_that_google_ran_and_parts_that_must_return() -> None:
    ledger = Ledger()
    reply = collect(decode(fixture("code"), ledger))
    ran, returned, drawn, text = reply.pieces
    assert isinstance(ran.what, HostedBlock)
    assert (ran.what.kind, ran.what.input, ran.what.output) == ("code_execution", {"code": "print(2)"}, "2\n")
    assert returned.opaque is not None
    assert (returned.opaque.form, msgspec.json.decode(returned.opaque.payload)) == (
        OpaqueForm.DETAIL,
        {"toolCall": {"id": "s", "toolType": "GOOGLE_SEARCH_WEB"}, "thoughtSignature": "QQ=="},
    )
    assert text.text == "Two."
    assert isinstance(drawn.what, HostedBlock)
    assert (drawn.what.kind, drawn.what.input) == ("image_generation", {"media_type": "image/png"})
    assert not ledger


@each_row(
    ("finish", "stop"),
    [
        ("STOP", Stop.END),
        ("MAX_TOKENS", Stop.LENGTH),
        *(
            (name, Stop.FILTERED)
            for name in (
                *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"),
                *("IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR"),
            )
        ),
    ],
)
def test_every_finish_reason_has_its_stop(finish: str, stop: Stop) -> None:
    end = end_of(read(chunk({"text": "a"}, finish=finish, finishMessage="Because.")))
    assert end.stop is stop
    assert (end.category, end.explanation) == ((finish.lower(), "Because.") if stop is Stop.FILTERED else (None, None))


@pytest.mark.parametrize("finish", ["LANGUAGE", "OTHER", "NO_IMAGE", "IMAGE_OTHER", "SOMETHING_NEW"])
def test_an_unclear_reason_is_an_end_with_output_and_a_failure_without(finish: str) -> None:
    ledger = Ledger()
    assert end_of(read(chunk({"text": "a"}, finish=finish), ledger=ledger)).stop is Stop.END
    assert [loss.path for loss in ledger] == ["/candidates/0/finishReason"]
    assert failure_of(decode(stream(chunk(finish=finish)))).kind is Kind.UPSTREAM


@pytest.mark.parametrize(
    "finish",
    [
        *("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"),
        "MISSING_THOUGHT_SIGNATURE",
    ],
)
def test_a_model_that_failed_has_not_stopped(finish: str) -> None:
    failure = failure_of(decode(stream(chunk({"text": "a"}), chunk(finish=finish, finishMessage="Bad call."))))
    assert failure.kind is Kind.UPSTREAM
    assert finish in failure.message
    assert "Bad call." in failure.message


def test_a_reason_in_a_chunk_of_its_own_after_a_call_is_a_tool_call() -> None:
    calls = chunk({"functionCall": {"name": "look", "args": {}}})
    assert end_of(read(calls, chunk(finish="STOP"))).stop is Stop.TOOL


@pytest.mark.parametrize("content", [{}, {"content": {}}, {"content": {"parts": []}}, {"content": {"parts": [{}]}}])
def test_a_candidate_without_content_keeps_its_true_stop(content: JsonObject) -> None:
    reply = read({"candidates": [{**content, "finishReason": "MAX_TOKENS"}]})
    assert (reply.pieces, end_of(reply).stop) == ((), Stop.LENGTH)


def test_a_blocked_prompt_is_a_refusal() -> None:
    reply = collect(decode(fixture("blocked")))
    end = end_of(reply)
    assert (end.stop, end.category) == (Stop.FILTERED, "prohibited_content")
    assert end.explanation == "The prompt was blocked: PROHIBITED_CONTENT."
    assert reply.usage == Usage(input=9)


def test_thoughts_that_are_counted_among_candidates_are_not_counted_twice() -> None:
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 9, "thoughtsTokenCount": 4, "totalTokenCount": 19}
    assert read(chunk({"text": "a"}, finish="STOP", usage=counts)).usage == Usage(input=10, output=9, reasoning=4)
    counts["totalTokenCount"] = 23
    assert read(chunk({"text": "a"}, finish="STOP", usage=counts)).usage == Usage(input=10, output=13, reasoning=4)


def test_a_later_count_replaces_and_an_absent_one_stays() -> None:
    early = chunk(
        {"text": "a"}, usage={"promptTokenCount": 10, "cachedContentTokenCount": 4, "candidatesTokenCount": 1}
    )
    late = chunk({"text": "b"}, finish="STOP", usage={"candidatesTokenCount": 3})
    assert read(early, late).usage == Usage(input=10, output=3, cache_read=4)


def test_an_error_after_the_events_is_read_without_data_before_it() -> None:
    failure = failure_of(decode(fixture("failing")))
    assert (failure.kind, failure.message, failure.retry_after) == (Kind.OVERLOADED, "The model is overloaded.", 7.0)


@pytest.mark.parametrize("form", [b'data: {"error":%b}\n\n', b'{"error":%b}', b'[{"error":%b}]', b'\n{"error":%b}\n'])
def test_an_error_in_mid_stream_is_read_in_every_form(form: bytes) -> None:
    error = b'{"code":500,"message":"It overheated.","status":"INTERNAL"}'
    failure = failure_of(decode(stream(chunk({"text": "a"})) + form % error))
    assert (failure.kind, failure.message, failure.status) == (Kind.UPSTREAM, "It overheated.", 500)


def test_an_end_without_a_reason_is_cut_off() -> None:
    assert failure_of(decode(stream(chunk({"text": "a"})))).kind is Kind.TRUNCATED
    assert failure_of(decode(stream(chunk({"text": "a"}))[:-9])).kind is Kind.TRUNCATED
    assert failure_of(decode(b"")).kind is Kind.TRUNCATED


def test_a_part_of_a_reply_ends_with_the_token_for_the_rest() -> None:
    end = end_of(collect(decode(fixture("paused"))))
    assert (end.stop, end.continuation) == (Stop.PAUSE, "dG9rLTE=")


@pytest.mark.parametrize("name", ["text", "calls", "grounded", "code"])
def test_the_whole_reply_equals_the_stream(name: str) -> None:
    """An array of chunks is what a stream is without `alt=sse`."""
    chunks = [msgspec.json.decode(line.removeprefix(b"data: ")) for line in fixture(name).splitlines() if line]
    whole = read_whole(_merge_parts(chunks))
    streamed = collect(decode(fixture(name)))
    assert [(piece.what, piece.text, piece.opaque, piece.citations) for piece in whole.pieces] == [
        (piece.what, piece.text, piece.opaque, piece.citations) for piece in streamed.pieces
    ]
    assert (whole.end, whole.usage) == (streamed.end, streamed.usage)


def _merge_parts(chunks: list[JsonObject]) -> JsonObject:
    parts = [part for each in chunks for part in each["candidates"][0].get("content", {}).get("parts", [])]
    last = chunks[-1]
    return {**last, "candidates": [{**last["candidates"][0], "content": {"role": "model", "parts": parts}}]}


def test_a_stream_that_came_as_an_array_is_read() -> None:
    chunks = [chunk({"text": "a"}), chunk({"text": "b"}, finish="STOP")]
    body = b"[%b]" % b",\n".join(map(msgspec.json.encode, chunks))
    assert UPSTREAM is not None
    reply = collect(UPSTREAM.decode_whole(body, ISSUER, Ledger()))
    assert ([piece.text for piece in reply.pieces], end_of(reply).stop) == (["ab"], Stop.END)


def test_calls_without_ids_differ_between_replies() -> None:
    calls: JsonObject = {"content": {"parts": [{"functionCall": {"name": "look"}}]}, "finishReason": "STOP"}
    ids = set()
    for tokens in (1, 2):
        [call] = read({"candidates": [calls], "usageMetadata": {"promptTokenCount": tokens}}).pieces
        assert isinstance(call.what, CallBlock)
        ids.add(call.what.id)
    assert len(ids) == 2


@pytest.mark.parametrize("dummy", ["skip_thought_signature_validator", "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="])
def test_the_placeholder_is_no_signature(dummy: str) -> None:
    call = {"functionCall": {"name": "look"}, "thoughtSignature": dummy}
    [piece] = read(chunk(call, finish="STOP")).pieces
    assert isinstance(piece.what, CallBlock)
