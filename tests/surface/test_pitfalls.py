"""What goes wrong between two protocols, pitfall by pitfall, and the required result."""

import json

import pytest

import grammar_chat
import grammar_messages
from asking import EXPLAIN
from fakes.upstream import Answer
from rig import Rig
from scripting import JSON
from surface.reading import TOOL_ENDS, calls_in, end_in, read_broken_text, read_reply, text_in
from surface.vendor_events import (
    CHAT_END,
    CHAT_USAGE,
    CREATED,
    MESSAGES_USAGE,
    ROLE,
    STARTED,
    STOPPED,
    block,
    chunk,
    make_call_chunk,
    make_message_end,
    message,
    piece,
    response,
    sse,
    stream_chat,
    stream_messages,
    text,
    text_item,
)
from wire_json import JsonObject

others = pytest.mark.parametrize("client", ["messages", "responses"])  # than Chat
elsewhere = pytest.mark.parametrize("client", ["chat", "responses"])  # than Messages


@others
def test_an_empty_first_delta_opens_nothing(gate: Rig, client: str) -> None:
    quiet = read_reply(gate, client, "chat", stream_chat(chunk({"content": ""})))
    assert quiet["content" if client == "messages" else "output"] == []
    reply = read_reply(
        gate, client, "chat", stream_chat(chunk({"content": ""}), chunk({"content": "Hi"}), chunk({"content": ""}))
    )
    assert text_in(client, reply) == "Hi"


@others
def test_a_head_repeated_in_every_chunk_is_sent_once(gate: Rig, client: str) -> None:
    head = {"id": "t0", "type": "function", "name": "weather"}
    chunks = [chunk({"role": "assistant", "content": letter}) for letter in "Hello"]
    reply = read_reply(
        gate,
        client,
        "chat",
        stream_chat(*chunks, make_call_chunk(piece(0, '{"a":', **head)), make_call_chunk(piece(0, "1}", **head))),
    )
    assert text_in(client, reply) == "Hello"
    assert calls_in(client, reply) == [("t0", "weather", {"a": 1})]


@others
@pytest.mark.parametrize("places", [(1, 2), (3, 7), (None, None)])
def test_indices_may_start_anywhere_skip_or_be_missing(
    gate: Rig, client: str, places: tuple[int | None, int | None]
) -> None:
    chunks = []
    for number, place in enumerate(places):
        chunks.append(make_call_chunk(piece(place, "{", id=f"t{number}", type="function", name="weather")))
        chunks.append(make_call_chunk(piece(place, f'"a":{number}}}', **({} if place else {"id": f"t{number}"}))))
    reply = read_reply(gate, client, "chat", stream_chat(*chunks, finish="tool_calls"))
    assert calls_in(client, reply) == [("t0", "weather", {"a": 0}), ("t1", "weather", {"a": 1})]


@others
def test_interleaved_calls_come_apart(gate: Rig, client: str) -> None:
    opened = [make_call_chunk(piece(place, id=f"t{place}", type="function", name="weather")) for place in (0, 1)]
    pieces = [make_call_chunk(piece(place, text)) for place, text in ((0, '{"a":'), (1, "{"), (0, "1}"), (1, "}"))]
    reply = read_reply(gate, client, "chat", stream_chat(*opened, *pieces, finish="tool_calls"))
    assert calls_in(client, reply) == [("t0", "weather", {"a": 1}), ("t1", "weather", {})]


@others
def test_two_entries_for_one_call_and_a_null_delta(gate: Rig, client: str) -> None:
    both = make_call_chunk(piece(0, '{"a"', id="t0", type="function", name="weather"), piece(0, ":1}"))
    null = {**chunk({}), "choices": [{"index": 0, "delta": None, "finish_reason": None}]}
    reply = read_reply(gate, client, "chat", stream_chat(null, both, null, finish="tool_calls"))
    assert calls_in(client, reply) == [("t0", "weather", {"a": 1})]


@others
def test_another_choice_is_no_part_of_the_answer(gate: Rig, client: str) -> None:
    choices = [
        {"index": place, "delta": {"content": content}, "finish_reason": None}
        for place, content in ((1, "No"), (0, "Yes"))
    ]
    reply = read_reply(gate, client, "chat", stream_chat({**chunk({}), "choices": choices}))
    assert text_in(client, reply) == "Yes"


