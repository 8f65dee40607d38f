"""Encode hub events for Gemini clients: chunks that every SDK reads, in streams, arrays and whole replies."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from dragoman.translate.framing.jsonscan import ArrayFramer
from dragoman.translate.framing.sse import SseFramer
from dragoman.translate.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    OpaqueAdded,
    Opened,
    RefusalBlock,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    ToolReturned,
    UsageReported,
    collect,
)
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, Thought, unseal_thoughts
from dragoman.translate.hub.ports import EVENT_STREAM, Issuer, ReplyContext
from dragoman.translate.hub.request import Citation, Reasoning, Request
from dragoman.translate.hub.server_tools import SearchFound, SearchResult, WebPage
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.gemini.decode import Decoder
from dragoman.translate.protocols.gemini.encode import WITHHELD, Encoder, encode_whole, is_keep_alive
from dragoman.translate.protocols.gemini.wire import ARRAY_STREAM
from laws import assert_any_recut_agrees, run
from replies import START, call, join_deltas, split_delta, text
from wire_json import JsonObject

END = Ended(Stop.END)
SEAL = Opaque("anthropic", OpaqueForm.SIGNATURE, "c2lnbmVk", "claude")
SHOWN = Reasoning("/generationConfig/thinkingConfig", show="summarized")
DEAD = Failure(Kind.LOST, "The upstream's connection broke.", retry_after=6.2)


def context(stream_type: bytes = EVENT_STREAM, reasoning: Reasoning | None = SHOWN, now: float = 1.0) -> ReplyContext:
    request = Request("gemini", "asked", (), reasoning=reasoning)
    return ReplyContext(request, "asked", 1, lambda prefix: f"{prefix}new", lambda: now, stream_type=stream_type)


def encode(events: Sequence[Event], reasoning: Reasoning | None = SHOWN) -> bytes:
    return b"".join(run(Encoder(context(reasoning=reasoning), Ledger()), list(events)))


def chunks(stream: bytes) -> list[JsonObject]:
    lines = stream.split(b"\n\n")
    assert lines.pop() == b""
    return [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines]


def parts(stream: bytes) -> list[JsonObject]:
    return [part for chunk in chunks(stream) for part in chunk["candidates"][0]["content"]["parts"]]


def whole(events: Sequence[Event], ledger: Ledger | None = None, reasoning: Reasoning | None = SHOWN) -> JsonObject:
    body = encode_whole(events, context(reasoning=reasoning), Ledger() if ledger is None else ledger)
    return msgspec.json.decode(body, type=dict)


def think(block: int, text: str, opaque: Opaque | None = None) -> list[Event]:
    sealed = [OpaqueAdded(block, opaque)] if opaque is not None else []
    return [Opened(block, ThinkingBlock()), *([Delta(block, text)] if text else []), *sealed, Closed(block)]


REPLIES: dict[str, list[Event]] = {
    "text": [START, *text(0, "Hel", "lo"), UsageReported(Usage(3, 2)), END],
    "calls": [START, *text(0, "So"), *call(1, "f", '{"a":', "1}"), *call(2, "g"), Ended(Stop.TOOL)],
    "thoughts": [START, *think(0, "Hm.", SEAL), *text(1, "Yes."), *call(2, "f", "{}"), Ended(Stop.TOOL)],
    "hidden thoughts": [START, *think(0, "", SEAL), *call(1, "f", "{}"), Ended(Stop.TOOL)],
    "nothing": [START, END],
    "thoughts alone": [START, *think(0, "Hm.", SEAL), Ended(Stop.LENGTH)],
    "two steps": [
        *(START, *think(0, "a", SEAL), *call(1, "f", "{}"), *think(2, "b"), *text(3, "t"), *call(4, "g", "{}")),
        Ended(Stop.TOOL),
    ],
    "a refusal": [START, Opened(0, RefusalBlock()), Delta(0, "No."), Closed(0), END],
    "withheld": [START, Ended(Stop.FILTERED)],
}


@pytest.mark.parametrize("reply", REPLIES)
def test_every_chunk_has_a_part_and_the_ids_of_the_reply(reply: str) -> None:
    found = chunks(encode(REPLIES[reply]))
    for chunk in found:
        (candidate,) = chunk["candidates"]
        content = candidate["content"]
        assert (content["role"], candidate["index"]) == ("model", 0)
        assert (chunk["modelVersion"], chunk["responseId"]) == ("asked", "reply-1")
        assert content["parts"]
        assert all(content["parts"])
        assert len(content["parts"]) == 1 or all(part.get("text") != "" for part in content["parts"])
    finished = ["finishReason" in chunk["candidates"][0] for chunk in found]
    assert finished == [False] * (len(found) - 1) + [True]
    last = found[-1]
    assert "usageMetadata" in last
    (closing,) = last["candidates"][0]["content"]["parts"]
    assert closing["text"] == ""


@pytest.mark.parametrize("reply", REPLIES)
def test_a_stream_is_the_same_however_its_deltas_are_cut(reply: str) -> None:
    def read(pieces: Sequence[bytes]) -> object:
        found = chunks(b"".join(pieces))
        return _joined_parts(found), found[-1]["candidates"][0]["finishReason"]

    assert_any_recut_agrees(lambda: Encoder(context(), Ledger()), REPLIES[reply], split_delta, read)


@pytest.mark.parametrize("reply", REPLIES)
def test_the_whole_reply_is_the_stream_joined(reply: str) -> None:
    body = whole(REPLIES[reply])
    streamed = chunks(encode(REPLIES[reply]))
    candidate = body["candidates"][0]
    assert [part for part in candidate["content"]["parts"] if part.get("text") != "" or len(part) > 1] == (
        _joined_parts(streamed)
        if reply != "thoughts alone"
        else [{"text": "Hm.", "thought": True, **_signature(streamed[-1])}]
    )
    assert candidate["finishReason"] == streamed[-1]["candidates"][0]["finishReason"]
    assert body["usageMetadata"] == streamed[-1]["usageMetadata"]
    assert (body["modelVersion"], body["responseId"]) == ("asked", "reply-1")


def _signature(chunk: JsonObject) -> JsonObject:
    (part,) = chunk["candidates"][0]["content"]["parts"]
    return {"thoughtSignature": part["thoughtSignature"]}


def _joined_parts(found: list[JsonObject]) -> list[JsonObject]:
    out: list[JsonObject] = []
    for chunk in found:
        for part in chunk["candidates"][0]["content"]["parts"]:
            if part == {"text": ""}:
                continue
            same = out and part.keys() == {"text"} and "text" in out[-1] and "thought" not in out[-1]
            more = out and part.get("thought") and out[-1].get("thought") and part.keys() == out[-1].keys()
            if same or more:
                out[-1] = {**out[-1], "text": out[-1]["text"] + part["text"]}
            else:
                out.append(part)
    return out


@pytest.mark.parametrize("stream_type", [EVENT_STREAM, ARRAY_STREAM], ids=["events", "array"])
def test_decoding_gives_the_same_text_and_calls_back(stream_type: bytes) -> None:
    events = REPLIES["calls"]
    stream = b"".join(run(Encoder(context(stream_type), Ledger()), events))
    framer = SseFramer() if stream_type == EVENT_STREAM else ArrayFramer()
    decoded = run(Decoder(Issuer("up", "m"), Ledger()), run(framer, [stream]))
    reply, expected = collect(join_deltas(decoded)), collect(join_deltas(events))
    assert [(piece.what, piece.text or "{}") for piece in reply.pieces] == [
        (piece.what, piece.text or "{}") for piece in expected.pieces
    ]
    assert reply.end == Ended(Stop.TOOL)


def test_an_array_is_valid_json_and_an_error_is_its_last_element() -> None:
    def array(events: list[Event]) -> list[JsonObject]:
        stream = b"".join(run(Encoder(context(ARRAY_STREAM), Ledger()), events))
        return msgspec.json.decode(stream, type=list[JsonObject])

    assert [sorted(chunk) for chunk in array(REPLIES["text"])][-1] == [
        "candidates", "modelVersion", "responseId", "usageMetadata",
    ]  # fmt: skip
    assert array([START, *text(0, "a"), Failed(DEAD)])[-1]["error"]["code"] == 502
    assert array([Failed(DEAD)])[0]["error"]["status"] == "UNAVAILABLE"


def test_a_failure_is_an_event_and_then_the_bare_object() -> None:
    encoder = Encoder(context(), Ledger())
    pieces = [piece for event in [START, *text(0, "a"), Failed(DEAD)] for piece in encoder.feed(event)]
    (bare,) = encoder.finish()
    assert pieces[-1] == b"data: " + bare + b"\n\n"
    assert bare.startswith(b'{"error":{"code":502,')
    details = msgspec.json.decode(bare)["error"]["details"]
    assert {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"} in details
    assert not any(b"finishReason" in piece for piece in pieces)


@pytest.mark.parametrize("character", ["\u0085", "\u2028", "\u2029"])
def test_line_ends_of_other_standards_are_escaped(character: str) -> None:
    written = f"a{character}é"
    events: list[Event] = [START, *think(0, written), *text(1, written), *call(2, "f", f'{{"k": "{written}"}}'), END]
    for body in (encode(events), encode_whole(events, context(), Ledger())):
        assert character.encode() not in body
    assert [part["text"] for part in parts(encode(events)) if "functionCall" not in part] == [written, written, ""]
    assert parts(encode(events))[2]["functionCall"]["args"] == {"k": written}


def test_arguments_over_several_lines_are_written_on_one() -> None:
    stream = encode([START, *call(0, "f", '{\n "a": [1,\r\n 2]}'), END])
    assert parts(stream)[0]["functionCall"]["args"] == {"a": [1, 2]}


def test_all_reasoning_of_a_step_rides_on_its_first_call() -> None:
    events: list[Event] = [
        *(START, *think(0, "a", SEAL), *text(1, "t"), *think(2, "b"), *call(3, "f", "{}"), *call(4, "g", "{}")),
        Ended(Stop.TOOL),
    ]
    first, second = Thought("a", SEAL), Thought("b")
    found = [unseal_thoughts(part.get("thoughtSignature", "")) for part in parts(encode(events, reasoning=None))]
    assert found == [(first,), (first, second), None, None]


def test_reasoning_after_the_text_of_a_whole_reply_is_sent_with_it() -> None:
    events: list[Event] = [START, *text(0, "t"), *think(1, "a", SEAL), END]
    (part,) = whole(events, reasoning=None)["candidates"][0]["content"]["parts"]
    assert part["text"] == "t"
    assert unseal_thoughts(part["thoughtSignature"]) == (Thought("a", SEAL),)


def test_thoughts_are_shown_only_if_the_client_requested_them() -> None:
    events = REPLIES["thoughts"]
    assert [part for part in parts(encode(events)) if part.get("thought")] == [{"text": "Hm.", "thought": True}]
    assert not any(part.get("thought") for part in parts(encode(events, reasoning=None)))
    assert not any(part.get("thought") for part in whole(events, reasoning=None)["candidates"][0]["content"]["parts"])


@pytest.mark.parametrize(
    ("ended", "reason", "message", "shown"),
    [
        (Ended(Stop.STOP_SEQUENCE, sequence="x"), "STOP", None, ""),
        (Ended(Stop.CONTEXT_FULL), "MAX_TOKENS", None, ""),
        (Ended(Stop.FILTERED, category="cyber", explanation="It is about weapons."), "SAFETY", True, "weapons"),
        (Ended(Stop.FILTERED, category="recitation"), "RECITATION", True, WITHHELD),
        (Ended(Stop.PAUSE), "STOP", None, ""),
    ],
)
def test_why_a_reply_ended(ended: Ended, reason: str, message: bool | None, shown: str) -> None:
    for candidate in (chunks(encode([START, ended]))[-1]["candidates"][0], whole([START, ended])["candidates"][0]):
        assert candidate["finishReason"] == reason
        assert ("finishMessage" in candidate) is (message is True)
    assert shown in "".join(part["text"] for part in parts(encode([START, ended])))
    assert shown in whole([START, ended])["candidates"][0]["content"]["parts"][0]["text"]


def test_counts_of_thoughts_stand_apart() -> None:
    body = whole([START, UsageReported(Usage(100, 30, cache_read=60, reasoning=12)), END])
    assert body["usageMetadata"] == {
        "promptTokenCount": 100,
        "candidatesTokenCount": 18,
        "totalTokenCount": 130,
        "thoughtsTokenCount": 12,
        "cachedContentTokenCount": 60,
    }


def test_what_was_written_to_a_cache_is_no_loss() -> None:
    ledger = Ledger()
    whole([START, UsageReported(Usage(100, 30, cache_write=60)), END], ledger)
    assert len(ledger) == 0


def test_a_call_that_was_cut_off_is_left_out() -> None:
    events: list[Event] = [START, *text(0, "t"), *call(1, "f", '{"a":'), Ended(Stop.LENGTH)]
    ledger = Ledger()
    assert [part.get("text") for part in parts(encode(events))] == ["t", ""]
    assert len(whole(events, ledger)["candidates"][0]["content"]["parts"]) == 1
    assert [loss.how for loss in ledger] == [LossKind.DROPPED]


def test_citations_count_the_bytes_of_all_visible_text() -> None:
    search = HostedBlock("s1", "web_search", {"query": "q"}, is_ours=True)
    found = SearchFound((SearchResult("https://a.example", "A"), SearchResult("https://b.example", "B")))
    events: list[Event] = [
        *(START, Opened(0, search), ToolReturned(0, found), Closed(0), *text(1, "é. ")),
        *(Opened(2, TextBlock()), Delta(2, "Grüße "), Delta(2, "dort")),
        CitationAdded(2, Citation("https://b.example", "B", start=6, end=10)),
        *(CitationAdded(2, Citation("https://c.example", "C")), Closed(2), END),
    ]
    for candidate in (chunks(encode(events))[-1]["candidates"][0], whole(events)["candidates"][0]):
        metadata = candidate["groundingMetadata"]
        assert metadata["webSearchQueries"] == ["q"]
        assert [chunk["web"]["uri"] for chunk in metadata["groundingChunks"]] == [
            "https://a.example", "https://b.example", "https://c.example",
        ]  # fmt: skip
        joined_text = "é. Grüße dort".encode()
        first, second = metadata["groundingSupports"]
        segment = first["segment"]
        assert joined_text[segment["startIndex"] : segment["endIndex"]].decode() == segment["text"] == "dort"
        assert (first["groundingChunkIndices"], second["groundingChunkIndices"]) == ([1], [2])
        segment = second["segment"]
        assert joined_text[segment["startIndex"] : segment["endIndex"]].decode() == "Grüße dort"


def test_a_fetched_page_is_url_context() -> None:
    fetch = HostedBlock("f1", "web_fetch", {"url": "https://a.example"}, is_ours=True)
    events: list[Event] = [START, Opened(0, fetch), ToolReturned(0, WebPage("https://a.example", "A")), Closed(0), END]
    assert whole(events)["candidates"][0]["urlContextMetadata"] == {
        "urlMetadata": [{"retrievedUrl": "https://a.example", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"}]
    }


def test_log_probabilities() -> None:
    logprobs = Raw(b'[{"token":"a","logprob":-0.5,"bytes":null,"top_logprobs":[{"token":"b","logprob":-1}]}]')
    events: list[Event] = [START, Opened(0, TextBlock()), Delta(0, "a", logprobs), Closed(0), END]
    expected = {
        "chosenCandidates": [{"token": "a", "logProbability": -0.5}],
        "topCandidates": [{"candidates": [{"token": "b", "logProbability": -1.0}]}],
    }
    assert chunks(encode(events))[0]["candidates"][0]["logprobsResult"] == expected
    assert whole(events)["candidates"][0]["logprobsResult"] == expected


def test_the_keep_alive_is_an_empty_chunk_of_the_same_reply() -> None:
    encoder = Encoder(context(), Ledger())
    encoder.feed(Started("", "m"))
    (chunk,) = chunks(encoder.keep_alive)
    assert chunk["candidates"][0]["content"]["parts"] == [{"text": ""}]
    assert chunk["responseId"] == "new"
    array = Encoder(context(ARRAY_STREAM), Ledger())
    array.feed(START)
    assert array.keep_alive.strip() == b""
    assert is_keep_alive(encoder.keep_alive)
    assert is_keep_alive(array.keep_alive)
    for reply in REPLIES.values():
        assert not any(map(is_keep_alive, run(Encoder(context(), Ledger()), reply)))


def test_a_client_gets_keep_alives_while_a_long_call_is_collected() -> None:
    seconds = iter([0.0, 1.0, 11.0, 11.0, 12.0])
    encoder = Encoder(replace(context(), now=lambda: next(seconds)), Ledger())
    encoder.feed(START)
    encoder.feed(Opened(0, CallBlock("c", "f")))
    written = [encoder.feed(Delta(0, piece)) for piece in ("{", '"a":', "1}")]
    assert [bool(pieces) for pieces in written] == [False, True, False]
    assert written[1] == (encoder.keep_alive,)


def test_a_failed_reply_has_no_whole() -> None:
    with pytest.raises(RequestError):
        whole([START, Failed(DEAD)])
