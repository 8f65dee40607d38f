"""Replies are judged by grammars that were written from the protocols alone; and the grammars refuse what is wrong."""

import json

import pytest

from grammar_sse import Illegal
from rig import PROTOCOLS, Rig
from scripting import write_reply
from surface.reading import fold_events, read_reply

clients = pytest.mark.parametrize("client", PROTOCOLS)
upstreams = pytest.mark.parametrize("upstream", PROTOCOLS)


@clients
@upstreams
def test_streamed_and_whole_replies_obey_their_grammar_and_agree(gate: Rig, client: str, upstream: str) -> None:
    if client == upstream:
        gate.play(upstream, write_reply(upstream, "Hello"))
        assert gate.ask(client, upstream, stream=True).body == write_reply(upstream, "Hello").body
        return
    streamed = read_reply(gate, client, upstream, write_reply(upstream, "Hello"))
    whole = read_reply(gate, client, upstream, write_reply(upstream, "Hello", stream=False), stream=False)
    if upstream == "responses":
        assert streamed == whole
    assert "Hello" in json.dumps(streamed)
    apart = {"usage": None, "completed_at": None}  # between the two a second may begin
    assert streamed | apart == whole | apart


@clients
def test_the_grammars_refuse_a_stream_from_which_any_event_is_missing(gate: Rig, client: str) -> None:
    upstream = "messages" if client != "messages" else "chat"
    gate.play(upstream, write_reply(upstream, "Hello"))
    body = gate.ask(client, upstream, stream=True).body
    blocks = body.split(b"\n\n")[:-1]
    words = b'"delta":{"content":"', b"_delta\n"  # one piece of text less is a legal stream of another text
    for place, block in enumerate(blocks):
        if any(word in block for word in words) and b"output_text" not in block and b"message_delta" not in block:
            continue
        rest = b"".join(other + b"\n\n" for other in (*blocks[:place], *blocks[place + 1 :]))
        with pytest.raises((Illegal, KeyError, IndexError, AttributeError)):
            fold_events(client, rest)
