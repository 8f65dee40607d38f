"""Whatever an upstream streams, in whatever order: every client gets a legal stream, or a legal error."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.upstream import Answer
from grammar_sse import Illegal
from rig import PROTOCOLS, Rig
from surface.reading import GRAMMARS, fold_events
from surface.vendor_events import CHAT_END, MESSAGES_USAGE, chunk, message, response, sse, text_item
from wire_json import JsonObject

Event = JsonObject | str


def call(index: int | None, id: str | None, name: str | None, arguments: object) -> JsonObject:
    piece = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    return chunk({"tool_calls": [{key: value for key, value in piece.items() if value is not None}]})


CHAT: list[Event] = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "é👍"}),
    chunk({"reasoning_content": "hm"}),
    chunk({"reasoning_details": [{"type": "reasoning.text", "text": "q", "signature": "s", "index": 0}]}),
    chunk({"refusal": "no"}),
    call(0, "t0", "weather", '{"a":'),
    call(0, None, None, "1}"),
    call(7, "x.y:z", "weather", {"a": 1}),
    call(None, None, "weather", ""),
    chunk({"function_call": {"name": "weather", "arguments": "{}"}}),
    {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": None}]},
    {"id": "chatcmpl-1", "choices": [{"index": 1, "delta": {"content": "other"}}]},
    chunk({"content": "more"}, usage={"prompt_tokens": 3, "completion_tokens": 1}),
    chunk({}, "stop"),
    chunk({}, "length"),
    chunk({}, "content_filter"),
    {"error": {"message": "broken", "type": "server_error"}},
    *CHAT_END,
]


def make_block_start(index: int, **block: object) -> JsonObject:
    return {"type": "content_block_start", "index": index, "content_block": block}


def make_block_delta(index: int, **delta: object) -> JsonObject:
    return {"type": "content_block_delta", "index": index, "delta": delta}


MESSAGES: list[Event] = [
    {"type": "message_start", "message": message()},
    {"type": "ping"},
    make_block_start(0, type="text", text=""),
    make_block_delta(0, type="text_delta", text="é👍"),
    {"type": "content_block_stop", "index": 0},
    make_block_start(1, type="thinking", thinking="", signature=""),
    make_block_delta(1, type="thinking_delta", thinking="hm"),
    make_block_delta(1, type="signature_delta", signature="s"),
    {"type": "content_block_stop", "index": 1},
    make_block_start(2, type="tool_use", id="toolu_1", name="weather", input={}),
    make_block_delta(2, type="input_json_delta", partial_json='{"a":1}'),
    {"type": "content_block_stop", "index": 2},
    make_block_start(3, type="server_tool_use", id="srvtoolu_1", name="web_search", input={"query": "q"}),
    make_block_start(4, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[]),
    make_block_start(5, type="redacted_thinking", data="r"),
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": MESSAGES_USAGE},
    {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
    {"type": "error", "error": {"type": "overloaded_error", "message": "broken"}},
]

FUNCTION = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}


def make_event(kind: str, index: int, **fields: object) -> JsonObject:
    return {"type": f"response.{kind}", "output_index": index, "item_id": "any", "content_index": 0, **fields}


RESPONSES: list[Event] = [
    {"type": "response.created", "response": response(status="in_progress")},
    {"type": "response.in_progress", "response": response(status="in_progress")},
    make_event("output_item.added", 0, item={"id": "msg_1", "type": "message", "role": "assistant"}),
    make_event("output_text.delta", 0, delta="é👍"),
    make_event("output_text.done", 0, text="é👍"),
    make_event("output_item.done", 0, item=text_item("é👍")),
    make_event("refusal.delta", 0, delta="no"),
    make_event("output_item.added", 1, item={**FUNCTION, "arguments": ""}),
    make_event("function_call_arguments.delta", 1, delta='{"a":1}'),
    make_event("function_call_arguments.done", 1, arguments='{"a":1}'),
    make_event("output_item.done", 1, item=FUNCTION),
    make_event("reasoning_summary_text.delta", 2, summary_index=0, delta="hm"),
    make_event("output_item.done", 2, item={**REASONING, "encrypted_content": "e"}),
    make_event("output_item.done", 3, item=SEARCH),
    make_event("output_text.annotation.added", 0, annotation={"type": "url_citation", "url": "http://x", "title": "X"}),
    {"type": "response.completed", "response": response(text_item("é👍"), FUNCTION)},
    {"type": "response.incomplete", "response": response(status="incomplete")},
    {"type": "response.failed", "response": response(status="failed", error={"code": "x", "message": "broken"})},
]
EVENTS = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES}


def pieces(upstream: str) -> st.SearchStrategy[list[Event]]:
    """Any of its events in any order, mostly begun as it should be."""
    events = EVENTS[upstream]
    rest = st.lists(st.sampled_from(events), max_size=14)
    return st.one_of(rest, rest.map(lambda drawn: [events[0], *drawn]), rest.map(lambda drawn: [*drawn, events[-1]]))


def is_legal(client: str, body: bytes) -> bool:
    readers: tuple[Callable[[], object], ...] = (
        lambda: fold_events(client, body),
        lambda: GRAMMARS[client].fold_broken(body),
    )
    for read in readers:
        try:
            read()
        except (Illegal, KeyError, IndexError, AttributeError):
            continue
        return True
    return False


PAIRS = [(client, upstream) for client in PROTOCOLS for upstream in PROTOCOLS if client != upstream]


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
def test_whatever_is_streamed_the_client_reads_something_legal(gate: Rig, client: str, upstream: str) -> None:
    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(pieces(upstream), st.sampled_from([0, 0, 7]))
    def holds(events: list[Event], cut: int) -> None:
        gate.play(upstream, Answer(sse(*events), cut=cut))
        answer = gate.ask(client, upstream, stream=True)
        if answer.status == 200:
            assert is_legal(client, answer.body), (events, answer.body)
        else:
            assert answer.status in (429, 500, 502, 503, 529), answer.body
            assert answer.json["error"]["message"]

    trips = gate.gateway.app.gateway.guard_trips
    holds()
    assert gate.gateway.app.gateway.guard_trips == trips
