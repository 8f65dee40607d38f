"""A request to one of the other paths: which provider serves it, and how its reply is held and passed on unchanged."""

import asyncio
from collections.abc import Sequence

import pytest

from dragoman.config.settings import ModelRoute, Retry, Server
from dragoman.flow.prepare import Passthrough
from dragoman.flow.relay import HELD_BYTES, RelayedCall, RelayedReply, relay
from dragoman.flow.reply_bounds import ReplyDeadline, Timeouts
from dragoman.flow.request_record import RequestRecord
from dragoman.flow.step import Completed, NoReply, TurnEnd
from dragoman.hub.failure import Kind, RequestError
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.protocols.relayed_paths import PROTOCOL, RELAYED_PATHS, UPSTREAM
from dragoman.providers.provider import Endpoint, UnsignedRequest
from dragoman.routing import Route
from fakes.upstream import Answer, End, FakeUpstream
from flow.in_memory import MemoryWire, Sender, make_provider, make_request, make_sink, make_world, run
from narrowing import expect, present
from outgoing import open_http

BODY = b'{"model": "up/m",  "input": "Hi"}'
VECTOR = b'{"object":"list",  "data":[],"model":"m-1","usage":{"prompt_tokens":2,"total_tokens":2}}'
JSON, EVENTS = "application/json", "text/event-stream"
ONCE = Retry(attempts=1)
PATHS = ("embeddings", "completions")
JSON = "application/json"
SECRET = b"sk-0123456789abcdef"


def ask(
    fake: FakeUpstream, body: bytes = BODY, path: str = "embeddings", relays: Sequence[str] = PATHS
) -> tuple[MemoryWire, RequestRecord]:
    async def scene() -> tuple[MemoryWire, RequestRecord]:
        async with open_http() as client:
            wire = MemoryWire()
            provider = make_provider(endpoint=Endpoint(fake.url, ("chat",), client.send, relays=frozenset(relays)))
            request = make_request(f"/v1/{path}", [(b"openai-organization", b"other")])
            record = RequestRecord("log", path, request.headers)
            call = RelayedCall(RELAYED_PATHS[path], request, Sender(), record)
            world = make_world(provider, retry=ONCE, server=Server(), models=(ModelRoute("up/*", ("up/*",)),))
            call.take_body(body)
            await call.choose_routes(world)
            await relay(call, make_sink(wire))
        record.end()
        return wire, record

    return run(scene())


def test_a_document_passes_both_ways_with_the_upstreams_name_of_the_model() -> None:
    with FakeUpstream([Answer(VECTOR, content_type=JSON)]) as fake:
        wire, record = ask(fake)
    [request] = fake.calls
    assert (request.path, request.body) == ("/v1/embeddings", BODY.replace(b"up/m", b"m"))
    assert "openai-organization" not in request.headers, "only the owner chooses who pays"
    assert (wire.reply.status, wire.reply.body) == (200, VECTOR)
    assert (wire.reply.headers.get(b"x-request-id"), wire.reply.headers.get(b"x-dragoman-route")) == (b"req_1", b"up/m")
    outcome = record.outcome()
    assert (outcome.requested_model, present(outcome.usage).input, outcome.outcome) == ("up/m", 2, "ok")


def test_a_stream_passes_as_it_comes() -> None:
    stream = b'data: {"choices":[{"text":"Hi"}]}\n\ndata: [DONE]\n\n'
    with FakeUpstream([Answer(stream, content_type=EVENTS, cut=7)]) as fake:
        wire, record = ask(fake, BODY.replace(b'"input"', b'"stream":true,"prompt"'), "completions")
    assert (wire.reply.body, wire.reply.complete) == (stream, True)
    assert record.outcome().stream