@pytest.mark.parametrize("client", ["chat", "messages", "responses"])
@pytest.mark.parametrize("arguments", ["", {"a": 1}])
def test_no_arguments_are_an_empty_object_and_an_object_is_serialised(
    gate: Rig, client: str, arguments: object
) -> None:
    if client == "chat":
        start = {"type": "tool_use", "id": "t0", "name": "weather", "input": arguments or {}}
        answer = stream_messages(*block(0, start), stop="tool_use")
    else:
        answer = stream_chat(
            make_call_chunk(piece(0, arguments, id="t0", type="function", name="weather")), finish="tool_calls"
        )
    reply = read_reply(gate, client, "messages" if client == "chat" else "chat", answer)
    assert calls_in(client, reply) == [("t0", "weather", arguments or {})]


@elsewhere
def test_arguments_cut_at_the_cap_are_never_repaired(gate: Rig, client: str) -> None:
    start = {"type": "tool_use", "id": "t0", "name": "weather", "input": {}}
    cut = block(0, start, {"type": "input_json_delta", "partial_json": '{"a": "unfin'})
    reply = read_reply(gate, client, "messages", stream_messages(*cut, stop="max_tokens"))
    if client == "chat":
        assert (reply["finish"], reply["calls"][0]["function"]["arguments"]) == ("length", '{"a": "unfin')
    else:
        assert (reply["status"], reply["output"][0]["arguments"]) == ("incomplete", '{"a": "unfin')


@others
def test_the_end_waits_for_the_usage_and_the_last_counts(gate: Rig, client: str) -> None:
    growing = [
        chunk({"content": "x"}, usage={**CHAT_USAGE, "completion_tokens": n, "total_tokens": 100 + n}) for n in (6, 9)
    ]
    usage = read_reply(gate, client, "chat", stream_chat(*growing))["usage"]
    assert usage["output_tokens"] == 20
    assert usage["input_tokens"] == (70 if client == "messages" else 100)
    reply = read_reply(gate, client, "chat", Answer(sse(ROLE, *growing, chunk({}, "stop"), "[DONE]")))
    assert reply["usage"]["output_tokens"] == 9


@others
def test_azures_first_chunk_begins_nothing(gate: Rig, client: str) -> None:
    filters = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []}
    reply = read_reply(
        gate, client, "chat", Answer(sse(filters, ROLE, chunk({"content": "Hi"}), chunk({}, "stop"), *CHAT_END))
    )
    assert (text_in(client, reply), reply["usage"]["output_tokens"]) == ("Hi", 20)


def test_usage_is_requested_even_if_the_client_does_not_want_it(gate: Rig) -> None:
    gate.play("messages", stream_messages(*text(0, "Hi")))
    reply = gate.ask("chat", "messages", stream=True, stream_options={"include_usage": False})
    assert grammar_chat.fold(reply.body, usage_requested=False)["content"] == "Hi"
    fake = gate.play("chat", stream_chat(chunk({"content": "Hi"})))
    gate.ask("messages", "chat", stream=True)
    assert fake.requests[-1].json["stream_options"] == {"include_usage": True}


@others
def test_a_natural_end_after_a_call_is_an_end_for_the_call(gate: Rig, client: str) -> None:
    reply = read_reply(
        gate, client, "chat", stream_chat(make_call_chunk(piece(0, "{}", id="t0", type="function", name="weather")))
    )
    assert end_in(client, reply) == TOOL_ENDS[client]


def test_an_end_for_a_call_without_one_is_a_natural_end(gate: Rig) -> None:
    ends = {"messages": "end_turn", "responses": "completed"}
    for client, end in ends.items():
        assert (
            end_in(client, read_reply(gate, client, "chat", stream_chat(chunk({"content": "x"}), finish="tool_calls")))
            == end
        )
    ends = {"chat": "stop", "responses": "completed"}
    for client, end in ends.items():
        assert (
            end_in(client, read_reply(gate, client, "messages", stream_messages(*text(0, "x"), stop="tool_use"))) == end
        )


def test_counts_stand_in_the_first_event_and_the_real_ones_in_the_last(gate: Rig) -> None:
    gate.play("chat", stream_chat(chunk({"content": "x"})))
    reply = gate.ask("messages", "chat", stream=True).body
    first = json.loads(reply.split(b"\n\n")[0].split(b"data: ")[1])
    assert first["message"]["usage"]["input_tokens"] >= 0
    assert first["message"]["usage"]["output_tokens"] == 0
    assert grammar_messages.fold(reply)["usage"]["input_tokens"] == 70


