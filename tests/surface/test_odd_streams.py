"""Same-protocol streams that our own reader cannot follow still reach the client, every byte and to the end."""

import pytest

from fakes.upstream import Answer
from surface.outside import Outside, sse
from surface.vendor_replies import CHAT_END, STREAM, chunk

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


def test_ids_that_rotate_and_pauses_do_not_end_a_stream(gate: Outside) -> None:
    body = b"".join(ROTATING)
    cut = len(ROTATING[0]) + len(ROTATING[1])
    gate.play("chat", Answer(body, cut=cut, pause_s=1.3))
    assert gate.ask("chat", "chat/m", True).body == body


@pytest.mark.parametrize("protocol", RIDDLES)
def test_an_event_that_we_cannot_read_passes(gate: Outside, protocol: str) -> None:
    first, _, rest = STREAM[protocol].rpartition(b"\n\nevent: " if protocol != "chat" else b"\n\ndata: {")
    body = first + b"\n\n" + RIDDLES[protocol] + (b"event: " if protocol != "chat" else b"data: {") + rest
    gate.play(protocol, Answer(body))
    assert gate.ask(protocol, f"{protocol}/m", True).body == body


@pytest.mark.parametrize("protocol", RIDDLES)
def test_an_event_that_we_cannot_read_is_followed_by_the_error_event_if_no_end_is(gate: Outside, protocol: str) -> None:
    first, _, _ = STREAM[protocol].rpartition(b"\n\nevent: " if protocol != "chat" else b"\n\ndata: {")
    if protocol == "messages":
        first, _, _ = first.rpartition(b"\n\nevent: ")
    body = first + b"\n\n" + RIDDLES[protocol]
    gate.play(protocol, Answer(body, cut=9))
    stream = gate.ask(protocol, f"{protocol}/m", True).body
    assert stream.startswith(body)
    assert b"without its terminal event" in stream[len(body) :]


@pytest.mark.parametrize("protocol", RIDDLES)
def test_an_end_that_is_cut_into_pieces_is_seen_all_the_same(gate: Outside, protocol: str) -> None:
    first, _, rest = STREAM[protocol].rpartition(b"\n\nevent: " if protocol != "chat" else b"\n\ndata: {")
    body = first + b"\n\n" + RIDDLES[protocol] + (b"event: " if protocol != "chat" else b"data: {") + rest
    for cut in (1, 3, 50):
        gate.play(protocol, Answer(body, cut=cut))
        assert gate.ask(protocol, f"{protocol}/m", True).body == body
