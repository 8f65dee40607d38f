"""Same-protocol streams that our own reader cannot follow still reach the client, every byte and to the end."""

import threading

import pytest

from dragoman.proxy.pump import LINGER_S
from fakes.upstream import Answer, Gate
from rig import Rig
from scripting import write_reply
from surface.vendor_events import CHAT_END, chunk, sse

ROTATING = [
    sse(chunk({"role": "assistant", "content": "Hel"})),
    sse(chunk({"content": "lo "}, id="chatcmpl-2")),
    sse(chunk({"content": "there"}, id="chatcmpl-3"), chunk({}, "stop", id="chatcmpl-4"), *CHAT_END),
]
RIDDLES = {
    "chat": b'data: {"id":"chatcmpl-1","choices":"?"}\n\n',
    "messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","index":"?"}\n\n',
    "responses": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":7}\n\n',
}


def test_ids_that_rotate_and_pauses_do_not_end_a_stream(gate: Rig) -> None:
    """The pause is longer than an upstream may take to end its body after its last event."""
    body = b"".join(ROTATING)
    cut = len(ROTATING[0]) + len(ROTATING[1])
    is_over = threading.Event()
    gate.play("chat", Answer(body, cut=cut, gate=Gate(is_over, at=cut)))
    threading.Timer(LINGER_S + 0.1, is_over.set).start()
    assert gate.ask("chat", "chat", stream=True).body == body


def split_end(protocol: str) -> tuple[bytes, bytes]:
    """Return a stream up to its last event, and that event."""
    body = write_reply(protocol, "Hello").body
    place = body.rindex(b"\n\nevent: " if protocol != "chat" else b"\n\ndata: {") + 2
    return body[:place], body[place:]


@pytest.mark.parametrize("protocol", RIDDLES)
def test_an_event_that_we_cannot_read_passes_however_it_is_cut(gate: Rig, protocol: str) -> None:
    begun, end = split_end(protocol)
    body = begun + RIDDLES[protocol] + end
    for cut in (0, 1, 3, 50):
        gate.play(protocol, Answer(body, cut=cut))
        assert gate.ask(protocol, protocol, stream=True).body == body


@pytest.mark.parametrize("protocol", RIDDLES)
def test_an_event_that_we_cannot_read_is_followed_by_the_error_event_if_no_end_is(gate: Rig, protocol: str) -> None:
    begun, _ = split_end(protocol)
    if protocol == "messages":
        begun = begun[: begun.rindex(b"event: ")]
    body = begun + RIDDLES[protocol]
    gate.play(protocol, Answer(body, cut=9))
    stream = gate.ask(protocol, protocol, stream=True).body
    assert stream.startswith(body)
    assert b"without its terminal event" in stream[len(body) :]
