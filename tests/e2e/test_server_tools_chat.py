"""Web search for Chat clients: annotations and nothing else; and replies that Anthropic pauses, for all clients."""

from collections.abc import Iterator

import pytest
from openai.types.chat import ChatCompletionChunk

from asking import make_body
from e2e.search_scene import (
    ANSWERS,
    CHAT_ANSWERS,
    HIT,
    SEARCHES,
    URL,
    SearchScene,
    calls,
    run_scene,
    says,
    searches,
    vendor_search,
    write_message,
)
from fakes.service import json_answer
from wire_json import JsonObject

LINK = f"[One]({URL})"
TEXT = f"Let me look. See {LINK} and [x](https://no.example/)."
WEATHER: JsonObject = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
BOTH = calls(("call_1", "web_search", {"query": "x"}), ("call_2", "get_weather", {"city": "Rome"}))


def read_chunks(scene: SearchScene, **more: object) -> list[ChatCompletionChunk]:
    user = {"role": "user", "content": "pandas?"}
    request: JsonObject = {"model": scene.model, "messages": [user], "web_search_options": {}, **more}
    return list(
        scene.sdk.openai.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    )


def deltas(events: list[ChatCompletionChunk]) -> list[JsonObject]:
    return [choice.delta.model_dump(exclude_none=True) for event in events for choice in event.choices]


def last_finish(events: list[ChatCompletionChunk]) -> str | None:
    return [choice.finish_reason for event in events for choice in event.choices][-1]


def annotation(start: int) -> JsonObject:
    place = {"url": URL, "title": "One", "start_index": start, "end_index": start + len(LINK)}
    return {"type": "url_citation", "url_citation": place}


def test_a_stream_has_one_chunk_of_annotations_before_the_finish_reason(scene: SearchScene) -> None:
    events = read_chunks(scene.play(SEARCHES, ANSWERS))
    seen = deltas(events)
    assert "".join(delta.get("content") or "" for delta in seen) == TEXT
    assert [place for place, delta in enumerate(seen) if "annotations" in delta] == [len(seen) - 2]
    assert seen[-2]["annotations"] == [annotation(TEXT.index(LINK))]
    assert last_finish(events) == "stop"
    assert not any("tool_calls" in delta for delta in seen)
    assert len({event.id for event in events}) == 1
    assert sum(delta.get("role") == "assistant" for delta in seen) == 1
    counts = events[-1].usage
    assert counts is not None
    assert (counts.prompt_tokens, counts.completion_tokens) == (40, 12)


def test_the_stream_helper_and_a_whole_reply_have_text_and_annotations(scene: SearchScene) -> None:
    for stream in (True, False):
        reply = scene.play(SEARCHES, ANSWERS).complete(stream=stream)
        message = reply.choices[0].message
        assert (message.content, reply.choices[0].finish_reason) == (TEXT, "stop"), stream
        assert message.tool_calls is None, stream
        assert reply.usage is not None
        assert reply.usage.total_tokens == 52, stream
    assert [each.model_dump() for each in message.annotations or []] == [annotation(TEXT.index(LINK))]


def test_offsets_count_code_points(scene: SearchScene) -> None:
    rounds = searches(text="🐼 é "), says(f"🐼🐼 {LINK} 🐼")
    expected = [annotation(f"🐼 é 🐼🐼 {LINK} 🐼".index(LINK))]
    assert [delta["annotations"] for delta in deltas(read_chunks(scene.play(*rounds))) if "annotations" in delta] == [
        expected
    ]
    message = scene.play(*rounds).complete().choices[0].message
    assert [each.model_dump() for each in message.annotations or []] == expected


def test_the_request_is_translated_though_the_protocol_is_the_same(scene: SearchScene) -> None:
    read_chunks(scene.play(SEARCHES, ANSWERS), tools=[WEATHER], web_search_options={"search_context_size": "low"})
    first, second = scene.sent
    assert "web_search_options" not in first
    assert [tool["function"]["name"] for tool in first["tools"]] == ["get_weather", "web_search"]
    assert second["messages"][1]["tool_calls"][0]["id"] == second["messages"][2]["tool_call_id"]


def test_a_search_beside_a_call_of_the_client_shows_the_clients_call_alone(scene: SearchScene) -> None:
    reply = scene.play(BOTH).complete(tools=[WEATHER])
    found = [call.model_dump() for call in reply.choices[0].message.tool_calls or []]
    assert [(call["id"], call["function"]["name"]) for call in found] == [("call_2", "get_weather")]
    assert reply.choices[0].finish_reason == "tool_calls"
    events = read_chunks(scene.play(BOTH), tools=[WEATHER])
    named = [call["function"].get("name") for delta in deltas(events) for call in delta.get("tool_calls", [])]
    assert [name for name in named if name] == ["get_weather"]
    assert last_finish(events) == "tool_calls"


def test_a_search_that_the_gateway_runs_is_no_loss_and_one_that_fails_is_not_seen(scene: SearchScene) -> None:
    reply = scene.play(searches(text=""), ANSWERS).ask("chat", web_search_options={})
    assert (reply.headers["x-dragoman-loss"], reply.headers.get("x-dragoman-loss-detail", "[]")) == ("0", "[]")
    scene.play(SEARCHES, ANSWERS).script_search(json_answer({}, 500))
    message = scene.complete().choices[0].message
    assert (message.content, message.annotations or []) == (TEXT, [])
    assert "Error (unavailable)" in scene.sent[1]["messages"][2]["content"]


