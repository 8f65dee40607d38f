"""Whole replies with anything wrong in them, over real sockets: never an error of the gateway's own.

The same protocol passes what is a JSON object as it came; elsewhere a client gets a reply, or an error that is honest.
"""

import json
import random

import msgspec
import pytest

from fakes.upstream import Answer
from mutations import VALUES, places, spoil_bytes, with_value
from reply_bodies import WHOLE
from rig import PROTOCOLS, Rig
from scripting import JSON

RUNS = 60  # for each pair of protocols
SHOWN = {
    "messages": (b'{"type":"message","content":[{"type":"text","text":"caf\xe9 ok"}],"stop_reason":"end_turn"}'),
    "responses": (
        b'{"id":"r","status":"completed","output":[{"type":"message","content":'
        b'[{"type":"output_text","text":"caf\xe9 ok"}]}]}'
    ),
    "chat": b'{"id":"c","choices":[{"message":{"content":"caf\xe9 ok"},"finish_reason":"stop"}]}',
}


@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("client", PROTOCOLS)
def test_a_byte_that_is_no_utf8_costs_one_character(rig: Rig, client: str, upstream: str) -> None:
    rig.play(upstream, Answer(SHOWN[upstream], content_type=JSON))
    answered = rig.ask(client, upstream)
    assert answered.status == 200
    if client == upstream:
        assert answered.body == SHOWN[upstream]
    else:
        assert "caf\ufffd ok" in answered.body.decode()


@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("client", PROTOCOLS)
def test_a_damaged_whole_reply_is_a_reply_or_an_error(rig: Rig, client: str, upstream: str) -> None:
    chance = random.Random(f"{client} {upstream}")
    for turn in range(RUNS):
        reply = chance.choice([body for body in WHOLE[upstream] if "error" not in body or body["error"] is None])
        if turn % 2:
            spoilt = with_value(reply, chance.choice(list(places(reply))), chance.choice(VALUES))
        else:
            spoilt = spoil_bytes(msgspec.json.encode(reply), chance)
        rig.play(upstream, Answer(spoilt, content_type=JSON))
        answered = rig.ask(client, upstream)
        if client == upstream and answered.status == 200:
            assert answered.body == spoilt
        response = json.loads(answered.body) if answered.status != 200 or client != upstream else {}
        if answered.status != 200:
            assert answered.status != 500, response
            assert response["error"]["message"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same_protocol_passes_a_field_of_a_wrong_type_as_it_came(rig: Rig, protocol: str) -> None:
    beginning = {"chat": ("choices",), "messages": ("content",), "responses": ("output",)}[protocol]
    reply = WHOLE[protocol][0]
    for at in places(reply):
        if at[: len(beginning)] != beginning or len(at) <= len(beginning):
            continue
        spoilt = with_value(reply, at, b"5")
        rig.play(protocol, Answer(spoilt, content_type=JSON))
        answered = rig.ask(protocol, protocol)
        assert (answered.status, answered.body) == (200, spoilt)