def test_a_stream_that_breaks_off_ends_with_the_error_event() -> None:
    stream = b'data: {"choices":[{"text":"Hi"}]}\n\n'
    with FakeUpstream([Answer(stream, content_type=EVENTS, end=End.CUT)]) as fake:
        wire, record = ask(fake, BODY.replace(b'"input"', b'"stream":true,"prompt"'), "completions")
    assert wire.reply.body.startswith(stream)
    assert b'"error"' in wire.reply.body.removeprefix(stream)
    assert record.outcome().outcome == Kind.LOST.value


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(b"", content_type=JSON), Kind.TRUNCATED),
        (Answer(b'{"error":{"message":"slow down"}}', status=429, content_type=JSON), Kind.RATE_LIMITED),
        (Answer(b"", headless=True, end=End.CUT), Kind.LOST),
    ],
)
def test_a_failure_before_the_first_byte_is_raised(answer: Answer, kind: Kind) -> None:
    with FakeUpstream([answer]) as fake, pytest.raises(RequestError) as refused:
        ask(fake)
    assert refused.value.failure.kind is kind


def test_a_path_that_no_provider_opts_into_is_refused_with_the_setting_that_allows_it() -> None:
    with FakeUpstream([]) as fake, pytest.raises(RequestError, match='paths = \\["embeddings"\\]') as refused:
        ask(fake, relays=())
    assert (refused.value.failure.kind, refused.value.failure.code) == (Kind.NOT_FOUND, "path_not_served")
    assert not fake.calls


class Passed:
    """One reply, after it was passed on to a client in memory."""

    def __init__(self, answer: Answer) -> None:
        self.wire, self.accepted = MemoryWire(), 0
        with FakeUpstream([answer]) as fake:
            self.end = run(self._pass(fake))

    async def _pass(self, fake: FakeUpstream) -> TurnEnd:
        async with open_http() as client:
            unsigned = UnsignedRequest(PROTOCOL.name, "POST", f"{fake.url}/embeddings", (), body=b"{}")
            out = unsigned.add_credentials(())
            prepared = Passthrough(
                route=Route("up", "m"),
                provider=make_provider(),
                protocol=PROTOCOL,
                upstream=UPSTREAM,
                unsigned=unsigned,
                out=out,
                options=None,
                secrets=(SECRET,),
                owner=False,
            )
            response = await client.send(out, head_timeout_s=20)
            self.watch = ReplyMonitor(lambda: 0.0)
            path = RELAYED_PATHS["embeddings"]
            reply = RelayedReply(path, make_sink(self.wire), prepared, response, self.watch, "req_1")
            now = asyncio.get_running_loop().time()
            return await reply.pass_on(ReplyDeadline("up", Timeouts(20, 20, 20), now), self._accept)

    def _accept(self, reply: RelayedReply) -> None:
        self.accepted += 1


def test_a_short_document_is_one_write_without_the_gateways_secret() -> None:
    passed = Passed(Answer(b'{"echoed":"' + SECRET + b'"}', content_type=JSON, cut=5))
    assert passed.end == Completed()
    assert (passed.accepted, len(passed.wire.writes)) == (1, 1)
    assert SECRET not in passed.wire.written


def test_a_long_document_is_passed_on_before_it_has_come_to_its_end() -> None:
    body = b'{"data":"' + b"x" * (2 * HELD_BYTES) + b'"}'
    passed = Passed(Answer(body, content_type=JSON))
    assert passed.end == Completed()
    assert (passed.wire.reply.body, passed.accepted) == (body, 1)
    assert len(passed.wire.writes) > 2


def test_a_document_that_breaks_off_while_it_is_held_is_no_reply() -> None:
    passed = Passed(Answer(b'{"data":[', content_type=JSON, end=End.CUT))
    assert (expect(NoReply, passed.end).failure.kind, passed.accepted, passed.wire.written) == (Kind.LOST, 0, b"")


def test_a_long_document_that_breaks_off_ends_with_the_connection() -> None:
    passed = Passed(Answer(b'{"data":"' + b"x" * (2 * HELD_BYTES), content_type=JSON, end=End.CUT))
    assert isinstance(passed.end, Completed)
    assert passed.wire.dropped
    assert present(passed.watch.failure).kind is Kind.LOST


def test_a_stream_whose_first_event_is_an_error_is_no_reply() -> None:
    passed = Passed(Answer(b'data: {"error":{"message":"no","code":"server_error"}}\n\n'))
    assert isinstance(passed.end, NoReply)
    assert passed.accepted == 0
