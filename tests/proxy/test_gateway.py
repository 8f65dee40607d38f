"""The loop over upstream turns: each step of the policy is taken, and the client reads one reply."""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.config.settings import ServerSettings
from dragoman.proxy.failures import AllTargetsFailed
from dragoman.proxy.outcome import FailedAttempt
from dragoman.translate.hub.events import Delta, Event
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.usage import Usage
from dragoman.upstreams.provider import ReplyRules
from fakes.kiro import make_framed, tail, tool, words
from fakes.upstream import Answer, End, FakeUpstream, ReceivedRequest
from narrowing import present
from proxy.in_memory import CHAT, CHAT_STREAM, MESSAGES, MESSAGES_STREAM, make_renewing, make_world
from proxy.rigs import AT_ONCE, BODIES, HALF, STREAM, WHOLE, GatewayRig, chunk, document, refusal
from waiting import wait_until_async


async def test_a_call_is_answered_in_one_turn() -> None:
    async with GatewayRig([Answer(STREAM)]) as rig:
        client = rig.make_call("chat", CHAT_STREAM)
        assert (await client.answer()).body == STREAM
        outcome = client.outcome()
        assert (outcome.outcome, outcome.route, outcome.failed_attempts) == ("ok", "one/m", ())
        assert (rig.gateway.answered, rig.gateway.guard_trips, rig.gateway.streams) == (1, 0, 0)
        whole = rig.make_call("chat", CHAT)
        rig.one.answers = [document(WHOLE)]
        assert (await whole.answer()).body == WHOLE


async def test_a_target_is_retried_and_then_the_next_one_is_tried() -> None:
    async with GatewayRig([refusal(503)], [Answer(STREAM)]) as rig:
        client = rig.make_call("messages", MESSAGES_STREAM)
        reply = await client.answer()
        assert b"message_stop" in reply.body
        assert reply.headers.get(b"x-dragoman-route") == b"two/m"
        overloaded = FailedAttempt("one/m", "overloaded")
        assert client.outcome().failed_attempts == (overloaded, overloaded)
        assert (len(rig.one.calls), len(rig.two.calls)) == (2, 1)


@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM])
async def test_if_no_target_answers_the_last_refusal_is_raised_with_its_own_body(body: bytes) -> None:
    async with GatewayRig([refusal(400, "odd")]) as rig:
        client = rig.make_call("chat", body)
        with pytest.raises(AllTargetsFailed) as refused:
            await client.answer()
        assert refused.value.failure.kind is Kind.BAD_REQUEST
        assert present(refused.value.error_reply).body == refusal(400, "odd").body
        assert client.wire.writes == []
        assert len(rig.one.calls) == 1


async def test_once_the_head_is_out_the_failure_is_an_event() -> None:
    hurried = ServerSettings(keep_alive_s=0.05, first_token_timeout_s=1.0)
    async with GatewayRig([Answer(headless=True, end=End.HANG)], server=hurried) as rig:
        client = rig.make_call("messages", MESSAGES_STREAM)
        reply = await client.answer()
        assert (reply.status, reply.complete) == (200, True)
        assert reply.body.startswith(b"event: ping\n")
        assert reply.body.count(b"event: error\n") == 1
        assert client.outcome().outcome == "timeout"


async def test_a_refused_credential_is_renewed_and_its_refusal_noted_once() -> None:
    renewals: list[bool] = []

    async def renew() -> bool:
        renewals.append(len(renewals) == 0)
        return renewals[-1]

    async with GatewayRig([refusal(401), Answer(STREAM), refusal(401)], auth=make_renewing(renew)) as rig:
        assert (await rig.make_call("chat", CHAT_STREAM).answer()).body == STREAM
        client = rig.make_call("chat", CHAT_STREAM)
        with pytest.raises(RequestError) as refused:
            await client.answer()
        assert refused.value.failure.kind is Kind.CREDENTIAL
        assert client.outcome().failed_attempts == (FailedAttempt("one/m", "credential"),)
        assert len(rig.one.calls) == 3
        assert renewals == [True, False]


# A reply that another upstream continues

CONTINUES = replace(AT_ONCE, continue_streams=True)


def make_continuation(request: ReceivedRequest) -> Answer:
    """Write the marker that the request asks for, and then the rest of the reply."""
    text = str(request.json["messages"][-1]["content"])
    marker = text[text.index("[[continue:") : text.index("]]") + 2]
    return Answer(chunk({"role": "assistant", "content": f"{marker} loaf"}) + chunk({}, "stop") + b"data: [DONE]\n\n")


@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_another_upstream_continues_the_reply(protocol: str) -> None:
    async with GatewayRig([Answer(HALF, end=End.CUT)], FakeUpstream(choose=make_continuation), retry=CONTINUES) as rig:
        client = rig.make_call(protocol, BODIES[protocol][True])
        reply = await client.answer()
        assert b" loaf" in reply.body
        assert b"continue:" not in reply.body
        assert b"error" not in reply.body
        assert reply.headers.get(b"x-dragoman-route") == b"one/m"
        assert reply.trailers == [(b"x-dragoman-route", b"one/m, two/m")]
        outcome = client.outcome()
        assert (outcome.outcome, outcome.route) == ("ok", "two/m")
        assert outcome.failed_attempts == (FailedAttempt("one/m", "lost"),)
        assert outcome.usage is not None
        assert rig.gateway.guard_trips == 0


