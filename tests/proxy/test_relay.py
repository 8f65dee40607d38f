"""A request to one of the other paths passes in the loop of all calls, with the upstream's name of its model."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from dragoman.config.settings import ModelRoute, Retry, ServerSettings
from dragoman.net.headers import Header
from dragoman.net.socket_sink import SocketSink
from dragoman.proxy.outcome import Outcome
from dragoman.proxy.relay import RelayedCall
from dragoman.proxy.runtime import Runtime
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.provider import Adjustment, Endpoint, RequestRules
from fakes.upstream import Answer, End, FakeUpstream
from narrowing import present
from outgoing import open_http
from proxy.in_memory import MemoryWire, make_provider, make_sink, make_world
from proxy.relayed import answer_relayed, new_relayed_call
from proxy.rigs import document
from proxy.test_form_upload import FORM, TYPE
from waiting import wait_until_async

BODY = b'{"model": "up/m",  "input": "Hi"}'
STREAMED = b'{"model": "up/m",  "stream":true, "prompt": "Hi"}'
VECTOR = b'{"object":"list",  "data":[],"model":"m-1","usage":{"prompt_tokens":2,"total_tokens":2}}'
WORD = b'data: {"choices":[{"text":"Hi"}]}\n\n'
PATHS = ("embeddings", "completions", "audio/transcriptions")
EVERYTHING = (ModelRoute("up/*", ("up/*",)),)


@dataclass
class RelayRig:
    """One provider that serves the paths, its upstream, and a client in memory."""

    fake: FakeUpstream
    world: Runtime
    wire: MemoryWire
    sink: SocketSink
    call: RelayedCall | None = None

    async def ask(self, body: bytes = BODY, path: str = "embeddings", headers: Sequence[Header] = ()) -> None:
        self.call = new_relayed_call(path, body, headers)
        await answer_relayed(self.call, self.world, self.sink)

    def outcome(self) -> Outcome:
        record = present(self.call).record
        record.end()
        return record.outcome()


@asynccontextmanager
async def open_rig(
    *answers: Answer, attempts: int = 1, requests: RequestRules | None = None, server: ServerSettings | None = None
) -> AsyncIterator[RelayRig]:
    with FakeUpstream(list(answers)) as fake:
        async with open_http() as client:
            endpoint = Endpoint(fake.url, ("chat",), client.send, relays=frozenset(PATHS))
            provider = make_provider(endpoint=endpoint, requests=requests or RequestRules())
            retry = Retry(attempts=attempts, base_s=0.0)
            world = make_world(provider, retry=retry, server=server or ServerSettings(), models=EVERYTHING)
            wire = MemoryWire()
            yield RelayRig(fake, world, wire, make_sink(wire))


async def test_a_document_passes_both_ways_with_the_upstreams_name_of_the_model() -> None:
    async with open_rig(document(VECTOR)) as rig:
        await rig.ask(headers=[(b"openai-organization", b"other")])
        [request] = rig.fake.calls
    assert (request.path, request.body) == ("/v1/embeddings", BODY.replace(b"up/m", b"m"))
    assert "openai-organization" not in request.headers, "only the owner chooses who pays"
    reply, outcome = rig.wire.reply, rig.outcome()
    assert (reply.status, reply.body) == (200, VECTOR)
    assert (reply.headers.get(b"x-request-id"), reply.headers.get(b"x-dragoman-route")) == (b"req_1", b"up/m")
    assert (outcome.requested_model, present(outcome.usage).input, outcome.outcome) == ("up/m", 2, "ok")
    assert (outcome.upstream_protocol, outcome.passthrough, outcome.attempts) == ("embeddings", True, 1)


async def test_a_reply_says_why_its_bytes_pass_if_the_client_wants_to_know() -> None:
    async with open_rig(document(VECTOR)) as rig:
        await rig.ask(headers=[(b"x-dragoman-explain", b"1")])
    assert rig.wire.reply.headers.get(b"x-dragoman-why") == b"passed; this path is not translated"


async def test_any_success_passes_with_its_status() -> None:
    async with open_rig(Answer(b"", status=204)) as rig:
        await rig.ask()
    assert (rig.wire.reply.status, rig.wire.reply.body) == (204, b"")


async def test_a_stream_passes_as_it_comes() -> None:
    stream = WORD + b"data: [DONE]\n\n"
    async with open_rig(Answer(stream, cut=7)) as rig:
        await rig.ask(STREAMED, "completions")
    assert (rig.wire.reply.body, rig.wire.reply.complete) == (stream, True)
    assert rig.outcome().stream


async def test_a_stream_that_breaks_off_ends_with_the_error_event() -> None:
    async with open_rig(Answer(WORD, end=End.CUT)) as rig:
        await rig.ask(STREAMED, "completions")
    assert rig.wire.reply.body.startswith(WORD)
    assert b'"error"' in rig.wire.reply.body.removeprefix(WORD)
    assert rig.outcome().outcome == Kind.LOST.value


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (document(b""), Kind.TRUNCATED),
        (document(b'{"error":{"message":"slow down"}}', status=429), Kind.RATE_LIMITED),
        (Answer(b"", headless=True, end=End.CUT), Kind.LOST),
    ],
)
async def test_a_failure_before_the_first_byte_is_raised(answer: Answer, kind: Kind) -> None:
    async with open_rig(answer) as rig:
        with pytest.raises(RequestError) as refused:
            await rig.ask()
        assert refused.value.failure.kind is kind


async def test_an_empty_reply_is_tried_again() -> None:
    async with open_rig(document(b""), document(VECTOR), attempts=2) as rig:
        await rig.ask()
        assert len(rig.fake.calls) == 2
    assert rig.wire.reply.body == VECTOR
    assert [attempt.why for attempt in rig.outcome().failed_attempts] == [Kind.TRUNCATED.value]


async def test_a_form_is_sent_again_as_a_whole() -> None:
    body = FORM % b"sound"
    headers = [(b"content-type", TYPE), (b"content-length", b"%d" % len(body))]
    async with open_rig(document(b""), document(b'{"text":"Hi"}'), attempts=2) as rig:
        await rig.ask(body.replace(b"whisper", b"up/m123"), "audio/transcriptions", headers)
        first, second = rig.fake.calls
    assert first.body == second.body == body.replace(b"whisper", b"m123")


async def test_a_refused_request_is_not_adjusted() -> None:
    rules = RequestRules(adjust=lambda failure: Adjustment("again"))
    async with open_rig(document(b'{"error":{"message":"no"}}', status=400), requests=rules) as rig:
        with pytest.raises(RequestError):
            await rig.ask()
        assert len(rig.fake.calls) == 1


async def test_the_time_without_data_is_the_only_limit() -> None:
    server = ServerSettings(first_token_timeout_s=60, token_timeout_s=60, idle_timeout_s=0.2)
    async with open_rig(Answer(b"", headless=True, end=End.HANG), server=server) as rig:
        with pytest.raises(RequestError, match=r"sent no data for 0\.2 s; idle_timeout_s") as refused:
            await rig.ask()
        assert refused.value.failure.kind is Kind.TIMEOUT


async def test_a_stream_that_is_ended_from_outside_says_why() -> None:
    async with open_rig(Answer(WORD, end=End.HANG)) as rig:
        asking = asyncio.create_task(rig.ask(STREAMED, "completions"))
        await wait_until_async(lambda: WORD in rig.wire.written)
        asking.cancel(Failure(Kind.SHUTDOWN, "An operator has ended this request."))
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert rig.wire.reply.complete
    assert b"An operator has ended this request." in rig.wire.reply.body.removeprefix(WORD)