@elsewhere
def test_usage_is_cumulative_and_keeps_what_is_not_repeated(gate: Rig, client: str) -> None:
    counted = {**MESSAGES_USAGE, "output_tokens": 1}
    begun = {"type": "message_start", "message": message(stop_reason=None, usage=counted)}
    again = [{**make_message_end(), "usage": {"output_tokens": 5}}] * 2
    gate.play("messages", Answer(sse(begun, *text(0, "x"), *again, STOPPED)))
    reply = gate.ask(client, "messages", stream=True).body
    last = [json.loads(data) for data in reply.split(b"data: ")[1:] if b'"usage":{' in data][-1]
    usage = last["usage"] if client == "chat" else last["response"]["usage"]
    assert (usage["total_tokens"], list(usage.values())[:1]) == (105, [100])


def test_blocks_that_survive_are_numbered_anew(gate: Rig) -> None:
    unknown = {"type": "response.output_item.done", "output_index": 1, "item": {"type": "acme:thing", "id": "x"}}
    items = [{"type": "response.output_item.done", "output_index": n, "item": {**text_item(w), "id": f"m{n}"}}
             for n, w in ((0, "a"), (2, "b"))]  # fmt: skip
    events: list[JsonObject] = [CREATED, items[0], unknown, items[1]]
    last = {"type": "response.completed", "response": response(*(e["item"] for e in events[1:]))}
    assert text_in("messages", read_reply(gate, "messages", "responses", Answer(sse(*events, last)))) == "ab"


@others
def test_thoughts_and_words_never_overlap(gate: Rig, client: str) -> None:
    turns = [{"reasoning_content": "a"}, {"content": "b"}, {"reasoning_content": "c"}, {"content": "d"}]
    reply = read_reply(gate, client, "chat", stream_chat(*map(chunk, turns)))
    kinds = [part["type"] for part in reply["content" if client == "messages" else "output"]]
    assert kinds == (["thinking", "text"] if client == "messages" else ["reasoning", "message"]) * 2


def test_a_signature_in_two_pieces_is_one(gate: Rig) -> None:
    deltas = [
        {"type": "thinking_delta", "thinking": "hm"},
        *({"type": "signature_delta", "signature": s} for s in ("ab", "cd")),
    ]
    thought = block(0, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)
    whole = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        deltas[0],
        {"type": "signature_delta", "signature": "abcd"},
    )
    reply, scripted = (
        read_reply(gate, "responses", "messages", stream_messages(*b, *text(1, "x"))) for b in (thought, whole)
    )
    assert reply["output"][0]["encrypted_content"] == scripted["output"][0]["encrypted_content"]


@elsewhere
@pytest.mark.parametrize("hidden", [{"type": "redacted_thinking", "data": "b3BhcXVl"}, None])
def test_thoughts_without_words_are_opaque_only(gate: Rig, client: str, hidden: JsonObject | None) -> None:
    omitted = {"type": "signature_delta", "signature": "c2ln"}
    opening = hidden or {"type": "thinking", "thinking": "", "signature": ""}
    thought = block(0, opening, *(() if hidden else (omitted,)))
    reply = read_reply(gate, client, "messages", stream_messages(*thought, *text(1, "x")))
    if client == "chat":
        assert (reply["thoughts"], reply["content"]) == ("", "x")
    else:
        item = reply["output"][0]
        assert (item["type"], item["summary"]) == ("reasoning", [])
        assert item["encrypted_content"]


def test_reasoning_that_claude_did_not_sign_is_dropped_and_noted(gate: Rig) -> None:
    fake = gate.play("messages", stream_messages(*text(0, "x")))
    thought = {"role": "assistant", "content": "so", "reasoning_content": "hm"}
    content = [{"role": "user", "content": "a"}, thought, {"role": "user", "content": "b"}]
    answer = gate.ask("chat", "messages", stream=True, messages=content, headers=EXPLAIN)
    assert b"hm" not in fake.requests[-1].body
    assert any(path.startswith("/messages/1") for path, _ in answer.losses)


def test_reasoning_of_another_vendor_is_dropped_when_the_conversation_moves_to_claude(gate: Rig) -> None:
    first = read_reply(
        gate, "messages", "chat", stream_chat(chunk({"reasoning_content": "hm"}), chunk({"content": "so"}))
    )
    assert first["content"][0]["thinking"] == "hm"
    assert first["content"][0]["signature"]
    fake = gate.play("messages", stream_messages(*text(0, "x")))
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": first["content"]}]
    answer = gate.ask(
        "messages", "messages", stream=True, messages=[*turns, {"role": "user", "content": "b"}], headers=EXPLAIN
    )
    sent = json.loads(fake.requests[-1].body)["messages"][1]["content"]
    assert sent == first["content"][1:], "the rest is as the client has it"
    assert [path for path, _ in answer.losses] == ["/messages/1/content/0"]


