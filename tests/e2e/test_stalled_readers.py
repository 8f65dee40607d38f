"""A client that stops reading makes the gateway hold no more than 256 KB, however fast its upstream writes."""

import gc
import socket
import time
from collections.abc import Callable

import msgspec
import pytest

from asking import make_body
from dragoman.net.inbound import ClientConnection
from dragoman.net.outbound import STREAM_RECEIVE_BYTES, UpstreamConnection
from e2e.cases import CASES
from fakes.upstream import Answer
from raw_http import request_bytes
from rig import ENCODERS, FEW_PAIRS, PATHS, Rig
from waiting import wait_until

MOST = 256 * 1024

pairs = pytest.mark.parametrize(("client", "upstream"), FEW_PAIRS, ids=[">".join(pair) for pair in FEW_PAIRS])


def split(upstream: str) -> tuple[bytes, bytes]:
    """A stream up to its first text, and that text over and over."""
    events = ENCODERS[upstream].encode_stream(CASES["text"].scripted).split(b"\n\n")
    first = next(at for at, event in enumerate(events) if b"The q" in event)
    return b"\n\n".join(events[: first + 1]) + b"\n\n", (events[first] + b"\n\n") * 200


@pairs
def test_a_stalled_reader_is_cheap(rig: Rig, client: str, upstream: str) -> None:
    opening, again = split(upstream)
    fake = rig.play(upstream, Answer(again, floods=True, opening=opening))
    fake.closed.clear()
    body = msgspec.json.encode(make_body(client, rig.model(upstream), stream=True))
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        sock.connect(("127.0.0.1", rig.gateway.port))
        sock.sendall(request_bytes(PATHS[client], body))
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        wait_until_quiet(lambda: fake.sent)
        held = 2 * STREAM_RECEIVE_BYTES  # the kernel doubles the requested size
        for item in gc.get_objects():
            if isinstance(item, ClientConnection) and item.writer.blocked:
                held += item._transport.get_write_buffer_size() + item.writer._unsent_bytes
            elif isinstance(item, UpstreamConnection):
                held += item.buffered
        assert 0 < held <= MOST
    wait_until(lambda: bool(fake.closed))  # what this connection holds is not the next test's


def wait_until_quiet(sent: Callable[[], int]) -> None:
    patience, last = time.monotonic() + 60.0, -1
    while last != sent():
        assert time.monotonic() < patience
        last = sent()
        time.sleep(0.2)
