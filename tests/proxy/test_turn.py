"""One upstream turn ends in one of few ways, and the client has got exactly what that end reports."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from dragoman.config.settings import ServerSettings
from dragoman.proxy import pump, turn, upstream
from dragoman.proxy.complete_reply import CutCalls
from dragoman.proxy.prepared import Passthrough, Translated
from dragoman.proxy.replies.passed import PassedDocument
from dragoman.proxy.step import Completed, Interrupted, NoReply
from dragoman.state.lost_calls import LostCall, LostCalls, digest_conversation
from dragoman.translate.hub.events import TruncatedCall
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.protocols.messages.parse import parse
from dragoman.upstreams.provider import ReplyRules
from fakes.kiro import make_framed, tail, tool, words
from fakes.upstream import Answer, End, FakeUpstream
from narrowing import expect, present
from outgoing import open_http
from proxy.in_memory import MESSAGES, make_renewing, run
from proxy.rigs import BEGUN, ERROR, HALF, STOPPED, STREAM, WHOLE, Scene, document, play, play_with, refusal, run_turn
from tables import each_row
from waiting import wait_until

HURRIED = ServerSettings(first_token_timeout_s=0.2, idle_timeout_s=0.2)
PASSES = Scene("chat")
TRANSLATED = Scene("messages")
WHOLE_PASSES = Scene("chat", stream=False)
WHOLE_TRANSLATED = Scene("messages", stream=False)
KIRO, PLAIN = ReplyRules(withholds_cut_calls=True), ReplyRules()


def server_for(answer: Answer) -> ServerSettings:
    """Use a short timeout only after the first token, so that a slow machine does not matter."""
    return ServerSettings(idle_timeout_s=0.6) if answer.end is End.HANG else ServerSettings()


def with_server(scene: Scene, server: ServerSettings) -> Scene:
    return replace(scene, server=server)


# Streams


def test_a_stream_of_the_same_protocol_passes_to_the_byte() -> None:
    played = play(PASSES, Answer(STREAM, cut=11))
    assert played.end == Completed()
    assert isinstance(played.turn.prepared, Passthrough)
    assert (played.reply.body, played.reply.complete) == (STREAM, True)
    assert played.first_tokens == 1


def test_a_stream_of_another_protocol_is_translated() -> None:
    played = play(TRANSLATED, Answer(STREAM, cut=11))
    assert played.end == Completed()
    assert isinstance(played.turn.prepared, Translated)
    assert b'"text":"Half"' in played.reply.body
    assert played.reply.body.count(b"event: message_stop\n") == 1
    assert played.reply.complete
    assert played.first_tokens == 1


STREAMS, WHOLES = (PASSES, TRANSLATED), (WHOLE_PASSES, WHOLE_TRANSLATED)


@each_row(
    ("scenes", "answer", "kind"),
    [
        ((*STREAMS, *WHOLES), refusal(429, retry_after="7"), Kind.RATE_LIMITED),
        ((*STREAMS, *WHOLES), refusal(400), Kind.BAD_REQUEST),
        ((*STREAMS, *WHOLES), Answer(b"", status=307, headers=(("location", "/v2"),)), Kind.UPSTREAM),
        ((*STREAMS, *WHOLES), Answer(headless=True, end=End.RESET), Kind.LOST),
        ((*STREAMS, *WHOLES), Answer(b"", end=End.CUT), Kind.LOST),
        ((*STREAMS, *WHOLES), Answer(b"<html>Bad gateway</html>", content_type="text/html"), Kind.CORRUPT),
        ((*STREAMS, *WHOLES), document(ERROR.removeprefix(b"data: ")), Kind.OVERLOADED),
        (STREAMS, Answer(ERROR), Kind.OVERLOADED),
        (STREAMS, Answer(BEGUN + ERROR), Kind.OVERLOADED),
        (STREAMS, Answer(b""), Kind.TRUNCATED),
        (STREAMS, Answer(BEGUN), Kind.TRUNCATED),
        (STREAMS, Answer(BEGUN, end=End.CUT), Kind.LOST),
        (STREAMS, Answer(b"data: {nonsense\n\n"), Kind.CORRUPT),
        # a whole reply is all or nothing
        (WHOLES, Answer(WHOLE[:50], content_type="application/json", end=End.CUT), Kind.LOST),
        (WHOLES, document(b""), Kind.CORRUPT),
        (WHOLES, Answer(HALF), Kind.TRUNCATED),
        (WHOLES, Answer(HALF + ERROR), Kind.OVERLOADED),
        (WHOLES, Answer(WHOLE[:50], content_type="application/json", end=End.HANG), Kind.TIMEOUT),
    ],
)
def test_a_turn_that_fails_before_its_first_token_has_written_nothing(
    scenes: tuple[Scene, ...], answer: Answer, kind: Kind
) -> None:
    for scene in scenes:
        played = play(with_server(scene, server_for(answer)), answer)
        assert expect(NoReply, played.end).failure.kind is kind, scene
        assert (played.wire.writes, played.first_tokens) == ([], 0), scene


@pytest.mark.parametrize("scene", [PASSES, TRANSLATED, WHOLE_PASSES, WHOLE_TRANSLATED])
@pytest.mark.parametrize(
    "answer",
    [Answer(headless=True, end=End.HANG), Answer(b"", end=End.HANG)],
    ids=["no head", "a head and nothing more"],
)
def test_no_data_before_the_first_token_is_a_timeout(scene: Scene, answer: Answer) -> None:
    played = play(with_server(scene, HURRIED), answer)
    assert expect(NoReply, played.end).failure.kind is Kind.TIMEOUT
    assert played.wire.writes == []


@pytest.mark.parametrize("scene", [PASSES, TRANSLATED])
def test_signs_of_life_without_a_token_are_not_waited_for_without_end(scene: Scene) -> None:
    alive = Answer(b"", signs=100, sign_pause_s=0.05, end=End.HANG)
    played = play(with_server(scene, ServerSettings(first_token_timeout_s=30, token_timeout_s=0.5)), alive)
    assert "token_timeout_s" in expect(NoReply, played.end).failure.message


def test_an_error_in_the_clients_own_protocol_is_kept() -> None:
    played = play(PASSES, refusal(400, "odd"))
    assert present(expect(NoReply, played.end).error_reply).body == refusal(400, "odd").body


@pytest.mark.parametrize(
    ("answer", "kind", "appended"),
    [
        (Answer(HALF + ERROR), Kind.OVERLOADED, False),  # the upstream has sent the error itself
        (Answer(HALF), Kind.TRUNCATED, True),
        (Answer(HALF, end=End.CUT), Kind.LOST, True),
        (Answer(HALF, end=End.HANG), Kind.TIMEOUT, True),
    ],
    ids=["an error event", "no end", "cut", "silence"],
)
def test_a_stream_that_passes_and_breaks_off_ends_with_an_error_event(
    answer: Answer, kind: Kind, appended: bool
) -> None:
    played = play(with_server(PASSES, server_for(answer)), answer)
    assert present(expect(Completed, played.end).failure).kind is kind
    assert played.reply.body.startswith(answer.body)
    rest = played.reply.body[len(answer.body) :]
    assert (b'"error"' in rest) is appended
    assert b"[DONE]" not in played.reply.body


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(HALF + ERROR), Kind.OVERLOADED),
        (Answer(HALF), Kind.TRUNCATED),
        (Answer(HALF, end=End.CUT), Kind.LOST),
        (Answer(HALF, end=End.HANG), Kind.TIMEOUT),
    ],
    ids=["an error event", "no end", "cut", "silence"],
)
def test_a_translated_stream_that_breaks_off_can_be_continued_where_turns_may_be_joined(
    answer: Answer, kind: Kind, joins: bool
) -> None:
    played = play(Scene("messages", joins=joins, server=server_for(answer)), answer)
    assert isinstance(played.end, Interrupted)
    assert played.end.failure.kind is kind
    assert played.end.text == ("Half a" if joins else None)
    assert played.reply.body.count(b"event: error\n") == 1
    assert b"message_stop" not in played.reply.body


@pytest.mark.parametrize("end", [End.CUT, End.CLEAN])
def test_a_reply_whose_model_has_stopped_is_not_continued(end: End) -> None:
    played = play(Scene("messages", joins=True), Answer(STOPPED, end=end))
    if isinstance(played.end, Interrupted):
        assert played.end.text is None
    else:
        assert played.end == Completed()
        assert b"message_stop" in played.reply.body


def test_the_usage_of_a_turn_that_broke_off_is_kept_for_the_sum() -> None:
    played = play(Scene("messages", joins=True), Answer(HALF, end=End.CUT))
    played.writer.encoding.accept_continuation(Ledger())
    assert present(played.writer.encoding.used_before).output > 0


def test_an_upstream_that_does_not_end_after_its_last_event_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "LINGER_S", 0.05)
    monkeypatch.setattr(turn, "LINGER_S", 0.05)
    at_once = Answer(STREAM, end=End.HANG)
    for scene in (PASSES, TRANSLATED):
        for pace in (at_once, replace(at_once, cut=len(HALF), pause_s=0.05)):
            played = play(scene, pace)
            assert played.end == Completed()
            assert played.reply.complete


# The shape of an answer


def test_a_document_for_a_client_that_requests_a_stream_is_sent_as_one() -> None:
    for scene, last in ((PASSES, b"data: [DONE]\n\n"), (TRANSLATED, b'{"type":"message_stop"}\n\n')):
        for answer in (document(WHOLE), Answer(WHOLE)):
            played = play(scene, answer)
            assert played.end == Completed()
            assert b"Half a loaf" in played.reply.body
            assert played.reply.body.endswith(last)


def test_events_under_the_name_of_a_document_are_events() -> None:
    played = play(PASSES, document(STREAM))
    assert played.end == Completed()
    assert played.reply.body == STREAM
    assert played.reply.headers.get(b"content-type") == b"text/event-stream; charset=utf-8"


def test_a_document_of_the_same_protocol_passes_to_the_byte() -> None:
    odd = b"  " + WHOLE + b"\n"
    played = play(WHOLE_PASSES, document(odd))
    assert played.end == Completed()
    assert played.reply.body == odd
    assert present(expect(PassedDocument, played.turn.reply).usage).input == 7
    assert played.first_tokens == 1


def test_a_document_of_another_protocol_is_translated() -> None:
    played = play(WHOLE_TRANSLATED, document(WHOLE))
    assert played.end == Completed()
    assert msgspec.json.decode(played.reply.body)["content"][0]["text"] == "Half a loaf"
    assert played.first_tokens == 1


@pytest.mark.parametrize("scene", [WHOLE_PASSES, WHOLE_TRANSLATED])
def test_a_stream_for_a_client_that_wants_a_document_is_folded(scene: Scene) -> None:
    for answer in (Answer(STREAM), document(STREAM)):
        played = play(scene, answer)
        assert played.end == Completed()
        assert b"Half a loaf" in played.reply.body
        assert msgspec.json.decode(played.reply.body)["id"]


# Upstreams that stream whatever the request says, and withhold calls that are cut

CUT = make_framed(words("I will write it."), tool("t1", "write", input='{"path": "notes/to'))


@pytest.mark.parametrize("stream", [True, False])
def test_a_cut_call_is_the_end_of_its_turn_and_is_not_written(stream: bool) -> None:
    played = play(Scene("messages", stream, "kiro", replies=KIRO), CUT)
    assert isinstance(played.end, CutCalls)
    assert played.end.calls == (TruncatedCall("t1", "write", '{"path": "notes/to'),)
    assert played.end.prepared is played.turn.prepared
    assert b"notes/to" not in played.wire.written
    assert played.first_tokens == 1


def test_a_reply_that_always_streams_is_folded_for_a_client_that_wants_a_document() -> None:
    played = play(
        Scene("messages", False, "kiro", replies=KIRO), make_framed(words("Half a "), words("loaf"), tail(), cut=9)
    )
    assert played.end == Completed()
    assert msgspec.json.decode(played.reply.body)["content"][0]["text"] == "Half a loaf"


@pytest.mark.parametrize("stream", [True, False])
def test_a_cut_inside_a_frame_is_an_interruption_only_where_something_was_written(stream: bool) -> None:
    broken = Answer((words("Half a ") + words("loaf"))[:-9], content_type="application/vnd.amazon.eventstream")
    played = play(Scene("messages", stream, "kiro", replies=KIRO), broken)
    assert isinstance(played.end, Interrupted if stream else NoReply)
    assert bool(played.wire.writes) is stream


def test_a_reply_that_is_collected_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "MAX_REPLY_BYTES", 2000)
    long = make_framed(*(words("x" * 100) for _ in range(50)), tail(), cut=500)
    played = play(Scene("messages", False, "kiro", replies=KIRO), long)
    assert expect(NoReply, played.end).failure.kind is Kind.UPSTREAM
    assert played.wire.writes == []


def test_a_reply_for_which_there_is_no_room_is_refused_for_a_while() -> None:
    long = make_framed(*(words("x" * 1000) for _ in range(200)), tail())
    played = play(Scene("messages", False, "kiro", replies=KIRO, budget=1000), long)
    assert expect(NoReply, played.end).failure.kind is Kind.BUSY


# Before the request is sent


@pytest.mark.parametrize("renewed", [True, False])
def test_a_credential_is_renewed_before_the_request_or_its_failure_stays(renewed: bool) -> None:
    async def renew() -> bool:
        return renewed

    refused = Failure(Kind.CREDENTIAL, "expired")
    played = play(Scene(renew_after=refused, auth=make_renewing(renew)), Answer(STREAM))
    assert played.end == (Completed() if renewed else NoReply(refused))
    assert len(played.requests) == (1 if renewed else 0)


def test_a_request_that_cannot_be_built_is_not_sent() -> None:
    body = MESSAGES.replace(b'"model"', b'"top_k":5,"model"')
    played = play(Scene("messages", body=body, headers=[(b"x-dragoman-strict", b"1")]), Answer(STREAM))
    assert expect(NoReply, played.end).failure.code == "translation_loss"
    assert played.requests == []


def test_the_next_request_names_what_the_last_reply_lost() -> None:
    memory, lost = LostCalls(None), (LostCall("write", '{"path": "notes/to'),)
    run(memory.remember("t", digest_conversation(parse(MESSAGES, Ledger()))[0], lost))
    request = msgspec.json.decode(MESSAGES)
    request["messages"] += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": "And?"}]
    body = msgspec.json.encode(request)
    for replies, is_noted in ((KIRO, True), (PLAIN, False)):
        scene = Scene("messages", False, "kiro", body=body, memory=memory, replies=replies)
        played = play(scene, make_framed(words("Again."), tail()))
        assert (b"was not executed" in played.requests[0].body.replace(b"\\n", b" ")) is is_noted


async def test_the_connection_of_a_finished_reply_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the body follows the last event, and must be read for it."""
    monkeypatch.setattr(turn, "LINGER_S", 20.0)

    class Counting(FakeUpstream):
        connections = 0

        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            await super()._serve(reader, writer)

    with Counting([Answer(STREAM, cut=len(HALF), linger_s=0.05)]) as fake:
        async with open_http() as client:
            for _ in range(2):
                assert (await run_turn(TRANSLATED, fake, client)).end == Completed()
        assert fake.connections == 1


def test_the_upstream_of_a_closed_turn_is_closed() -> None:
    with FakeUpstream([Answer(HALF, end=End.HANG)]) as fake:
        played = play_with(with_server(TRANSLATED, ServerSettings(idle_timeout_s=1.0)), fake)
        assert isinstance(played.end, Interrupted)
        wait_until(lambda: bool(fake.closed))
