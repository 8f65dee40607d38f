"""Encode hub events and compare the bytes of the stream and of the whole message."""

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.translate.hub.events import (
    Block,
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
)
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import UNSIGNED, Opaque, OpaqueForm, decode_envelope, encode_envelope
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.server_tools import SearchFound, SearchResult, SourceText, seal_source
from dragoman.translate.hub.usage import Usage
from laws import assert_any_recut_agrees, run
from replies import END, START, call, join_deltas, split_delta, text
from tables import each_row
from translate.protocols.messages.messages_dialogue import (
    CLIENT,
    ISSUER,
    STREAMS,
    UPSTREAM,
    decode,
    encode,
    fixture,
    frames,
    losses,
    make_context,
    whole,
)
from wire_json import JsonObject

NOT_ENDED: JsonObject = {"stop_reason": None, "stop_sequence": None, "stop_details": None, "container": None}
REFUSED: JsonObject = {"type": "refusal", "category": None, "explanation": None}
DIRECT: JsonObject = {"caller": {"type": "direct"}}
EMPTY_TEXT: JsonObject = {"type": "text", "text": "", "citations": None}
ENCRYPTED = Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA", "gpt-test")


def block(what: Block, *inside: Event) -> list[Event]:
    """A reply of one block."""
    return [START, Opened(0, what), *inside, Closed(0), END]


def kinds(stream: bytes) -> list[object]:
    return [event["type"] for event in frames(stream)]


def blocks_of(stream: bytes) -> list[JsonObject]:
    return [event["content_block"] for event in frames(stream) if "content_block" in event]


def deltas_of(stream: bytes) -> list[JsonObject]:
    return [event["delta"] for event in frames(stream) if event["type"] == "content_block_delta"]


def test_a_text_is_one_block_between_start_and_stop() -> None:
    stream = encode([START, *text(0, "Hel", "lo"), UsageReported(Usage(3, 2)), END])
    inside = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    assert kinds(stream) == ["message_start", *inside, "message_delta", "message_stop"]
    assert deltas_of(stream) == [{"type": "text_delta", "text": "Hel"}, {"type": "text_delta", "text": "lo"}]


def test_counts_are_never_absent_from_message_start() -> None:
    counts = dict.fromkeys(
        ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"), 0
    )
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-asked", "content": []}
    assert frames(encode([START, END]))[0]["message"] == {
        **start,
        **NOT_ENDED,
        "usage": {
            **counts,
            "output_tokens_details": {"thinking_tokens": 0},
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "server_tool_use": None,
            "service_tier": "standard",
            "inference_geo": None,
        },
    }


def test_an_id_of_messages_is_kept() -> None:
    assert frames(encode([Started("msg_9", "m"), END]))[0]["message"]["id"] == "msg_9"


def test_known_input_is_sent_at_the_start_and_again_at_the_end() -> None:
    stream = encode([Started("x", "m", Usage(140, 0, 100, 30, 20)), UsageReported(Usage(140, 9, 100, 30, 20, 4)), END])
    first, delta, _ = frames(stream)
    assert first["message"]["usage"]["input_tokens"] == 10
    assert delta["usage"] == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 30,
        "cache_read_input_tokens": 100,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
        "server_tool_use": None,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    }


