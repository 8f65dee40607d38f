"""A stream instead of a whole reply, or the reverse, with any content type: the client gets what it requested."""

import json

import pytest

from fakes.upstream import Answer
from rig import FEW_PAIRS, PROTOCOLS, Rig, walk
from scripting import JSON, write_reply
from surface.reading import GRAMMARS, fold_events

KINDS = ["text/event-stream", "application/json", "text/plain", "application/octet-stream", "text/html", ""]

each_kind = pytest.mark.parametrize(("client", "kind", "upstream"), walk([PROTOCOLS, KINDS], [PROTOCOLS]))


@each_kind
def test_a_document_becomes_the_requested_stream(gate: Rig, client: str, upstream: str, kind: str) -> None:
    gate.play(upstream, Answer(write_reply(upstream, "Hello", stream=False).body, content_type=kind))
    answer = gate.ask(client, upstream, stream=True)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "Hello" in json.dumps(fold_events(client, answer.body))


@each_kind
def test_a_stream_becomes_the_requested_document(gate: Rig, client: str, upstream: str, kind: str) -> None:
    gate.play(upstream, Answer(write_reply(upstream, "Hello").body, content_type=kind))
    answer = gate.ask(client, upstream)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == JSON
    assert "Hello" in json.dumps(GRAMMARS[client].whole(answer.body))


@each_kind
def test_a_stream_under_a_wrong_name_is_a_stream(gate: Rig, client: str, upstream: str, kind: str) -> None:
    gate.play(upstream, Answer(write_reply(upstream, "Hello").body, content_type=kind))
    answer = gate.ask(client, upstream, stream=True)
    assert answer.status == 200, answer.body
    assert b"Hel" in answer.body
    if client != upstream:
        assert "Hello" in json.dumps(fold_events(client, answer.body))


@each_kind
def test_a_document_under_a_wrong_name_is_a_document(gate: Rig, client: str, upstream: str, kind: str) -> None:
    gate.play(upstream, Answer(b"\n " + write_reply(upstream, "Hello", stream=False).body, content_type=kind))
    answer = gate.ask(client, upstream)
    assert answer.status == 200, answer.body
    assert b"Hello" in answer.body
    if client == upstream:
        assert answer.body == b"\n " + write_reply(upstream, "Hello", stream=False).body


@pytest.mark.parametrize(("client", "kind", "upstream", "stream"), walk([PROTOCOLS, KINDS], [PROTOCOLS, (False, True)]))
def test_a_page_is_an_error_under_any_name(gate: Rig, client: str, upstream: str, kind: str, stream: bool) -> None:
    gate.play(upstream, Answer(b"<html><body>Sorry.</body></html>", content_type=kind))
    answer = gate.ask(client, upstream, stream=stream)
    assert answer.status == 502
    assert b"<" not in answer.body


@pytest.mark.parametrize(("client", "upstream"), FEW_PAIRS)
def test_a_stream_in_single_bytes_is_not_a_document(gate: Rig, client: str, upstream: str) -> None:
    gate.play(upstream, write_reply(upstream, "Hello", cut=1))
    assert b"lo" in gate.ask(client, upstream, stream=True).body
    gate.play(upstream, Answer(write_reply(upstream, "Hello").body.replace(b"data: {", b"data:{"), cut=5))
    assert gate.ask(client, upstream, stream=True).status == 200
