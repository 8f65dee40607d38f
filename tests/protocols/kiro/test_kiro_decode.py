"""Kiro's text, thoughts, annotations and usage as bytes, and the hub events that they become."""

import pytest

from dragoman.hub.events import Ended, OpaqueAdded, Piece, Started, Stop, TextBlock, ThinkingBlock, UsageReported
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.ports import Issuer
from dragoman.hub.request import Citation
from dragoman.hub.usage import Source, Usage
from fakes.eventstream import encode_message, event
from protocols.kiro.kiro_replies import (
    ISSUER,
    TAIL,
    Reader,
    context,
    make_reasoning,
    metadata,
    metering,
    read,
    reply,
    text_event,
    text_of,
    uses,
)
from replies import join_deltas


def pieces(stream: bytes) -> list[tuple[object, str]]:
    return [(piece.what, piece.text) for piece in reply(stream).pieces]


# Text


def test_text_stays_one_block_and_repeated_text_is_kept() -> None:
    assert pieces(text_event("ha", "ha") + TAIL) == [(TextBlock(), "haha")]


def test_text_is_sent_as_it_comes() -> None:
    reader = Reader()
    assert text_of(reader.feed(text_event("Hel"))) == "Hel"
    assert text_of(reader.feed(text_event("lo"))) == "lo"


def test_json_looking_text_is_literal_and_follow_up_prompts_are_ignored() -> None:
    looks = '{"usage":5} {"content":"x"}'
    follow = event("followupPromptEvent", {"followupPrompt": {"content": "And then?", "userIntent": "CITE_SOURCES"}})
    decoded = read(text_event(looks) + follow + metadata("END_TURN", 1, 0, 0, 1))
    assert text_of(decoded) == looks
    assert decoded[-2] == UsageReported(Usage(1, 1))


def test_unknown_events_fields_and_message_types_change_nothing() -> None:
    plain = text_event("Hi") + TAIL
    odd = b"".join(
        (
            event("initial-response", {"conversationId": "c"}),
            event("fooEvent", {"content": "no"}),
            event("codeEvent", {"content": "no"}),
            event("intentsEvent", {}),
            event("dryRunSucceedEvent", {}),
            event("interactionComponentsEvent", {"x": 1}),
            event("toolResultEvent", {"toolResult": {"toolUseId": "x"}}),
            event("assistantResponseEvent", {"content": "Hi", "usage": {"odd": True}, "unknown": [1]}),
            TAIL,
        )
    )
    assert read(odd) == read(plain)


def test_payloads_may_be_wrapped_in_the_events_name() -> None:
    def wrap(name: str, payload: object) -> bytes:
        return event(name, {name: payload})

    stream = b"".join(
        (
            wrap("messageMetadataEvent", {"conversationId": "c", "utteranceId": "u"}),
            wrap("reasoningContentEvent", {"text": "t"}),
            wrap("assistantResponseEvent", {"content": "Hi"}),
            wrap("toolUseEvent", {"toolUseId": "A", "name": "f", "input": '{"a":1}', "stop": True}),
            wrap("metadataEvent", {"tokenUsage": {"uncachedInputTokens": 3, "outputTokens": 4}}),
            wrap("contextUsageEvent", {"contextUsagePercentage": 1}),
            wrap("meteringEvent", {"usage": 0.5}),
        )
    )
    got = reply(stream)
    assert got.id == "u"
    assert [piece.text for piece in got.pieces] == ["t", "Hi", '{"a":1}']
    assert got.usage == Usage(3, 4, credits=0.5)


def test_a_message_without_a_type_is_an_event() -> None:
    assert text_of(read(encode_message({":event-type": "assistantResponseEvent"}, b'{"content":"Hi"}') + TAIL)) == "Hi"


def test_the_reply_has_kiros_id_and_model() -> None:
    stream = event("messageMetadataEvent", {"conversationId": "c", "utteranceId": "u"})
    stream += event("assistantResponseEvent", {"content": "Hi", "modelId": "auto-chosen"})
    assert read(stream + TAIL)[0] == Started("u", "auto-chosen")
    assert read(text_event("Hi") + TAIL)[0] == Started("", ISSUER.model)


def test_half_a_surrogate_pair_costs_one_character_and_not_the_reply() -> None:
    stream = event("assistantResponseEvent", b'{"content":"a\\ud83d b"}')
    assert text_of(read(stream + TAIL)) == "a\ufffd b"


# Reasoning


def test_native_reasoning_is_sealed_once_and_closed_before_the_text() -> None:
    decoded = read(
        make_reasoning(text="a") + make_reasoning(text="b") + make_reasoning(signature="S") + text_event("Hi") + TAIL
    )
    sealed = [event for event in decoded if isinstance(event, OpaqueAdded)]
    assert sealed == [OpaqueAdded(0, Opaque("kiro", Form.SIGNATURE, "S", ISSUER.model))]
    assert [type(event).__name__ for event in join_deltas(decoded)][:8] == [
        "Started", "Opened", "Delta", "OpaqueAdded", "Closed", "Opened", "Delta", "Closed",
    ]  # fmt: skip