def test_empty_deltas_and_empty_blocks_write_nothing() -> None:
    stream = encode([START, *text(0, "", ""), Opened(1, ThinkingBlock()), Closed(1), *text(2, "", "hi"), END])
    starts = [event for event in frames(stream) if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == [0]
    assert deltas_of(stream) == [{"type": "text_delta", "text": "hi"}]


def test_the_first_text_of_every_block_is_written() -> None:
    thought = block(ThinkingBlock(), Delta(0, "A"))[:-1]
    deltas = deltas_of(encode([*thought, *text(1, "B"), *call(2, "f", "{}"), END]))
    words = [delta.get("thinking") or delta.get("text") or delta.get("partial_json") for delta in deltas]
    assert list(filter(None, words)) == ["A", "B", "{}"]


def test_blocks_are_numbered_without_gaps() -> None:
    events = [START, *text(0, "a"), *text(5, "b"), *call(7, "f"), END]
    indexes = [event["index"] for event in frames(encode(events)) if event["type"] == "content_block_stop"]
    assert indexes == [0, 1, 2]


def test_a_call_starts_with_an_empty_input_and_needs_no_delta() -> None:
    stream = encode([START, *call(0, "now"), END])
    assert blocks_of(stream) == [{"type": "tool_use", "id": "call-0", "name": "now", "input": {}, **DIRECT}]
    assert deltas_of(stream) == []
    assert frames(stream)[-2]["delta"] == {**NOT_ENDED, "stop_reason": "tool_use"}


def test_a_signature_is_one_delta_and_the_last_of_its_block() -> None:
    stream = encode(block(ThinkingBlock(), OpaqueAdded(0, ENCRYPTED), Delta(0, "Hm"), Delta(0, ".")))
    assert blocks_of(stream) == [{"type": "thinking", "thinking": "", "signature": ""}]
    assert [delta["type"] for delta in deltas_of(stream)] == ["thinking_delta", "thinking_delta", "signature_delta"]
    token = deltas_of(stream)[-1]["signature"]
    assert isinstance(token, str)
    assert decode_envelope(token) == ENCRYPTED


def test_thinking_without_a_text_is_redacted_thinking_sent_whole() -> None:
    stream = encode(block(ThinkingBlock(), OpaqueAdded(0, ENCRYPTED)))
    assert blocks_of(stream) == [{"type": "redacted_thinking", "data": encode_envelope(ENCRYPTED)}]
    assert deltas_of(stream) == []


def test_unsigned_thinking_is_marked() -> None:
    events = block(ThinkingBlock(), Delta(0, "Hm."))
    assert blocks_of(encode(events)) == [{"type": "thinking", "thinking": "", "signature": ""}]
    assert deltas_of(encode(events))[1:] == [{"type": "signature_delta", "signature": UNSIGNED}]
    assert whole(events)["content"] == [{"type": "thinking", "thinking": "Hm.", "signature": UNSIGNED}]


def test_a_refusal_is_text_and_its_stop_reason_shows_it() -> None:
    events = block(RefusalBlock(), Delta(0, "No."))
    assert blocks_of(encode(events)) == [EMPTY_TEXT]
    assert frames(encode(events))[-2]["delta"] == {**NOT_ENDED, "stop_reason": "refusal", "stop_details": REFUSED}
    assert whole(events)["stop_reason"] == "refusal"


@each_row(
    ("ended", "delta"),
    [
        (END, {"stop_reason": "end_turn"}),
        (Ended(Stop.STOP_SEQUENCE, "x"), {"stop_reason": "stop_sequence", "stop_sequence": "x"}),
        (Ended(Stop.LENGTH), {"stop_reason": "max_tokens"}),
        (Ended(Stop.CONTEXT_FULL), {"stop_reason": "model_context_window_exceeded"}),
        (Ended(Stop.TOOL), {"stop_reason": "end_turn"}),
        (Ended(Stop.PAUSE), {"stop_reason": "pause_turn"}),
        (
            Ended(Stop.FILTERED, None, "cyber", "no"),
            {
                "stop_reason": "refusal",
                "stop_details": {"type": "refusal", "category": "cyber", "explanation": "no"},
            },
        ),
    ],
)
def test_every_stop_has_its_reason(ended: Ended, delta: JsonObject) -> None:
    expected = {**NOT_ENDED, **delta}
    assert frames(encode([START, *text(0, "a"), ended]))[-2]["delta"] == expected
    body = whole([START, *text(0, "a"), ended])
    assert {key: body[key] for key in expected} == expected


def test_a_failure_is_an_error_event_and_the_stream_ends() -> None:
    failed = Failed(Failure(Kind.OVERLOADED, "busy"))
    stream = encode([START, Opened(0, TextBlock()), Delta(0, "Half"), failed])
    assert kinds(stream)[-2:] == ["content_block_delta", "error"]
    assert frames(stream)[-1]["error"] == {"type": "overloaded_error", "message": "busy"}


@each_row(
    ("events", "kind"),
    [
        ([START, Failed(Failure(Kind.LOST, "gone"))], Kind.LOST),
        *(
            ([START, *call(0, "f", given), Ended(Stop.TOOL)], Kind.CORRUPT)
            for given in ('{"a":', "[1]", '"x"', "nonsense")
        ),
    ],
)
def test_a_reply_that_failed_or_calls_without_an_object_has_no_whole_body(events: list[Event], kind: Kind) -> None:
    with pytest.raises(RequestError) as refused:
        whole(events)
    assert refused.value.failure.kind is kind


def test_an_empty_reply_has_empty_content() -> None:
    assert whole([START, END])["content"] == []


def test_cut_off_arguments_are_forwarded_in_a_stream_and_left_out_of_a_whole_reply() -> None:
    events = [START, *text(0, "a"), *call(1, "write", '{"path": "a'), Ended(Stop.LENGTH)]
    stream = encode(events)
    assert deltas_of(stream)[-1] == {"type": "input_json_delta", "partial_json": '{"path": "a'}
    assert frames(stream)[-2]["delta"] == {**NOT_ENDED, "stop_reason": "max_tokens"}
    ledger = Ledger()
    assert whole(events, ledger)["content"] == [{**EMPTY_TEXT, "text": "a"}]
    assert losses(ledger) == {"/content/1": LossKind.DROPPED}


def test_a_search_of_another_vendor_is_sent_as_use_and_result() -> None:
    hits = (Citation("https://example.com", "E"),)
    hosted = HostedBlock("ws_1", "web_search", {"query": "q"}, hits, {"type": "web_search_call"})
    ledger = Ledger()
    stream = encode([START, Opened(0, hosted), Closed(0), *text(1, "so"), END], ledger)
    page = {"type": "web_search_result", "url": "https://example.com", "title": "E"}
    found = {**page, "encrypted_content": seal_source(SourceText()), "page_age": None}
    assert blocks_of(stream) == [
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {}, **DIRECT},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_2", "content": [found], **DIRECT},
        EMPTY_TEXT,
    ]
    assert deltas_of(stream)[0] == {"type": "input_json_delta", "partial_json": '{"query":"q"}'}
    assert losses(ledger) == {"/content/0": LossKind.APPROXIMATED}


