"""Kiro's text, thoughts, annotations and usage as bytes, and the hub events that they become."""

import msgspec
import pytest

from dragoman.translate.hub.events import (
    CallBlock,
    Ended,
    OpaqueAdded,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    TruncatedCall,
    UsageReported,
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.usage import Usage, UsageSource
from dragoman.translate.protocols.kiro.decode_blocks import MAX_CHARS, Calls
from dragoman.translate.protocols.kiro.wire import ToolUse
from fakes.eventstream import encode_message, event
from replies import join_deltas
from tables import each_row
from translate.protocols.kiro.kiro_replies import (
    ISSUER,
    TAIL,
    Reader,
    calls_of,
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


def pieces(stream: bytes) -> list[tuple[object, str]]:
    return [(piece.what, piece.text) for piece in reply(stream).pieces]


def test_text_is_sent_as_it_comes() -> None:
    reader = Reader()
    assert text_of(reader.feed(text_event("Hel"))) == "Hel"
    assert text_of(reader.feed(text_event("lo"))) == "lo"


def test_unknown_events_fields_and_message_types_change_nothing() -> None:
    names = ("fooEvent", "codeEvent", "intentsEvent", "dryRunSucceedEvent", "interactionComponentsEvent")
    odd = event("initial-response", {"conversationId": "c"}) + event(
        "toolResultEvent", {"toolResult": {"toolUseId": "x"}}
    )
    odd += b"".join(event(name, {"content": "no", "x": 1}) for name in names)
    odd += event("assistantResponseEvent", {"content": "Hi", "usage": {"odd": True}, "unknown": [1]})
    assert read(odd + TAIL) == read(text_event("Hi") + TAIL)


def test_payloads_may_be_wrapped_in_the_events_name() -> None:
    call = {"toolUseId": "A", "name": "f", "input": '{"a":1}', "stop": True}
    payloads = {
        "messageMetadataEvent": {"conversationId": "c", "utteranceId": "u"},
        "reasoningContentEvent": {"text": "t"},
        "assistantResponseEvent": {"content": "Hi"},
        "toolUseEvent": call,
        "metadataEvent": {"tokenUsage": {"uncachedInputTokens": 3, "outputTokens": 4}},
        "contextUsageEvent": {"contextUsagePercentage": 1},
        "meteringEvent": {"usage": 0.5},
    }
    got = reply(b"".join(event(name, {name: payload}) for name, payload in payloads.items()))
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


def test_native_reasoning_is_sealed_once_and_closed_before_the_text() -> None:
    decoded = read(
        make_reasoning(text="a") + make_reasoning(text="b") + make_reasoning(signature="S") + text_event("Hi") + TAIL
    )
    sealed = [event for event in decoded if isinstance(event, OpaqueAdded)]
    assert sealed == [OpaqueAdded(0, Opaque("kiro", OpaqueForm.SIGNATURE, "S", ISSUER.model))]
    assert [type(event).__name__ for event in join_deltas(decoded)][:8] == [
        "Started", "Opened", "Delta", "OpaqueAdded", "Closed", "Opened", "Delta", "Closed",
    ]  # fmt: skip


SIGNED = [make_reasoning(text="a"), make_reasoning(signature="S1"), make_reasoning(signature="S2")]
REDACTED = make_reasoning(redactedContent="cmVk")


@each_row(
    ("events", "expected"),
    [
        ([*SIGNED, make_reasoning(text="b", signature="T")], [("a", "S1S2"), ("b", "T")]),  # a new block
        ([make_reasoning(text="a"), REDACTED, text_event("Hi")], [("a", None), ("", "cmVk"), ("Hi", None)]),
        ([make_reasoning(signature="S"), text_event("Hi")], [("", "S"), ("Hi", None)]),
        (  # last, and under its older name
            [text_event("Hi"), make_reasoning(reasoningText="why"), make_reasoning(signature="S")],
            [("Hi", None), ("why", "S")],
        ),
    ],
)
def test_reasoning_is_blocks_with_their_seals(events: list[bytes], expected: list[tuple[str, str | None]]) -> None:
    got = reply(b"".join(events) + TAIL)
    assert [(piece.text, piece.opaque and piece.opaque.payload) for piece in got.pieces] == expected
    for piece in got.pieces:
        assert piece.what == (TextBlock() if piece.text == "Hi" else ThinkingBlock())
        if piece.opaque is not None:
            form = OpaqueForm.REDACTED if piece.opaque.payload == "cmVk" else OpaqueForm.SIGNATURE
            assert piece.opaque == Opaque("kiro", form, piece.opaque.payload, ISSUER.model)
    assert got.end == Ended(Stop.END)


CREDITS = Usage(credits=0.5, source=UsageSource.ESTIMATED)  # which leaves the counts to be estimated


@each_row(
    ("tail", "issuer", "usage"),
    [
        (TAIL, ISSUER, Usage(13, 5, cache_read=2, cache_write=1, credits=0.0148)),
        (
            context(10) + metering(0.25) + metering(0.5),  # of the model's window
            ISSUER,
            Usage(context=20_000, credits=0.75, source=UsageSource.DERIVED),
        ),
        (metering(0.5), ISSUER, CREDITS),
        (context(10) + metering(0.5), Issuer("kiro", "m"), CREDITS),
        (metadata(), ISSUER, None),
    ],
)
def test_usage_is_what_the_tail_reports(tail: bytes, issuer: Issuer, usage: Usage | None) -> None:
    used = [event.usage for event in read(text_event("Hi") + tail, issuer) if isinstance(event, UsageReported)]
    assert used == ([usage] if usage else [])


@pytest.mark.parametrize("payload", [b'{"usage":-1}', b'{"usage":1e999}', b'{"usage":"x"}', b"{", b"", b"\xff"])
def test_a_tail_event_that_cannot_be_read_is_still_a_tail(payload: bytes) -> None:
    assert read(text_event("Hi") + event("meteringEvent", payload))[-1] == Ended(Stop.END)


def test_code_references_are_citations_of_the_text() -> None:
    source = {"licenseName": "MIT", "repository": "acme/lib", "url": "https://example.com/lib"}
    references = {"references": [{**source, "recommendationContentSpan": {"start": 6, "end": 11}}]}
    (piece,) = reply(text_event("print(hello)") + event("codeReferenceEvent", references) + TAIL).pieces
    (citation,) = piece.citations
    assert (citation.url, citation.title) == ("https://example.com/lib", "acme/lib (MIT)")
    assert (citation.start, citation.end) == (6, 11)


def test_places_count_within_the_block_that_is_cited() -> None:
    place = {"target": {"range": {"start": 5, "end": 8}}, "citationText": "1", "citationLink": "https://a.example"}
    stream = text_event("1234") + uses("A", "f", input="{}", stop=True) + text_event("5678")
    (citation,) = reply(stream + event("citationEvent", place) + TAIL).pieces[2].citations
    assert (citation.url, citation.title, citation.start, citation.end) == ("https://a.example", "1", 1, 4)


def test_web_links_are_citations_and_wait_for_the_next_text() -> None:
    link = {"url": "https://a.example", "title": "A", "snippet": "words"}
    links = event("supplementaryWebLinksEvent", {"supplementaryWebLinks": [link]})
    (piece,) = reply(links + text_event("Hi") + TAIL).pieces
    assert piece.citations == (
        Citation("https://a.example", "A", "words", raw={"type": "supplementaryWebLink", **link}),
    )
    ledger = Ledger()
    read(uses("A", "f", input="{}", stop=True) + links + TAIL, ledger=ledger)
    assert [loss.path for loss in ledger] == ["/citations"]


def test_a_place_outside_of_the_block_means_all_of_it() -> None:
    quoted = event("citationEvent", {"target": {"location": 99}, "citationLink": "https://a.example"})
    (piece,) = reply(text_event("1234") + quoted + TAIL).pieces
    assert (piece.citations[0].start, piece.citations[0].end) == (None, None)


def test_a_call_is_withheld_until_it_is_whole() -> None:
    reader = Reader()
    reader.feed(uses("A", "f", input='{"a":') + uses("A", input="1}"))
    assert calls_of(reader.feed(uses("A", stop=True))) == [("A", "f", '{"a":1}')]


ONCE = uses("A", "f", input='{"a":1}', stop=True)
LATER = uses("B", "g", stop=True) + uses("C", "h", input='{"c":3}', stop=True)
NAMELESS = uses(None, "g", input='{"b":1}', stop=True)
WHOLE = [("A", "f", '{"a":1}')]
OBJECT = b'{"toolUseId":"A","name":"f","input":{"a":1.0,"b":["\\u00e9"]},"stop":true}'
SURROGATE = b'{"toolUseId":"A","name":"f","input":"{\\"a\\":\\"\\\\ud83d\\"}","stop":true}'


@each_row(
    ("stream", "calls"),
    [
        (uses("A", "f") + uses("A", input="", stop=True), [("A", "f", "{}")]),
        (uses("A", "f") + uses("A", input=" ", stop=True), [("A", "f", "{}")]),
        (uses("A", "f") + uses("A", stop=True), [("A", "f", "{}")]),
        (event("toolUseEvent", OBJECT), [("A", "f", '{"a":1.0,"b":["\\u00e9"]}')]),  # the same JSON
        (
            uses("A", "f", input={"a": 1}) + uses("A", input={"a": 1, "b": 2}) + uses("A", stop=True),
            [("A", "f", '{"a":1,"b":2}')],
        ),
        (uses("A", "f", input={}) + uses("A", input='{"a":1}') + uses("A", stop=True), WHOLE),
        (  # a call waits for those that began before it
            uses("A", "f", input='{"a"') + LATER + text_event("Hi") + uses("A", input=":1}", stop=True),
            [*WHOLE, ("B", "g", "{}"), ("C", "h", '{"c":3}')],
        ),
        (uses("A", "f", input='{"a"') + LATER, [("B", "g", "{}"), ("C", "h", '{"c":3}')]),
        (uses("A", "f", input='{"a":1}'), WHOLE),  # without a stop, and whole
        (ONCE + ONCE + uses("A", stop=True), WHOLE),
        (uses("A", "f", stop=True) + ONCE, WHOLE),  # the most complete arguments
        (uses("A", "f", input={"a": 1}) + uses("A", input={}, stop=True), WHOLE),
        (uses("A", "f", input='{"a":') + ONCE, WHOLE),
        (  # each version in pieces, and a third one
            uses("A", "f", input='{"a"')
            + uses("A", input=":")
            + uses("A", "f", input="{")
            + uses("A", input='"a":1')
            + ONCE,
            WHOLE,
        ),
        (uses("A", "f", input='{"b":"x') + ONCE, WHOLE),  # it began in another way
        (uses("A", "f", input='{"a":1}') + uses("A", "f", input='{"a":', stop=True), WHOLE),
        (uses("A", "f", input='{"a":1}') + LATER + ONCE, [*WHOLE, ("B", "g", "{}"), ("C", "h", '{"c":3}')]),
        (  # an object inside of the arguments is no version of them
            uses("A", "f", input='{"a":') + uses("A", input='{"a":1}') + uses("A", input="}", stop=True),
            [("A", "f", '{"a":{"a":1}}')],
        ),
        (  # two calls without an id, the first one without a stop
            uses(None, "f", input='{"a":1}') + NAMELESS,
            [("tooluse_1", "f", '{"a":1}'), ("tooluse_2", "g", '{"b":1}')],
        ),
        (
            uses("A", "f") + uses(None, input='{"a":1}') + uses(None, stop=True) + NAMELESS,
            [*WHOLE, ("tooluse_2", "g", '{"b":1}')],
        ),
        (uses(None, stop=True) + text_event("x"), []),
        (event("toolUseEvent", SURROGATE), [("A", "f", '{"a":"\\ufffd"}')]),
    ],
)
def test_a_call_is_sent_once_and_complete(stream: bytes, calls: list[tuple[str, str, str]]) -> None:
    decoded = read(stream + TAIL)
    assert calls_of(decoded) == calls
    assert isinstance(decoded[-1], Ended)
    assert (decoded[-1].stop is Stop.TOOL) == (bool(calls) and not decoded[-1].cut)


WRITE = TruncatedCall("A", "write", '{"path":"x')


@each_row(
    ("stream", "calls", "cut"),
    [
        (text_event("ok") + uses("A", "write", input='{"path":"x'), [], WRITE),
        (text_event("ok") + uses("A", "write", input='{"path":"x') + TAIL, [], WRITE),
        (text_event("ok") + uses("A", "write", input='{"path":"x', stop=True), [], WRITE),
        (text_event("ok") + uses("A", "write", input='{"path":"x', stop=True) + TAIL, [], WRITE),
        (uses("A", "f") + TAIL, [], TruncatedCall("A", "f", "")),
        (ONCE + uses("B", "g", input='{"b"') + TAIL, WHOLE, TruncatedCall("B", "g", '{"b"')),
        (  # it is not replaced by an earlier empty call
            uses("A", "f", stop=True) + uses("A", input='{"a"') + uses("B", "g", input='{"b":1}', stop=True) + TAIL,
            [("B", "g", '{"b":1}')],
            TruncatedCall("A", "f", '{"a"'),
        ),
        (  # the nested object is complete, its call is not
            uses("A", "f", input='{"a":[') + uses("A", input='{"b":1}') + TAIL,
            [],
            TruncatedCall("A", "f", '{"a":[{"b":1}'),
        ),
        (
            uses("A", "f", input='{"a":[') + uses("A", input='{"b":1.') + TAIL,
            [],
            TruncatedCall("A", "f", '{"a":[{"b":1.'),
        ),
        (  # of two versions that were cut the longer one
            uses("A", "f", input='{"a":"long"', stop=True) + uses("A", "f", input='{"a"', stop=True) + TAIL,
            [],
            TruncatedCall("A", "f", '{"a":"long"'),
        ),
        *(
            (uses("A", "f", input=given, stop=True) + TAIL, [], TruncatedCall("A", "f", given))
            for given in ("[1]", "1", '"x"', "null", '{"a":1}}', '{"a":1}{"a":2}', '{"a":NaN}')
        ),
    ],
)
def test_a_call_that_is_cut_or_no_object_is_never_sent_and_the_reply_ends_by_length(
    stream: bytes, calls: list[tuple[str, str, str]], cut: TruncatedCall
) -> None:
    decoded = read(stream)
    assert calls_of(decoded) == calls
    assert decoded[-1] == Ended(Stop.LENGTH, cut=(cut,))


def test_no_part_of_a_cut_call_is_taken_for_a_version_of_it() -> None:
    whole = '{"edits":[{"a":{"b":1}},{"c":-1.5e3}],"x":{"y":"}{\\"","z":[{}]}}'
    for length in range(2, len(whole)):
        for size in range(1, length + 1):
            pieces = [whole[at : min(at + size, length)] for at in range(0, length, size)]
            calls = Calls(Ledger())
            for piece in pieces:
                calls.add(ToolUse(tool_use_id="A", name="f", input=msgspec.Raw(msgspec.json.encode(piece))))
            assert calls.end() == ([], (TruncatedCall("A", "f", whole[:length]),))


def test_the_same_call_under_another_id_is_made_once_and_recorded() -> None:
    ledger = Ledger()
    stream = uses("A", "f", input='{"a":1}', stop=True) + uses("B", "f", input='{ "a": 1 }', stop=True)
    assert calls_of(read(stream + TAIL, ledger=ledger)) == [("A", "f", '{"a":1}')]
    assert [loss.path for loss in ledger] == ["/toolUses/B"]


@each_row(
    ("stream", "is_lost"),
    [
        (uses("A", "f", input='{"b":2,"a":1}') + ONCE, False),
        (uses("A", "f", input='{"a":2,"b":1}') + ONCE, True),
        (uses("A", "f", input='{ "a"', stop=True) + ONCE, False),
        (uses("A", "f", input='{"b":2', stop=True) + ONCE, True),
        (ONCE + uses("A", "f", input='{"a": 1 }', stop=True), False),
        (ONCE + text_event("x") + uses("A", "f", input='{"a":1,"b":2}', stop=True), True),
        (ONCE + uses("A", "g", input='{"a":1}', stop=True), True),
        (ONCE + uses("A", "f", input="{}", stop=True), False),
    ],
)
def test_a_version_of_a_call_that_says_something_else_is_recorded(stream: bytes, is_lost: bool) -> None:
    ledger = Ledger()
    assert len(calls_of(read(stream + TAIL, ledger=ledger))) == 1
    assert [loss.path for loss in ledger] == (["/toolUses/A"] if is_lost else [])


def test_an_empty_call_comes_before_the_text_that_follows_it() -> None:
    decoded = pieces(text_event("a") + uses("A", "f", stop=True) + text_event("b") + TAIL)
    assert decoded == [(TextBlock(), "a"), (CallBlock("A", "f"), "{}"), (TextBlock(), "b")]


@pytest.mark.rest
def test_arguments_without_end_are_bounded_and_cut() -> None:
    calls = Calls(Ledger())
    piece = msgspec.Raw(msgspec.json.encode('{"a":"' + "x" * 4_000_000))
    for _ in range(20):
        calls.add(ToolUse(tool_use_id="A", name="f", input=piece))
    assert calls.add(ToolUse(tool_use_id="A", input=msgspec.Raw(b'"\\"}"'), stop=True)) == []
    (cut,) = calls.end()[1]
    assert len(cut.arguments) <= MAX_CHARS + 4_100_000
