"""The way of an upstream's bytes to the client: translated, or unchanged and only watched.

The client's bytes are the same however the network cut the upstream's.
"""

from pathlib import Path

import pytest

from dragoman.flow.client_encoding import ClientEncoding
from dragoman.flow.pipes import PassthroughPipe, Source, TranslationPipe
from dragoman.hub.events import Event
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Issuer, ReplyContext, Stage
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.protocols import PROTOCOLS
from dragoman.stages.estimate_usage import EstimateUsage
from dragoman.stages.hold_end import HoldTruncatedCall
from dragoman.stages.text_calls import TextCalls
from dragoman.stages.thinking_tags import ThinkingTags
from laws import pieces_of
from tables import each_row

FIXTURES = Path(__file__).parent.parent / "fixtures"
STREAMS = sorted(path for protocol in ("chat", "messages") for path in (FIXTURES / protocol).glob("*.sse"))
BROKEN = Failure(Kind.LOST, "the connection broke")
BODY = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Go on."}]}'


def make_pipe(upstream: str, client: str) -> tuple[TranslationPipe, ClientEncoding]:
    speaks, hears = PROTOCOLS[upstream].upstream, PROTOCOLS[client].client
    assert speaks is not None
    assert hears is not None
    encoder, request = hears.encoder, hears.parse(BODY, Ledger())
    context = ReplyContext(request, "m", 1_763_190_000, lambda prefix: prefix + "1", lambda: 1_763_190_001)
    encoding = ClientEncoding(lambda ledger: encoder(context, ledger), lambda trip: None, serial=True, joins=False)
    watch = ReplyMonitor(lambda: 0.0)
    encoding.begin_turn(Ledger(), None, watch)
    source = Source(speaks.framer(), speaks.decoder(Issuer("up", "m"), Ledger()))
    stages: list[Stage[Event, Event]] = [ThinkingTags(), TextCalls({"weather": None}), EstimateUsage(len, 1)]
    return TranslationPipe(source, [HoldTruncatedCall(), *stages], encoding, watch), encoding


def write(upstream: str, client: str, pieces: list[bytes]) -> bytes:
    pipe, encoding = make_pipe(upstream, client)
    written = b"".join([*map(pipe.feed, pieces), pipe.drain(), pipe.finish()])
    return written + (encoding.finish() if pipe.failure is None else encoding.fail(pipe.failure)).joined


@each_row("client", ["chat", "messages"])
@each_row("path", STREAMS)
def test_what_a_client_reads_does_not_depend_on_how_the_upstream_was_read(path: Path, client: str) -> None:
    upstream, stream = path.parent.name, path.read_bytes()
    whole = write(upstream, client, [stream])
    assert whole
    event_by_event = [event + b"\n\n" for event in stream.split(b"\n\n")]
    for pieces in (event_by_event, *(pieces_of(stream, size) for size in (1, 7, 500))):
        assert write(upstream, client, pieces) == whole


def make_passthrough(protocol: str, secrets: tuple[bytes, ...] = ()) -> PassthroughPipe:
    speaks, client = PROTOCOLS[protocol].upstream, PROTOCOLS[protocol].client
    assert speaks is not None
    assert client is not None
    source = Source(speaks.framer(), speaks.decoder(Issuer("up", "m"), Ledger()))
    return PassthroughPipe(source, client, ReplyMonitor(lambda: 0.0), secrets)


@each_row("path", STREAMS)
def test_what_passes_is_its_input_to_the_byte_and_at_most_an_error_is_appended(path: Path) -> None:
    protocol, stream = path.parent.name, path.read_bytes()
    for size in (1, 7, 500):
        pipe = make_passthrough(protocol)
        passed = b"".join(map(pipe.feed, pieces_of(stream, size)))
        last = pipe.drain() + pipe.finish()
        assert passed == stream
        assert bool(last) is path.stem.startswith("truncated")


@pytest.mark.parametrize(
    ("begun", "apart"),
    [(b"data: {}\n\n", b""), (b"data: {}\r\n\r\n", b""), (b"data: {}\n", b"\n\n"), (b"data: {", b"\n\n"), (b"", b"")],
)
def test_an_error_is_set_apart_from_an_event_that_was_cut(begun: bytes, apart: bytes) -> None:
    pipe = make_passthrough("chat")
    assert pipe.feed(begun) == begun
    sent = pipe.break_off(BROKEN)
    assert sent.startswith(apart + b"data: ")
    assert b"the connection broke" in sent
    assert pipe.watch.failure == BROKEN


def test_an_error_that_the_upstream_has_sent_is_not_sent_twice() -> None:
    error = b'data: {"error":{"message":"overloaded","type":"server_error"}}\n\n'
    pipe = make_passthrough("chat")
    assert pipe.feed(error) == error
    assert pipe.watch.failure is not None
    assert pipe.drain() + pipe.finish() == b""


def test_what_we_cannot_read_after_the_first_token_is_the_clients_to_read() -> None:
    word = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
    for ending, appended in ((b"data: [DONE]\n\n", False), (b"", True)):
        pipe = make_passthrough("chat")
        stream = word + b"data: {nonsense\n\n" + ending
        assert pipe.feed(stream[:-9]) + pipe.feed(stream[-9:]) == stream
        assert pipe.watch.failure is None
        assert bool(pipe.break_off(BROKEN)) is appended


def test_a_secret_is_hidden_also_where_it_is_cut() -> None:
    secret = b"sk-secret-0123456789"
    stream = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % secret
    for size in (1, 7, 500):
        pipe = make_passthrough("chat", (secret,))
        passed = b"".join(map(pipe.feed, pieces_of(stream, size))) + pipe.finish()
        assert passed == stream.replace(secret, b"***")


def test_a_failure_does_not_reach_the_client_before_it_is_decided_who_continues() -> None:
    pipe, encoding = make_pipe("chat", "messages")
    begun = pipe.feed(b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n')
    assert b"Hi" in begun
    assert b"error" not in pipe.break_off(BROKEN)
    assert pipe.failure == BROKEN
    assert pipe.used_so_far().output > 0
    assert encoding.fail(BROKEN).joined.count(b"event: error\n") == 1


def test_usage_is_that_of_all_turns_of_the_reply() -> None:
    pipe, _ = make_pipe("chat", "messages")
    pipe.feed((FIXTURES / "chat" / "text.sse").read_bytes())
    pipe.drain()
    assert pipe.usage == pipe.used_so_far()
