"""A request whose body stalls or trickles gets 408 in its own protocol, and its connection is closed."""

import select

import msgspec
import pytest

from dragoman.net.limits import ConnectionLimits
from gateway import KEY
from raw_http import dial, read_answer
from rig import PATHS, PROTOCOLS, Rig

HEAD = "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\ncontent-length: 1000\r\n\r\n"
TYPES = {"chat": "invalid_request_error", "responses": "invalid_request_error", "messages": "timeout_error"}
IMPATIENT = ConnectionLimits(body_timeout_s=0.3, body_gap_timeout_s=0.2)


@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize("trickles", [False, True])
def test_a_late_body_is_408_in_the_protocols_own_shape(rig: Rig, client: str, trickles: bool) -> None:
    rig.gateway.app.server.set_limits(IMPATIENT)
    try:
        with dial(rig.gateway.port) as sock:
            sock.sendall(HEAD.format(path=PATHS[client], key=KEY).encode())
            sock.sendall(b'{"')
            while trickles and not select.select([sock], [], [], 0.05)[0]:
                sock.sendall(b" ")
            answer = read_answer(sock)
            assert sock.recv(1) == b""
    finally:
        rig.gateway.app.server.set_limits(ConnectionLimits())
    assert (answer.status, answer.get("connection")) == (408, "close")
    error = msgspec.json.decode(answer.body)["error"]
    assert error["type"] == TYPES[client]
    assert "request body took too long" in error["message"]
    request_id = answer.get("x-request-id")
    assert request_id is not None
    assert rig.gateway.outcome(request_id).outcome == "request_timeout"