@pytest.fixture(scope="module")
def unconfigured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with run_scene(tmp_path_factory.mktemp("unconfigured"), backend="") as scene:
        yield scene


def test_bytes_pass_where_the_gateway_does_not_search(scene: SearchScene, unconfigured: SearchScene) -> None:
    options: JsonObject = {"web_search_options": {"search_context_size": "low"}}
    for row, (there, fields) in {"no backend": (unconfigured, options), "no search": (scene, {})}.items():
        reply = there.play(ANSWERS).ask("chat", stream=True, **fields)
        assert there.got_bytes(make_body("chat", there.model, "pandas?", stream=True) | fields), row
        assert reply.body == CHAT_ANSWERS, row


# Replies of Anthropic's own tools, and those that it pauses

THOUGHT: JsonObject = {"type": "thinking", "thinking": "Hm.", "signature": "sig-1+/="}
SECOND_THOUGHT: JsonObject = {"type": "thinking", "thinking": "More.", "signature": "sig-2"}
CITED: JsonObject = {
    "type": "web_search_result_location",
    "url": "https://v.example/",
    "title": "V",
    "encrypted_index": "vendor-index",
    "cited_text": "c",
}
LOOK: JsonObject = {"type": "text", "text": "Look: "}
FIRST: list[JsonObject] = [
    *(THOUGHT, LOOK, *vendor_search("srvtoolu_1", "q1", [HIT]), SECOND_THOUGHT),
    {"type": "text", "text": "one, ", "citations": [CITED]},
]
LAST: list[JsonObject] = [*vendor_search("srvtoolu_2", "q2", [HIT]), {"type": "text", "text": "two."}]
PAUSES = write_message(FIRST, "pause_turn", 10, 5), write_message(LAST, "end_turn", 30, 7)


@pytest.fixture
def native(unconfigured: SearchScene) -> SearchScene:
    return unconfigured.on("anthropic")


def test_a_messages_upstream_with_the_tool_searches_itself(scene: SearchScene) -> None:
    blocks = [*vendor_search(content=[HIT]), {"type": "text", "text": "So it is.", "citations": [CITED]}]
    native = scene.on("anthropic").play(write_message(blocks))
    seen = deltas(read_chunks(native))
    assert native.searched == []
    assert native.sent[0]["tools"][0]["type"].startswith("web_search_")
    cited = {"url": "https://v.example/", "title": "V", "start_index": 0, "end_index": 9}
    annotations = [delta["annotations"] for delta in seen if "annotations" in delta]
    assert annotations == [[{"type": "url_citation", "url_citation": cited}]]


@pytest.mark.parametrize("stream", [True, False])
def test_a_paused_reply_continues_in_the_same_reply(native: SearchScene, stream: bool) -> None:
    completion = native.play(*PAUSES).complete(stream=stream, reasoning_effort="low")
    assert native.gateway.outcome(native.sdk.headers["x-request-id"]).rounds == 2
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("Look: one, two.", "stop")
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (40, 12)
    events, response = native.play(*PAUSES).respond(stream=stream)
    seen = [event["type"] for event in events]
    assert seen.count("response.created") == seen.count("response.completed") == int(stream)
    assert [item.type for item in response.output].count("web_search_call") == 2
    assert (response.status, response.output_text) == ("completed", "Look: one, two.")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (40, 12)


def test_the_reply_so_far_is_sent_back_unchanged(native: SearchScene) -> None:
    native.play(PAUSES[0], write_message(LAST, "pause_turn"), PAUSES[1]).complete(stream=True, reasoning_effort="low")
    first, second, third = native.sent
    assert second["messages"][:-1] == first["messages"]
    assert second["messages"][-1] == {"role": "assistant", "content": FIRST}
    assert third["messages"][-1] == {"role": "assistant", "content": [*FIRST, *LAST]}
    assert {**second, "messages": 0} == {**first, "messages": 0}
    use, result = vendor_search("srvtoolu_1", "q1", [HIT])
    ending = write_message([result, {"type": "text", "text": "two."}])
    reply = native.play(write_message([LOOK, use], "pause_turn"), ending).complete(stream=True)
    assert native.sent[1]["messages"][-1]["content"] == [LOOK, use], "a search that had not run goes without a result"
    assert reply.choices[0].message.content == "Look: two."


def test_a_reply_is_continued_five_times_at_most(native: SearchScene) -> None:
    paused = [{"type": "text", "text": "on "}, *vendor_search(content=[HIT])]
    [choice] = native.play(write_message(paused, "pause_turn")).complete(stream=True).choices
    assert len(native.sent) == 6
    assert (choice.message.content, choice.finish_reason) == ("on " * 6, "stop")


def test_a_messages_client_gets_the_pause_itself(native: SearchScene) -> None:
    assert native.play(PAUSES[0]).ask("messages", stream=True).body == PAUSES[0]
    assert len(native.sent) == 1
