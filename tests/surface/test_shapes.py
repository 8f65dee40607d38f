"""A stream instead of a whole reply, or the reverse, with any content type: the client gets what it requested."""

import json

import pytest

from fakes.upstream import Answer
from surface.outside import GRAMMARS, JSON, PROTOCOLS, Outside, fold_events
from surface.vendor_replies import STREAM, WHOLE

KINDS = ["text/event-stream", "application/json", "text/plain", "application/octet-stream", "text/html", ""]

clients = pytest.mark.parametrize("client", PROTOCOLS)
upstreams = pytest.mark.parametrize("upstream", PROTOCOLS)
kinds = pytest.mark.parametrize("kind", KINDS)


@clients
@upstreams
@kinds
def test_a_document_becomes_the_requested_stream(gate: Outside, client: str, upstream: str, kind: str) -> None:
    gate.play(upstream, Answer(WHOLE[upstream], content_type=kind))
    answer = gate.ask(client, f"{upstream}/m", True)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "Hello" in json.dumps(fold_events(client, answer.body))


@clients
@upstreams
@kinds
def test_a_stream_becomes_the_requested_document(gate: Outside, client: str, upstream: str, kind: str) -> None:
    gate.play(upstream, Answer(STREAM[upstream], content_type=kind))
    answer = gate.ask(client, f"{upstream}/m")
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == JSON
    assert "Hello" in json.dumps(GRAMMARS[client].whole(answer.body))


@clients
@upstreams
@kinds
def test_a_stream_under_a_wrong_name_is_a_stream(gate: Outside, client: str, upstream: str, kind: str) -> None:
    gate.play(upstream, Answer(STREAM[upstream], content_type=kind))
    answer = gate.ask(client, f"{upstream}/m", True)
    assert answer.status == 200, answer.body
    assert b"Hel" in answer.body
    if client != upstream:
        assert "Hello" in json.dumps(fold_events(client, answer.body))


@clients
@upstreams
@kinds
def test_a_document_under_a_wrong_name_is_a_document(gate: Outside, client: str, upstream: str, kind: str) -> None:
    gate.play(upstream, Answer(b"\n " + WHOLE[upstream], content_type=kind))
    answer = gate.ask(client, f"{upstream}/m")
    assert answer.status == 200, answer.body
    assert b"Hello" in answer.body
    if client == upstream:
        assert answer.body == b"\n " + WHOLE[upstream]


@clients
@upstreams
@kinds
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_page_is_an_error_under_any_name(gate: Outside, client: str, upstream: str, kind: str, stream: bool) -> None:
    gate.play(upstream, Answer(b"<html><body>Sorry.</body></html>", content_type=kind))
    answer = gate.ask(client, f"{upstream}/m", stream)
    assert answer.status == 502
    assert b"<" not in answer.body


@clients
@upstreams
def test_a_stream_in_single_bytes_is_not_a_document(gate: Outside, client: str, upstream: str) -> None:
    gate.play(upstream, Answer(STREAM[upstream], cut=1))
    assert b"lo" in gate.ask(client, f"{upstream}/m", True).body
    gate.play(upstream, Answer(STREAM[upstream].replace(b"data: {", b"data:{"), cut=5))
    assert gate.ask(client, f"{upstream}/m", True).status == 200