def test_a_signature_in_pieces_is_one_and_reasoning_after_it_is_a_new_block() -> None:
    stream = (
        make_reasoning(text="a")
        + make_reasoning(signature="S1")
        + make_reasoning(signature="S2")
        + make_reasoning(text="b", signature="T")
    )
    got = reply(stream + TAIL)
    assert [(piece.text, piece.opaque and piece.opaque.payload) for piece in got.pieces] == [("a", "S1S2"), ("b", "T")]


def test_redacted_content_is_a_block_of_its_own() -> None:
    got = reply(make_reasoning(text="a") + make_reasoning(redactedContent="cmVk") + text_event("Hi") + TAIL)
    redacted = Piece(ThinkingBlock(), "", Opaque("kiro", Form.REDACTED, "cmVk", ISSUER.model))
    assert got.pieces[:2] == (Piece(ThinkingBlock(), "a"), redacted)


def test_a_signature_without_reasoning_is_kept() -> None:
    (thought, text) = reply(make_reasoning(signature="S") + text_event("Hi") + TAIL).pieces
    assert (thought.text, thought.opaque) == ("", Opaque("kiro", Form.SIGNATURE, "S", ISSUER.model))
    assert text.text == "Hi"


def test_reasoning_may_come_last_and_under_its_older_name() -> None:
    got = reply(text_event("Hi") + make_reasoning(reasoningText="why") + make_reasoning(signature="S") + TAIL)
    assert [(type(piece.what), piece.text) for piece in got.pieces] == [(TextBlock, "Hi"), (ThinkingBlock, "why")]
    assert got.end == Ended(Stop.END)


# Usage


def test_reported_tokens_are_one_total_with_their_cached_part() -> None:
    decoded = read(text_event("Hi") + TAIL)
    assert decoded[-2] == UsageReported(Usage(13, 5, cache_read=2, cache_write=1, credits=0.0148))


def test_a_percentage_is_the_context_in_all_by_the_models_window() -> None:
    decoded = read(text_event("Hi") + context(10) + metering(0.25) + metering(0.5))
    assert decoded[-2] == UsageReported(Usage(context=20_000, credits=0.75, source=Source.DERIVED))


def test_credits_alone_leave_the_counts_to_be_estimated() -> None:
    assert read(text_event("Hi") + metering(0.5))[-2] == UsageReported(Usage(credits=0.5, source=Source.ESTIMATED))
    unknown = Issuer("kiro", "m")
    assert read(text_event("Hi") + context(10) + metering(0.5), unknown)[-2] == UsageReported(
        Usage(credits=0.5, source=Source.ESTIMATED)
    )
    assert not any(isinstance(event, UsageReported) for event in read(text_event("Hi") + metadata()))


@pytest.mark.parametrize("payload", [b'{"usage":-1}', b'{"usage":1e999}', b'{"usage":"x"}', b"{", b"", b"\xff"])
def test_a_tail_event_that_cannot_be_read_is_still_a_tail(payload: bytes) -> None:
    assert read(text_event("Hi") + event("meteringEvent", payload))[-1] == Ended(Stop.END)


# Annotations


def test_code_references_are_citations_of_the_text() -> None:
    references = {
        "references": [
            {
                "licenseName": "MIT",
                "repository": "acme/lib",
                "url": "https://example.com/lib",
                "recommendationContentSpan": {"start": 6, "end": 11},
            }
        ]
    }
    (piece,) = reply(text_event("print(hello)") + event("codeReferenceEvent", references) + TAIL).pieces
    (citation,) = piece.citations
    assert (citation.url, citation.title) == ("https://example.com/lib", "acme/lib (MIT)")
    assert (citation.start, citation.end) == (6, 11)


def test_places_count_within_the_block_that_is_cited() -> None:
    quoted = event(
        "citationEvent",
        {"target": {"range": {"start": 5, "end": 8}}, "citationText": "1", "citationLink": "https://a.example"},
    )
    stream = text_event("1234") + uses("A", "f", input="{}", stop=True) + text_event("5678") + quoted + TAIL
    (citation,) = reply(stream).pieces[2].citations
    assert (citation.url, citation.title, citation.start, citation.end) == ("https://a.example", "1", 1, 4)


def test_a_place_outside_of_the_block_means_all_of_it() -> None:
    quoted = event("citationEvent", {"target": {"location": 99}, "citationLink": "https://a.example"})
    (piece,) = reply(text_event("1234") + quoted + TAIL).pieces
    assert (piece.citations[0].start, piece.citations[0].end) == (None, None)


def test_web_links_are_citations_and_wait_for_the_next_text() -> None:
    links = event(
        "supplementaryWebLinksEvent",
        {"supplementaryWebLinks": [{"url": "https://a.example", "title": "A", "snippet": "words"}]},
    )
    cited = Citation(
        "https://a.example",
        "A",
        "words",
        raw={"type": "supplementaryWebLink", "url": "https://a.example", "title": "A", "snippet": "words"},
    )
    (piece,) = reply(links + text_event("Hi") + TAIL).pieces
    assert piece.citations == (cited,)
    ledger = Ledger()
    read(uses("A", "f", input="{}", stop=True) + links + TAIL, ledger=ledger)
    assert [loss.path for loss in ledger] == ["/citations"]
