"""Every way in which a reply can stop has its word in each protocol, streamed and whole."""

import json

import pytest

from asking import EXPLAIN
from fakes.upstream import Answer
from rig import Rig
from scripting import JSON
from surface.reading import end_in, read_reply, text_in
from surface.vendor_events import CREATED, message, response, sse, stream_messages, text, text_item, write_whole

STOPS = {  # Messages' word -> those of Chat and of Responses
    "end_turn": ("stop", ("completed", None)),
    "stop_sequence": ("stop", ("completed", None)),
    "max_tokens": ("length", ("incomplete", "max_output_tokens")),
    "model_context_window_exceeded": ("length", ("incomplete", "max_output_tokens")),
    "refusal": ("content_filter", ("incomplete", "content_filter")),
    "pause_turn": ("stop", ("completed", None)),
}


@pytest.mark.parametrize("client", ["chat", "responses"])
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("stream", [True, False])
def test_every_way_that_a_message_stops_has_its_word(gate: Rig, client: str, stop: str, stream: bool) -> None:
    if stream:
        answer = stream_messages(*text(0, "x"), stop=stop)
    else:
        answer = Answer(json.dumps(message({"type": "text", "text": "x"}, stop=stop)).encode(), content_type=JSON)
    reply = read_reply(gate, client, "messages", answer, stream)
    chat_word, responses_words = STOPS[stop]
    if client == "chat":
        assert reply["finish"] == chat_word
    else:
        assert (reply["status"], (reply["incomplete_details"] or {}).get("reason")) == responses_words


@pytest.mark.parametrize("client", ["chat", "messages"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("reason", "ends"),
    [
        ("max_output_tokens", {"chat": "length", "messages": "max_tokens"}),
        ("content_filter", {"chat": "content_filter", "messages": "refusal"}),
        ("max_messages", {"chat": "length", "messages": "max_tokens"}),
        (None, {"chat": "length", "messages": "max_tokens"}),
    ],
)
def test_every_reason_of_an_incomplete_response_has_its_word(
    gate: Rig, client: str, stream: bool, reason: str | None, ends: dict[str, str]
) -> None:
    cut = response(text_item("x"), status="incomplete", incomplete_details={"reason": reason})
    events = sse(CREATED, {"type": "response.incomplete", "response": cut})
    answer = Answer(events) if stream else write_whole(cut)
    reply = read_reply(gate, client, "responses", answer, stream)
    assert (text_in(client, reply), end_in(client, reply)) == ("x", ends[client])
    if not stream:
        lost = dict(gate.ask(client, "responses", headers=EXPLAIN).losses)
        assert ("/incomplete_details/reason" in lost) == (reason in ("max_messages", None))
