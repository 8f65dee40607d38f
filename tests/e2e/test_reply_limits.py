"""A reply with far too many calls, blocks or citations fails with an error, and delays no other client."""

import msgspec
import pytest

from dragoman.translate.hub.events import MAX_BLOCKS, MAX_CALLS, MAX_CITATIONS
from e2e.test_half_calls import ERROR, GOOD_END
from fakes.upstream import Answer
from rig import PROTOCOLS, Rig
from scripting import JSON


def data(events: list[object]) -> bytes:
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events)


def chat_call(place: int) -> dict[str, object]:
    return {"index": place, "id": f"c{place}", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat_calls(count: int) -> tuple[bytes, bytes]:
    chunks: list[object] = [{"id": "c", "choices": [{"delta": {"tool_calls": [chat_call(at)]}}]} for at in range(count)]
    end = {"id": "c", "choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    message = {"role": "assistant", "tool_calls": list(map(chat_call, range(count)))}
    whole = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    return data([*chunks, end]) + b"data: [DONE]\n\n", msgspec.json.encode(whole)


def chat_calls_at_once(count: int) -> tuple[bytes, bytes]:
    delta = {"tool_calls": list(map(chat_call, range(count)))}
    end = {"id": "c", "choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    return data([{"id": "c", "choices": [{"delta": delta}]}, end]) + b"data: [DONE]\n\n", b""


def messages_texts(count: int) -> tuple[bytes, bytes]:
    events: list[object] = [{"type": "message_start", "message": {"id": "m", "model": "m"}}]
    for at in range(count):
        events.append({"type": "content_block_start", "index": at, "content_block": {"type": "text", "text": "a"}})
        events.append({"type": "content_block_stop", "index": at})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}})
    events.append({"type": "message_stop"})
    content = [{"type": "text", "text": "a"}] * count
    whole = {"type": "message", "id": "m", "content": content, "stop_reason": "end_turn"}
    return data(events), msgspec.json.encode(whole)


def responses_citations(count: int) -> tuple[bytes, bytes]:
    cited = {"type": "url_citation", "url": "https://example.com", "title": "t", "start_index": 0, "end_index": 1}
    events: list[object] = [{"type": "response.output_text.delta", "output_index": 0, "delta": "a"}]
    events += [{"type": "response.output_text.annotation.added", "output_index": 0, "annotation": cited}] * count
    events.append({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}})
    text = {"type": "output_text", "text": "a", "annotations": [cited] * count}
    output = [{"type": "message", "content": [text]}]
    return data(events), msgspec.json.encode({"id": "r", "status": "completed", "output": output})


LARGE = {
    "calls": ("chat", chat_calls, MAX_CALLS),
    "calls in one event": ("chat", chat_calls_at_once, MAX_CALLS),
    "blocks": ("messages", messages_texts, MAX_BLOCKS),
    "citations": ("responses", responses_citations, MAX_CITATIONS),
}
CROSSED = [(client, what) for client in PROTOCOLS for what, (upstream, *_) in LARGE.items() if client != upstream]
# A client for each kind; those that take long are left to the exhaustive run.
SOON = [("messages", "calls"), ("responses", "calls in one event"), ("chat", "blocks"), ("messages", "citations")]
CASES = [case if case in SOON else pytest.param(*case, marks=pytest.mark.rest) for case in CROSSED]
WHOLE = [
    case if case in SOON else pytest.param(*case, marks=pytest.mark.rest)
    for case in CROSSED
    if case[1] != "calls in one event"
]


@pytest.mark.parametrize(("client", "what"), CASES)
@pytest.mark.rest
def test_one_too_many_is_an_error_event_after_the_allowed_number(rig: Rig, client: str, what: str) -> None:
    upstream, write, most = LARGE[what]
    rig.play(upstream, Answer(write(most)[0]))
    assert GOOD_END[client] in rig.ask(client, upstream, stream=True).body
    rig.play(upstream, Answer(write(most + 1)[0]))
    answered = rig.ask(client, upstream, stream=True)
    assert ERROR[client] in answered.body
    assert GOOD_END[client] not in answered.body
    assert b"which is the limit for one reply" in answered.body
    assert what.partition(" ")[0].encode() in answered.body


@pytest.mark.parametrize(("client", "what"), WHOLE)
def test_one_too_many_in_a_whole_reply_is_a_502(rig: Rig, client: str, what: str) -> None:
    upstream, write, most = LARGE[what]
    rig.play(upstream, Answer(write(most)[1], content_type=JSON))
    assert rig.ask(client, upstream).status == 200
    rig.play(upstream, Answer(write(most + 1)[1], content_type=JSON))
    answered = rig.ask(client, upstream)
    assert answered.status == 502
    assert b"which is the limit for one reply" in answered.body


@pytest.mark.parametrize("what", LARGE)
def test_the_same_protocol_passes_any_number_as_it_came(rig: Rig, what: str) -> None:
    upstream, write, most = LARGE[what]
    streamed, _ = write(most + 10)
    rig.play(upstream, Answer(streamed))
    answered = rig.ask(upstream, upstream, stream=True)
    assert answered.body == streamed