@others
def test_an_end_without_done_is_a_success_and_one_before_the_finish_is_none(gate: Rig, client: str) -> None:
    reply = read_reply(gate, client, "chat", Answer(sse(ROLE, chunk({"content": "Hi"}), chunk({}, "stop"))))
    assert text_in(client, reply) == "Hi"
    gate.play("chat", Answer(sse(ROLE, chunk({"content": "Hi"}))))
    assert read_broken_text(client, gate.ask(client, "chat", stream=True).body) == "Hi"


@elsewhere
def test_a_message_that_never_stops_is_an_error(gate: Rig, client: str) -> None:
    gate.play("messages", Answer(sse(STARTED, *text(0, "Hi"), make_message_end())))
    assert read_broken_text(client, gate.ask(client, "messages", stream=True).body) == "Hi"


def test_a_misplaced_done_and_what_follows_are_ignored(gate: Rig) -> None:
    stray = Answer(sse(STARTED, "[DONE]", *text(0, "Hi"), make_message_end(), STOPPED, "[DONE]"))
    for client in ("chat", "responses"):
        assert text_in(client, read_reply(gate, client, "messages", stray)) == "Hi"
    after = Answer(sse(ROLE, chunk({"content": "Hi"}), chunk({}, "stop"), *CHAT_END, chunk({"content": "more"}), "?"))
    for client in ("messages", "responses"):
        assert text_in(client, read_reply(gate, client, "chat", after)) == "Hi"


@others
def test_an_error_is_a_status_before_the_first_word_and_an_event_after_it(gate: Rig, client: str) -> None:
    error = {"error": {"message": "Slow down.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
    gate.play("chat", Answer(sse(ROLE, error)))
    assert gate.ask(client, "chat", stream=True).status == 429
    gate.play("chat", Answer(json.dumps(error).encode(), content_type=JSON))
    assert gate.ask(client, "chat", stream=True).status == 429
    gate.play("chat", Answer(sse(ROLE, chunk({"content": "Hi"}), error)))
    reply = gate.ask(client, "chat", stream=True)
    assert reply.status == 200
    assert read_broken_text(client, reply.body) == "Hi"
    assert b"Slow down." in reply.body


@others
def test_a_filter_in_mid_stream_keeps_the_text_so_far(gate: Rig, client: str) -> None:
    reply = read_reply(gate, client, "chat", stream_chat(chunk({"content": "Well, "}), finish="content_filter"))
    assert text_in(client, reply) == "Well, "
    assert end_in(client, reply) == {"messages": "refusal", "responses": "incomplete"}[client]


@others
def test_another_id_or_model_in_mid_stream_is_an_error(gate: Rig, client: str) -> None:
    for change in ({"id": "chatcmpl-2"}, {"model": "x"}):
        gate.play("chat", Answer(sse(ROLE, chunk({"content": "a"}), chunk({"content": "b"}, **change), *CHAT_END)))
        assert read_broken_text(client, gate.ask(client, "chat", stream=True).body) == "a"
    late: list[JsonObject | str] = [
        {**ROLE, "id": "", "model": ""},
        chunk({"content": "Hi"}),
        chunk({}, "stop"),
        *CHAT_END,
    ]
    assert text_in(client, read_reply(gate, client, "chat", Answer(sse(*late)))) == "Hi"


@elsewhere
def test_a_fallback_of_the_vendors_own_may_change_the_model(gate: Rig, client: str) -> None:
    changed = {"type": "fallback", "from": {"model": "m"}, "to": {"model": "n"}}
    reply = read_reply(gate, client, "messages", stream_messages(*text(0, "a"), *block(1, changed), *text(2, "b")))
    assert text_in(client, reply) == "ab"


@pytest.mark.parametrize("client", ["chat", "messages"])
def test_rotating_ids_and_missing_deltas_are_sent_exactly_once(gate: Rig, client: str) -> None:
    item = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a":1}', "status": "completed"}
    rotating: list[JsonObject] = [
        CREATED,
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "id": "r1", "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "r2", "delta": '{"a"'},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "r3", "delta": ":1}"},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "id": "r4"}},
    ]
    last = {"type": "response.completed", "response": response({**item, "id": "r5"})}
    for events in ([*rotating, last], [CREATED, rotating[-1], last], [CREATED, last]):
        reply = read_reply(gate, client, "responses", Answer(sse(*events)))
        assert calls_in(client, reply) == [("c1", "weather", {"a": 1})]
        assert end_in(client, reply) == TOOL_ENDS[client]
