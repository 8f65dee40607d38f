"""The reply of a turn is chosen once, by what was requested and what came, and the choice has a reason."""

import pytest

from dragoman.net.headers import Headers
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.replies.opening import DocumentReplies, Replies, StreamReplies
from dragoman.proxy.replies.passed import PassedDocument, PassedStream
from dragoman.proxy.replies.reply import ReplyForm, choose_reply
from dragoman.proxy.replies.translated import Body, TranslatedDocument, TranslatedStream
from dragoman.proxy.response_writer import StreamWriter
from dragoman.proxy.step import Ask
from dragoman.proxy.why import Why, same_protocol
from dragoman.translate.stages.estimate_usage import EstimateUsage
from narrowing import expect
from proxy.in_memory import (
    MemoryWire,
    make_call,
    make_document_writer,
    make_encoding,
    make_provider,
    make_sink,
    prepare_for,
    run,
)
from proxy.rigs import BODIES, STREAM, WHOLE, make_watch
from tables import each_row

PASSED, TRANSLATED = same_protocol("chat"), Why(False, "the provider speaks chat only")


@each_row(
    ("request_why", "requested", "answered", "why"),
    [
        (PASSED, ReplyForm.STREAM, ReplyForm.STREAM, "passed; the upstream speaks chat"),
        (PASSED, ReplyForm.DOCUMENT, ReplyForm.DOCUMENT, "passed; the upstream speaks chat"),
        (PASSED, ReplyForm.STREAM, ReplyForm.DOCUMENT, "translated; the upstream answered with a document"),
        (PASSED, ReplyForm.DOCUMENT, ReplyForm.STREAM, "translated; the upstream answered with a stream"),
        *(
            (TRANSLATED, one, other, "translated; the provider speaks chat only")
            for one in ReplyForm
            for other in ReplyForm
        ),
    ],
)
def test_bytes_pass_where_the_request_did_and_the_form_is_the_one_requested(
    request_why: Why, requested: ReplyForm, answered: ReplyForm, why: str
) -> None:
    assert str(choose_reply(request_why, requested, answered)) == why


async def open_replies(client: str, *, stream: bool) -> tuple[Replies, Prepared]:
    sink = make_sink(MemoryWire())
    call = make_call(client, BODIES[client][stream])
    replies: Replies
    if stream:
        replies = StreamReplies(call, StreamWriter(sink, call, lambda: make_encoding(call), 3600), make_watch)
    else:
        replies = DocumentReplies(call, make_document_writer(sink, call), make_watch)
    prepared = await prepare_for(call, make_provider())
    replies.begin_turn(Ask(prepared.route, prepared.provider, 1), prepared)
    return replies, prepared


@pytest.mark.parametrize(
    ("client", "stream", "streamed", "whole", "other_whole"),
    [
        ("chat", True, PassedStream, TranslatedStream, TranslatedStream),
        ("messages", True, TranslatedStream, TranslatedStream, TranslatedStream),
        ("chat", False, TranslatedDocument, PassedDocument, TranslatedDocument),
        ("messages", False, TranslatedDocument, TranslatedDocument, TranslatedDocument),
    ],
)
async def test_each_case_is_a_class(client: str, stream: bool, streamed: type, whole: type, other_whole: type) -> None:
    replies, _ = await open_replies(client, stream=stream)
    replies.begin_answer(200, Headers([]), is_stream=True)
    assert type(replies.open_stream(b"")) is streamed
    assert type(replies.open_document(Body(WHOLE, is_stream=False))) is whole
    assert type(replies.open_document(Body(STREAM, is_stream=True))) is other_whole


async def test_the_events_of_a_passed_request_go_through_no_stages_of_the_upstream() -> None:
    replies, _ = await open_replies("chat", stream=True)
    reply = expect(TranslatedStream, replies.open_document(Body(WHOLE, is_stream=False)))
    assert reply.find_stage(EstimateUsage) is None
    assert str(reply.why) == "translated; the upstream answered with a document"


@each_row(
    ("stream", "is_stream", "begun", "may_be_events", "is_events"),
    [
        (True, True, b"data: {}", True, True),
        (True, True, b'{"id"', True, False),
        (True, False, b"data: {}", True, True),
        (True, False, b'{"id"', True, False),
        (False, True, b"data: {}", False, True),
        (False, False, b"data: {}", False, True),
    ],
)
def test_an_answer_is_read_as_events_or_whole(
    stream: bool, is_stream: bool, begun: bytes, may_be_events: bool, is_events: bool
) -> None:
    replies, _ = run(open_replies("chat", stream=stream))
    assert replies.begin_answer(200, Headers([]), is_stream=is_stream) is may_be_events
    assert replies.reads_events(begun) is is_events


@pytest.mark.parametrize("stream", [True, False])
async def test_tools_that_run_first_begin_a_translated_reply(stream: bool) -> None:
    replies, prepared = await open_replies("messages", stream=stream)
    reply = replies.open_for_tools()
    await reply.begin_with_tools()
    assert reply.origin.prepared is prepared
    assert not reply.is_over