def test_other_hosted_work_is_dropped_with_a_loss() -> None:
    ledger = Ledger()
    hosted = HostedBlock("ig_1", "image_generation", raw={"type": "image_generation_call"})
    assert whole(block(hosted), ledger)["content"] == []
    assert losses(ledger) == {"/content/0": LossKind.DROPPED}


def test_citations_of_another_vendor_name_the_page() -> None:
    ledger = Ledger()
    cited = CitationAdded(0, Citation("https://example.com", "E", None, 0, 2, {"type": "url_citation"}))
    events = block(TextBlock(), Delta(0, "so"), cited)
    page = {"type": "web_search_result_location", "url": "https://example.com", "title": "E"}
    record = {**page, "encrypted_index": seal_source(SourceText()), "cited_text": ""}
    assert deltas_of(encode(events, ledger))[-1] == {"type": "citations_delta", "citation": record}
    assert losses(ledger) == {"/content/0/citations": LossKind.APPROXIMATED}
    assert whole(events)["content"] == [{"type": "text", "text": "so", "citations": [record]}]


def test_citations_without_an_address_are_dropped_with_a_loss() -> None:
    ledger = Ledger()
    cited = CitationAdded(0, Citation(title="file", raw={"type": "file_citation"}))
    assert len(deltas_of(encode(block(TextBlock(), Delta(0, "so"), cited), ledger))) == 1
    assert losses(ledger) == {"/content/0/citations": LossKind.DROPPED}


def fold(stream: list[bytes]) -> JsonObject:
    """The message that a client assembles from a stream."""
    message: JsonObject = {}
    content: list[JsonObject] = []
    arguments: dict[int, str] = {}
    for event in frames(b"".join(stream)):
        match event:
            case {"type": "message_start", "message": dict(start)}:
                message = start
            case {"type": "content_block_start", "content_block": dict(block)}:
                content.append(dict(block))
            case {"type": "content_block_delta", "index": int(index), "delta": dict(delta)}:
                grow(content[index], delta, arguments, index)
            case {"type": "message_delta", "delta": dict(delta), "usage": dict(usage)}:
                message |= {**delta, "usage": {**message["usage"], **usage}}
    for index, given in arguments.items():
        content[index]["input"] = msgspec.json.decode(given)
    return {**message, "content": content}


