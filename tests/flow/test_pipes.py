"""An upstream's stream, translated: the client's bytes are the same however the network cut the upstream's."""

from pathlib import Path

import pytest

from dragoman.flow.client_encoding import ClientEncoding
from dragoman.flow.pipes import Source, TranslationPipe
from dragoman.hub.events import Event
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Asked, Issuer
from dragoman.hub.stage import Stage
from dragoman.observers.watch import Watch
from dragoman.protocols import PROTOCOLS
from dragoman.stages.estimate_usage import EstimateUsage
from dragoman.stages.hold_cut import HoldCut
from dragoman.stages.thinking_tags import ThinkingTags
from dragoman.stages.written_calls import WrittenCalls
from laws import pieces_of

FIXTURES = Path(__file__).parent.parent / "fixtures"
STREAMS = sorted(path for protocol in ("chat", "messages") for path in (FIXTURES / protocol).glob("*.sse"))
ASKED = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Go on."}]}'


def make_pipe(upstream: str, client: str) -> tuple[TranslationPipe, ClientEncoding]:
    speaks, hears = PROTOCOLS[upstream].upstream, PROTOCOLS[client].client
    assert speaks is not None
    assert hears is not None
    encoder, request = hears.encoder, hears.parse(ASKED, Ledger())
    asked = Asked(request, "m", 1_763_190_000, lambda prefix: prefix + "1", lambda: 1_763_190_001)
    encoding = ClientEncoding(lambda ledger: encoder(asked, ledger), lambda trip: None, serial=True, joins=False)
    watch = Watch(lambda: 0.0)
    encoding.begin_turn(Ledger(), None, watch)
    source = Source(speaks.framer(), speaks.decoder(Issuer("up", "m"), Ledger()))
    stages: list[Stage[Event, Event]] = [ThinkingTags(), WrittenCalls({"weather": None}), EstimateUsage(len, 1)]
    return TranslationPipe(source, HoldCut(), stages, encoding, watch), encoding


def write(upstream: str, client: str, pieces: list[bytes]) -> bytes:
    pipe, encoding = make_pipe(upstream, client)
    written = b"".join([*map(pipe.feed, pieces), pipe.drain(), pipe.finish()])
    return written + (encoding.finish() if pipe.failure is None else encoding.fail(pipe.failure))


@pytest.mark.parametrize("client", ["chat", "messages"])
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_a_client_reads_does_not_depend_on_how_the_upstream_was_read(path: Path, client: str) -> None:
    upstream, stream = path.parent.name, path.read_bytes()
    whole = write(upstream, client, [stream])
    assert whole
    event_by_event = [event + b"\n\n" for event in stream.split(b"\n\n")]
    for pieces in (event_by_event, *(pieces_of(stream, size) for size in (1, 7, 500))):
        assert write(upstream, client, pieces) == whole