async def test_if_no_target_continues_the_client_gets_the_first_failure() -> None:
    async with GatewayRig([Answer(HALF, end=End.CUT)], [refusal(400)], retry=CONTINUES) as rig:
        client = rig.make_call("messages", MESSAGES_STREAM)
        reply = await client.answer()
        assert reply.body.count(b"event: error\n") == 1
        assert b"one" in reply.body.partition(b"event: error\n")[2]
        assert client.outcome().outcome == "lost"
        assert len(rig.two.calls) == 1


async def test_a_stream_is_not_continued_unless_the_configuration_says_so() -> None:
    async with GatewayRig([Answer(HALF, end=End.CUT)], FakeUpstream(choose=make_continuation)) as rig:
        assert b"event: error\n" in (await rig.make_call("messages", MESSAGES_STREAM).answer()).body
        assert rig.two.calls == []


# A tool call that was cut

WRITE = {
    "name": "write",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
CUT = make_framed(words("I write."), tool("t1", "write", input='{"path": "notes/to'))
KIRO = ReplyRules(withholds_cut_calls=True, completes_cut_calls=True)
KIRO_AS_IT_IS = ReplyRules(withholds_cut_calls=True)


def request_body(stream: bool) -> bytes:
    body = msgspec.json.decode(MESSAGES)
    return msgspec.json.encode({**body, "stream": stream, "tools": [WRITE]})


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_call_is_completed_and_its_usage_summed(stream: bool) -> None:
    metered = make_framed(words("I write."), tool("t1", "write", input='{"path": "notes/to'), tail("MAX_TOKENS"))
    rest = make_framed(words('day.md"}'), tail())
    async with GatewayRig([metered, rest], speaks="kiro", replies=KIRO) as rig:
        client = rig.make_call("messages", request_body(stream))
        reply = await client.answer()
        assert len(rig.one.calls) == 2
        assert b"tool_use" in reply.body
        assert b"max_tokens" not in reply.body
        if not stream:
            assert msgspec.json.decode(reply.body)["content"][1]["input"] == {"path": "notes/today.md"}
        assert present(client.outcome().usage).credits == pytest.approx(0.02)
        assert rig.gateway.guard_trips == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_stays_cut_ends_the_reply_and_the_next_request_notes_it(stream: bool) -> None:
    async with GatewayRig(
        [CUT, make_framed(words("Sorry."), tail()), make_framed(words("Again."), tail())], speaks="kiro", replies=KIRO
    ) as rig:
        reply = await rig.make_call("messages", request_body(stream)).answer()
        assert b"max_tokens" in reply.body
        assert b'"tool_use"' not in reply.body
        assert len(rig.one.calls) == 2
        await rig.make_call("messages", request_body(stream)).answer()
        assert b"was not executed" in rig.one.calls[2].body.replace(b"\\n", b" ")


async def test_a_provider_that_does_not_repair_gets_no_request_for_the_rest() -> None:
    async with GatewayRig([CUT], speaks="kiro", replies=KIRO_AS_IT_IS) as rig:
        assert b"max_tokens" in (await rig.make_call("messages", request_body(True)).answer()).body
        assert len(rig.one.calls) == 1


# The checks in front of every reply


class Misbehaving:
    """A stage with a bug: a delta of a block that was never opened."""

    def feed(self, event: Event) -> Sequence[Event]:
        return (Delta(99, event.text),) if isinstance(event, Delta) else (event,)

    def finish(self) -> Sequence[Event]:
        return ()


async def test_the_grammar_guard_stands_in_front_of_streams_and_of_whole_replies() -> None:
    async with GatewayRig([Answer(STREAM)], replies=ReplyRules(stages=lambda request: [Misbehaving()])) as rig:
        reply = await rig.make_call("messages", MESSAGES_STREAM).answer()
        assert reply.body.count(b"event: error\n") == 1
        assert rig.gateway.guard_trips == 1
        with pytest.raises(RequestError):
            await rig.make_call("messages", MESSAGES).answer()
        assert rig.gateway.guard_trips == 2


async def test_a_call_that_cannot_be_run_fails_in_streams_and_in_whole_replies() -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "write", "arguments": "{oh"}}
    stream = chunk({"role": "assistant", "tool_calls": [call]}) + chunk({}, "tool_calls") + b"data: [DONE]\n\n"
    body = msgspec.json.decode(WHOLE)
    message = {"role": "assistant", "tool_calls": [call]}
    body["choices"] = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    async with GatewayRig([Answer(stream), document(msgspec.json.encode(body))]) as rig:
        reply = await rig.make_call("messages", request_body(True)).answer()
        assert reply.body.count(b"event: error\n") == 1
        with pytest.raises(RequestError) as refused:
            await rig.make_call("messages", request_body(False)).answer()
        assert refused.value.failure.kind is Kind.CORRUPT


