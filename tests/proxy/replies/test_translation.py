"""The machine of a translated reply: the client's bytes are the same however the network cut the upstream's."""

from pathlib import Path

from dragoman.proxy.client_encoding import ClientEncoding, ReplyShape
from dragoman.proxy.replies.translation import Translation
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.source import EventSource
from dragoman.translate.hub.events import Event, Failed
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer, ReplyContext, Stage
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.stages.estimate_usage import EstimateUsage
from dragoman.translate.stages.hold_end import HoldTruncatedCall
from dragoman.translate.stages.text_calls import TextCalls
from dragoman.translate.stages.thinking_tags import ThinkingTags
from laws import pieces_of
from tables import each_row

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
STREAMS = sorted(path for protocol in ("chat", "messages") for path in (FIXTURES / protocol).glob("*.sse"))
BROKEN = Failure(Kind.LOST, "the connection broke")
BODY = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Go on."}]}'


def make_translation(upstream: str, client: str) -> tuple[EventSource, Translation, ClientEncoding]:
    speaks, hears = PROTOCOLS[upstream].upstream, PROTOCOLS[client].client
    assert speaks is not None
    assert hears is not None
    encoder, request = hears.encoder, hears.parse(BODY, Ledger())
    context = ReplyContext(request, "m", 1_763_190_000, lambda prefix: prefix + "1", lambda: 1_763_190_001)
    encoding = ClientEncoding(lambda ledger: encoder(context, ledger), lambda trip: None, ReplyShape(serial=True))
    watch = ReplyMonitor(lambda: 0.0)
    encoding.begin_turn(Ledger(), None, watch)
    source = EventSource(speaks.framer(), speaks.decoder(Issuer("up", "m"), Ledger()))
    stages: list[Stage[Event, Event]] = [ThinkingTags(), TextCalls({"weather": None}), EstimateUsage(len, 1)]
    return source, Translation([HoldTruncatedCall(), *stages], encoding, watch), encoding


def write(upstream: str, client: str, pieces: list[bytes]) -> bytes:
    source, translation, encoding = make_translation(upstream, client)
    written = b"".join(translation.push(source.feed(piece)) for piece in pieces)
    written += translation.push(source.finish()) + translation.finish_stages()
    return written + (encoding.finish() if translation.failure is None else encoding.fail(translation.failure)).joined


@each_row("client", ["chat", "messages"])
@each_row("path", STREAMS)
def test_what_a_client_reads_does_not_depend_on_how_the_upstream_was_read(path: Path, client: str) -> None:
    upstream, stream = path.parent.name, path.read_bytes()
    whole = write(upstream, client, [stream])
    assert whole
    event_by_event = [event + b"\n\n" for event in stream.split(b"\n\n")]
    for pieces in (event_by_event, *(pieces_of(stream, size) for size in (1, 7, 500))):
        assert write(upstream, client, pieces) == whole


def test_a_failure_does_not_reach_the_client_before_it_is_decided_who_continues() -> None:
    source, translation, encoding = make_translation("chat", "messages")
    begun = translation.push(source.feed(b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'))
    assert b"Hi" in begun
    assert b"error" not in translation.push([Failed(BROKEN)])
    assert translation.failure == BROKEN
    assert encoding.fail(BROKEN).joined.count(b"event: error\n") == 1
