"""Requests that clients really sent are built for every upstream: nothing breaks, and nothing vanishes quietly."""

from http.client import HTTPConnection
from pathlib import Path

import pytest

from clients.captured import Captured, list_all, list_captured
from clients.replay import UPSTREAMS, check
from gateway import KEY, Running
from rig import walk

CAPTURED = {request.name: request for request in list_captured()}


@pytest.mark.parametrize(("name", "upstream"), walk([CAPTURED], [UPSTREAMS]))
def test_a_captured_request_is_built_for_every_upstream(name: str, upstream: str) -> None:
    request_ = CAPTURED[name]
    assert request_.protocol is not None
    check(bytes(request_.body), request_.protocol, upstream)


def test_what_clients_request_besides_replies_is_answered(tmp_path: Path) -> None:
    """Models, token counts, and requests that only check whether a server is there."""
    settings = '[providers.echo]\nkind = "echo"\n[[models]]\nname = "claude-opus-5-5"\nto = ["echo/echo"]\n'
    others = [request for request in list_all() if request.protocol is None]
    with Running(settings, tmp_path) as gateway:
        statuses = {request.name: send(request, gateway.app.server.port) for request in others}
    assert statuses == {request.name: 200 for request in others}
    assert {request.method for request in others} == {"HEAD", "GET", "POST"}


def send(request: Captured, port: int) -> int:
    """Send a request as it was captured, with our key, and return the status of the response."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(request.method, f"{request.path}?{request.query}", skip_host=True, skip_accept_encoding=True)
    body = bytes(request.body) if request.method == "POST" else b""
    for name, value in request.headers:
        scheme, hidden, _ = value.partition("<REDACTED")
        connection.putheader(name, scheme + KEY if hidden else str(len(body)) if name == "Content-Length" else value)
    connection.endheaders(body)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status