# Interruptions from outside


@pytest.mark.parametrize("protocol", ["chat", "messages"])
@pytest.mark.parametrize("gone", [False, True])
async def test_a_gateway_that_stops_sends_an_error_to_a_client_that_is_still_there(protocol: str, gone: bool) -> None:
    async with GatewayRig([Answer(HALF, end=End.HANG)]) as rig:
        client = rig.make_call(protocol, BODIES[protocol][True])
        answering = asyncio.create_task(client.answer())
        await wait_until_async(lambda: b"Half" in client.wire.written)
        assert rig.gateway.streams == 1
        client.sink.reader_gone = gone
        written = client.wire.written
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
        assert answering.cancelled()
        assert rig.gateway.streams == 0
        assert (client.wire.written == written) is gone
        assert gone or b"shutting down" in client.wire.reply.body
        await wait_until_async(lambda: bool(rig.one.closed))


async def test_a_call_that_is_cancelled_with_a_failure_ends_with_that_failure() -> None:
    async with GatewayRig([Answer(HALF, end=End.HANG)]) as rig:
        client = rig.make_call("messages", MESSAGES_STREAM)
        answering = asyncio.create_task(client.answer())
        await wait_until_async(lambda: b"Half" in client.wire.written)
        answering.cancel(Failure(Kind.QUOTA, "The budget of this key is spent."))
        with suppress(asyncio.CancelledError):
            await answering
        assert b"The budget of this key is spent." in client.wire.reply.body


async def test_a_client_that_leaves_before_the_first_token_is_noted() -> None:
    async with GatewayRig([Answer(headless=True, end=End.HANG)]) as rig:
        client = rig.make_call("chat", CHAT)
        answering = asyncio.create_task(client.answer())
        await wait_until_async(lambda: bool(rig.one.calls))
        client.sink.reader_gone = True
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
        assert client.wire.writes == []
        assert client.outcome().failed_attempts == (FailedAttempt("one/m", "client_gone"),)


async def test_a_new_configuration_holds_from_the_next_call_on() -> None:
    async with GatewayRig([Answer(STREAM)]) as rig:
        assert (await rig.make_call("chat", CHAT_STREAM).answer()).body == STREAM
        rig.gateway.runtime = make_world()
        with pytest.raises(RequestError) as refused:
            await rig.make_call("chat", CHAT_STREAM).answer()
        assert refused.value.failure.kind is Kind.NOT_FOUND


async def test_a_conversation_stays_with_its_credential() -> None:
    async with GatewayRig([Answer(STREAM)], credentials=3) as rig:
        pool = rig.gateway.runtime.providers["one"].account.pool
        assert pool is not None
        header = [(b"session-id", b"s-1")]
        for _ in range(4):
            await rig.make_call("chat", CHAT_STREAM, header).answer()
        homes = {pool.last_member("t\0s-1"), pool.last_member("t\0response chatcmpl-1")}
        assert len(homes) == 1
        assert None not in homes


async def test_the_outcome_has_the_usage() -> None:
    async with GatewayRig([document(WHOLE)]) as rig:
        client = rig.make_call("messages", MESSAGES)
        await client.answer()
        assert client.outcome().usage == Usage(input=7, output=3)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("client", "why"),
    [("chat", b"passed; the upstream speaks chat"), ("messages", b"translated; the provider speaks chat only")],
)
async def test_a_client_that_asks_for_it_gets_the_reason(client: str, stream: bool, why: bytes) -> None:
    async with GatewayRig([Answer(STREAM) if stream else document(WHOLE)]) as rig:
        for headers, shown in (([(b"x-dragoman-explain", b"1")], why), ([], None)):
            reply = await rig.make_call(client, BODIES[client][stream], headers).answer()
            assert reply.headers.get(b"x-dragoman-why") == shown


async def test_a_document_for_a_client_that_reads_a_stream_is_the_reason_for_a_translation() -> None:
    async with GatewayRig([document(WHOLE)]) as rig:
        reply = await rig.make_call("chat", CHAT_STREAM, [(b"x-dragoman-explain", b"1")]).answer()
        assert reply.headers.get(b"x-dragoman-why") == b"translated; the upstream answered with a document"


UUID = "[0-9a-f]{8}-[0-9a-f-]{27}"


@pytest.mark.parametrize(
    ("protocol", "body", "session"),
    [
        ("messages", MESSAGES_STREAM, UUID),  # translated: derived from how it begins
        ("responses", b'{"model":"m","input":"Go on.","prompt_cache_key":"k7","stream":true}', "k7"),
        ("chat", CHAT_STREAM, ""),  # passed, and not parsed
    ],
)
async def test_the_outcome_names_the_session(protocol: str, body: bytes, session: str) -> None:
    async with GatewayRig([Answer(STREAM)]) as rig:
        unnamed = rig.make_call(protocol, body)
        named = rig.make_call(protocol, body, [(b"x-claude-code-session-id", b"s1")])
        for client in (unnamed, named):
            assert (await client.answer()).status == 200
        assert named.outcome().origin.session == "s1"
        assert re.fullmatch(session, unnamed.outcome().origin.session)