def grow(block: JsonObject, delta: JsonObject, arguments: dict[int, str], index: int) -> None:
    match delta:
        case {"partial_json": str(piece)}:
            arguments[index] = arguments.get(index, "") + piece
        case {"citation": record}:
            block["citations"] = [*(block["citations"] or ()), record]
        case {"signature": signature}:
            block["signature"] = signature
        case _:
            key = "text" if "text" in delta else "thinking"
            block[key] = f"{block[key]}{delta[key]}"


ENDED = [name for name in STREAMS if isinstance(decode(fixture(f"{name}.sse"))[-1], Ended)]
FINISHED = [name for name in ENDED if name != "cut_arguments"]


@each_row("name", FINISHED)
def test_the_folded_stream_is_the_whole_reply(name: str) -> None:
    events = decode(fixture(f"{name}.sse"))
    assert fold([encode(events)]) == whole(events)


@each_row("name", FINISHED)
def test_any_cut_of_the_deltas_gives_the_same_message(name: str) -> None:
    events = join_deltas(decode(fixture(f"{name}.sse")))
    assert_any_recut_agrees(lambda: CLIENT.encoder(make_context(), Ledger()), events, split_delta, fold)


def unseal(events: list[Event]) -> list[Event]:
    """With envelopes opened: a translated stream carries its opaque values inside them."""

    def unseal_event(event: Event) -> Event:
        if isinstance(event, OpaqueAdded):
            return OpaqueAdded(event.block, decode_envelope(event.opaque.payload) or event.opaque)
        if isinstance(event, Started):
            return Started("", "", with_tier(event.usage))
        return UsageReported(with_tier(event.usage)) if isinstance(event, UsageReported) else event

    def with_tier(usage: Usage | None) -> Usage:
        """A message always names a tier."""
        usage = usage or Usage()
        return replace(usage, service_tier=usage.service_tier or "default")

    return [unseal_event(event) for event in events]


@each_row("name", ENDED)
def test_what_is_encoded_is_decoded_to_the_same_events(name: str) -> None:
    events = join_deltas(decode(fixture(f"{name}.sse")))
    assert unseal(join_deltas(decode(encode(events)))) == unseal(events)


def test_a_whole_reply_survives_the_round_trip() -> None:
    events = UPSTREAM.decode_whole(fixture("whole.json"), ISSUER, Ledger())
    again = UPSTREAM.decode_whole(CLIENT.encode_whole(events, make_context(), Ledger()), ISSUER, Ledger())
    assert unseal(again) == unseal(events)


def test_a_call_of_a_wrapped_tool_is_written_like_any_other() -> None:
    events = block(CallBlock("c", "patch"), Delta(0, '{"input":"x"}'))
    assert whole(events)["content"] == [
        {"type": "tool_use", "id": "c", "name": "patch", "input": {"input": "x"}, **DIRECT}
    ]


def test_the_keep_alive_is_a_ping() -> None:
    assert frames(CLIENT.keep_alive) == [{"type": "ping"}]


def test_one_item_is_one_event() -> None:
    for item in run(CLIENT.encoder(make_context(), Ledger()), decode(fixture("web_search.sse"))):
        assert item.endswith(b"\n\n")
        assert item.count(b"\n\n") == 1


@pytest.mark.parametrize(
    ("published", "page_age"),
    [
        ("2026-01-02", "2026-01-02"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("Fri, 02 Jan 2026 03:04:05 GMT", "2026-01-02"),
        ("3 days ago", None),
        ("", None),
        (None, None),
    ],
)
def test_the_age_of_a_page_is_a_date_or_null(published: str | None, page_age: str | None) -> None:
    found = SearchFound((SearchResult("https://example.com", "E", "so", published),))
    hosted = HostedBlock("srvtoolu_1", "web_search", {"query": "q"}, is_ours=True)
    content = whole(block(hosted, ToolReturned(0, found)))["content"]
    assert content[1]["content"][0]["page_age"] == page_age
