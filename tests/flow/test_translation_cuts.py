"""An upstream's stream, translated: the client's bytes are the same however the network cut the upstream's."""

from pathlib import Path

import pytest

from dragoman.flow.line import Source, Translation
from dragoman.hub.events import Event
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Asked, Issuer
from dragoman.hub.stage import Stage
from dragoman.observers.watch import Watch
from dragoman.protocols import PROTOCOLS
from dragoman.stages.check_calls import CheckCalls
from dragoman.stages.estimate_usage import EstimateUsage
from dragoman.stages.guard import Guard
from dragoman.stages.hold_cut import HoldCut
from dragoman.stages.serialise_blocks import SerialiseBlocks
from dragoman.stages.thinking_tags import ThinkingTags
from dragoman.stages.written_calls import WrittenCalls
from laws import pieces_of

FIXTURES = Path(__file__).parent.parent / "fixtures"
STREAMS = sorted(path for protocol in ("chat", "messages") for path in (FIXTURES / protocol).glob("*.sse"))
ASKED = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Go on."}]}'


def translation(upstream: str, client: str) -> Translation:
    speaks, hears = PROTOCOLS[upstream].upstream, PROTOCOLS[client].client
    assert speaks is not None
    assert hears is not None
    source = Source(speaks.framer(), speaks.decoder(Issuer("up", "m"), Ledger()))
    request = hears.parse(ASKED, Ledger())
    encoder = hears.encoder(
        Asked(request, "m", 1_763_190_000, lambda prefix: prefix + "1", lambda: 1_763_190_001), Ledger()
    )
    stages: list[Stage[Event, Event]] = [
        ThinkingTags(),
        WrittenCalls({"weather": None}),
        EstimateUsage(len, 1),
        CheckCalls(),
        SerialiseBlocks(),
        Guard(lambda why: None),
    ]
    return Translation(source, HoldCut(), stages, encoder, Watch(lambda: 0.0))


def told(line: Translation, pieces: list[bytes]) -> bytes:
    return b"".join([*map(line.feed, pieces), line.drain(), line.close()])


@pytest.mark.parametrize("client", ["chat", "messages"])
@pytest.mark.parametrize("path", STREAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_a_client_reads_does_not_depend_on_how_the_upstream_was_read(path: Path, client: str) -> None:
    upstream, stream = path.parent.name, path.read_bytes()
    whole = told(translation(upstream, client), [stream])
    assert whole
    event_by_event = [event + b"\n\n" for event in stream.split(b"\n\n")]
    for pieces in (event_by_event, *(pieces_of(stream, size) for size in (1, 7, 500))):
        line = translation(upstream, client)
        assert told(line, pieces) == whole
