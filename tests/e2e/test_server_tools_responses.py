"""Web search and fetch that the gateway runs for Responses clients, judged by OpenAI's SDK and the stream's grammar."""

import json
import threading
from collections.abc import Iterator

import pytest
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from openai.types.responses.response_function_web_search import ActionOpenPage, ActionSearch
from openai.types.responses.response_output_text import AnnotationURLCitation

import grammar_responses
from e2e.responses_tools_rig import (
    ANSWERS,
    FOUND,
    SEARCHES,
    SOURCES,
    UPSTREAMS,
    Scene,
    ask,
    calls,
    list_offered,
    searches,
    tools_rigged,
)
from fakes.upstream import Answer, Gate
from narrowing import expect
from scripting.replies import Ending, ScriptedReply, Text, ToolCall
from wire_json import JsonObject

OWN = {"type": "function", "name": "web_search", "parameters": {"type": "object", "properties": {}}}
LIFECYCLE = [
    "response.output_item.added",
    "response.web_search_call.in_progress",
    "response.web_search_call.searching",
    "response.web_search_call.completed",
    "response.output_item.done",
]
over_all = pytest.mark.parametrize("upstream", UPSTREAMS)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with tools_rigged(tmp_path_factory.mktemp("tools")) as shared:
        yield shared


@over_all
def test_a_search_passes_through_its_lifecycle_between_two_messages(scene: Scene, upstream: str) -> None:
    scene.play(upstream, SEARCHES, ANSWERS)
    events, response = scene.stream(upstream)
    assert [item.type for item in response.output] == ["message", "web_search_call", "message"]
    about = [event["type"] for event in events if event.get("output_index") == 1]
    assert about == LIFECYCLE
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events].count("response.created") == 1
    [item] = searches(response)
    assert item.id.startswith("ws_")
    assert item.status == "completed"
    assert item.action == ActionSearch(type="search", query="pandas", queries=["pandas"])
    assert len(scene.searxng.requests) == 1


def test_the_client_sees_a_search_begin_before_it_has_ended(scene: Scene) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    shown = threading.Event()
    scene.script_search(Answer(json.dumps(FOUND).encode(), content_type="application/json", gate=Gate(shown)))
    types: list[str] = []
    with scene.sdk.openai.responses.stream(**ask("chat")) as stream:
        for event in stream:
            types.append(event.type)
            if event.type == "response.web_search_call.searching":
                shown.set()  # else the search would not return
    begun, ended = (types.index(f"response.web_search_call.{step}") for step in ("searching", "completed"))
    assert types.index("response.output_text.delta") < begun < ended
    assert "response.web_search_call.failed" not in types


@over_all
def test_a_whole_reply_is_the_stream_folded(scene: Scene, upstream: str) -> None:
    scene.play(upstream, SEARCHES, ANSWERS)
    folded = grammar_responses.fold(scene.post(upstream, stream=True, include=[SOURCES]))
    scene.play(upstream, SEARCHES, ANSWERS)
    whole = grammar_responses.whole(scene.post(upstream, include=[SOURCES]))
    assert {**whole, "completed_at": 0} == {**folded, "completed_at": 0}


def test_sources_are_sent_only_where_they_are_requested(scene: Scene) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    _, response = scene.stream("chat", include=[SOURCES])
    action = expect(ActionSearch, searches(response)[0].action)
    assert [source.url for source in action.sources or ()] == [found["url"] for found in FOUND["results"]]
    scene.play("chat", SEARCHES, ANSWERS)
    _, response = scene.stream("chat")
    assert "sources" not in searches(response)[0].action.model_dump(exclude_unset=True, warnings=False)


def test_a_request_for_sources_is_no_loss(scene: Scene) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    scene.stream("chat", include=[SOURCES])
    assert scene.sdk.headers["x-dragoman-loss"] == "0"


def test_links_to_sources_are_annotations_with_offsets_in_characters(scene: Scene) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    events, response = scene.stream("chat")
    part = expect(ResponseOutputText, expect(ResponseOutputMessage, response.output[2]).content[0])
    cited = [note for note in part.annotations if isinstance(note, AnnotationURLCitation)]
    assert [(note.url, note.title) for note in cited] == [
        ("https://a.example/1", "One"),
        ("https://b.example/2", "Two"),
    ]
    assert [part.text[note.start_index : note.end_index] for note in cited] == [
        "[One](https://a.example/1)",
        "[Two](https://b.example/2)",
    ]
    types = [event["type"] for event in events]
    added = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    assert [event["annotation_index"] for event in added] == [0, 1]
    assert max(at for at, type_ in enumerate(types) if type_.endswith("annotation.added")) < (
        len(types) - 1 - types[::-1].index("response.output_text.done")
    )


def test_usage_is_summed_over_rounds_and_counts_searches(scene: Scene) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    _, response = scene.stream("chat")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (40, 12)
    assert response.model_dump(warnings=False)["tool_usage"]["web_search"] == {"num_requests": 1}


@pytest.mark.parametrize("status", [500, 403, 429])
def test_a_failed_search_has_the_status_failed_and_no_completed_event(scene: Scene, status: int) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    scene.script_search(Answer(b"{}", status=status, content_type="application/json"))
    events, response = scene.stream("chat")
    assert [item.status for item in searches(response)] == ["failed"]
    about = [event["type"] for event in events if event.get("output_index") == 1]
    assert about == [step for step in LIFECYCLE if not step.endswith("call.completed")]
    assert response.status == "completed"
    assert response.model_dump(warnings=False)["tool_usage"] is None


def test_two_searches_of_one_round_are_two_items_in_the_order_of_the_calls(scene: Scene) -> None:
    both = (ToolCall("c1", "web_search", '{"query": "first"}'), ToolCall("c2", "web_search", '{"query": "second"}'))
    scene.play("chat", calls(*both), ANSWERS)
    _, response = scene.stream("chat")
    found = [expect(ActionSearch, item.action).query for item in searches(response)]
    assert found == ["first", "second"]
    assert response.model_dump(warnings=False)["tool_usage"]["web_search"] == {"num_requests": 2}


def test_searches_of_two_rounds_are_two_items(scene: Scene) -> None:
    again = calls(ToolCall("call_2", "web_search", '{"query": "again"}'))
    scene.play("chat", SEARCHES, again, ANSWERS)
    _, response = scene.stream("chat")
    assert [item.type for item in response.output] == ["message", "web_search_call"] * 2 + ["message"]


def test_max_tool_calls_counts_searches_and_the_last_round_has_none(scene: Scene) -> None:
    again = calls(ToolCall("call_2", "web_search", '{"query": "again"}'))
    scene.play("chat", SEARCHES, again, ANSWERS)
    _, response = scene.stream("chat", max_tool_calls=1)
    assert [item.status for item in searches(response)] == ["completed", "failed"]
    assert [bool(request.get("tools")) for request in scene.list_sent("chat")] == [True, True, False]
    assert len(scene.searxng.requests) == 1
    assert scene.sdk.headers["x-dragoman-loss"] == "0"


@pytest.mark.parametrize(
    "type_", ["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"]
)
def test_every_type_of_the_tool_is_run(scene: Scene, type_: str) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    _, response = scene.stream("chat", tools=[{"type": type_}], tool_choice={"type": type_})
    assert len(searches(response)) == 1
    first, second = scene.list_sent("chat")
    assert first["tool_choice"] == {"type": "function", "function": {"name": "web_search"}}
    assert second.get("tool_choice", "auto") == "auto"


def test_a_client_function_of_the_same_name_is_never_taken_for_the_search(scene: Scene) -> None:
    scene.play("chat", calls(ToolCall("call_1", "gateway_web_search", '{"query": "x"}')), ANSWERS)
    _, response = scene.stream("chat", tools=[OWN, {"type": "web_search"}])
    assert list_offered(scene.list_sent("chat")[0]) == ["web_search", "gateway_web_search"]
    assert len(searches(response)) == 1
    scene.play("chat", calls(ToolCall("call_1", "web_search", "{}")))
    _, response = scene.stream("chat", tools=[OWN, {"type": "web_search"}])
    assert [item.type for item in response.output] == ["message", "function_call"]
    assert scene.searxng.requests == []


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        ([{"type": "web_search"}], {"gateway_web_search"}),
        ([{"type": "function", "name": "web_search"}], {"web_search"}),
        ([{"type": "function", "name": "web_search"}, {"type": "web_search"}], {"web_search", "gateway_web_search"}),
    ],
)
def test_allowed_tools_and_the_name_of_the_search_move_together(
    scene: Scene, allowed: list[JsonObject], names: set[str]
) -> None:
    scene.play("responses", calls(ToolCall("call_1", "gateway_web_search", '{"query": "x"}')), ANSWERS)
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    scene.stream("responses", tools=[OWN, {"type": "web_search"}], tool_choice=choice)
    first, second = (request["tool_choice"] for request in scene.list_sent("responses"))
    assert {tool["name"] for tool in first["tools"]} == {tool["name"] for tool in second["tools"]} == names
    assert (first["mode"], second["mode"]) == ("required", "auto")


def test_the_last_round_names_no_tool_that_it_is_not_offered(scene: Scene) -> None:
    again = calls(ToolCall("call_2", "gateway_web_search", '{"query": "again"}'))
    scene.play("responses", again, again, ANSWERS)
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
    scene.stream("responses", tools=[OWN, {"type": "web_search"}], tool_choice=choice, max_tool_calls=1)
    last = scene.list_sent("responses")[2]
    assert list_offered(last) == ["web_search"]
    assert last["tool_choice"] == "none"


def test_a_page_is_an_opened_page_and_counts_as_no_search(scene: Scene) -> None:
    fetches = calls(ToolCall("call_2", "web_fetch", '{"url": "https://a.example/1"}'))
    scene.play("chat", SEARCHES, fetches, ANSWERS)
    events, response = scene.stream("chat", tools=[{"type": "web_search"}, {"type": "web_fetch"}])
    assert [item.action for item in searches(response)] == [
        ActionSearch(type="search", query="pandas", queries=["pandas"]),
        ActionOpenPage(type="open_page", url="https://a.example/1"),
    ]
    assert [event["type"] for event in events if event.get("output_index") == 3] == LIFECYCLE
    assert response.model_dump(warnings=False)["tool_usage"]["web_search"] == {"num_requests": 1}
    assert "All of one." in scene.list_sent("chat")[2]["messages"][-1]["content"]


def test_a_page_that_the_conversation_does_not_name_is_not_opened(scene: Scene) -> None:
    scene.play("chat", calls(ToolCall("call_1", "web_fetch", '{"url": "https://a.example/1"}')), ANSWERS)
    _, response = scene.stream("chat", tools=[{"type": "web_fetch"}])
    assert [item.status for item in searches(response)] == ["failed"]
    assert scene.searxng.requests == []


def test_a_failure_after_the_search_ends_the_same_stream(scene: Scene) -> None:
    broken = ScriptedReply((Text("So"),), ending=Ending.ERROR)
    scene.play("messages", SEARCHES, broken)
    text, error = grammar_responses.fold_broken(scene.post("messages", stream=True))
    assert text == "Let me look. So"
    assert error["code"] == "server_error"


@pytest.mark.parametrize(("size", "shown"), [("low", 3), ("medium", 6), ("high", 8), (None, 8)])
def test_the_context_size_decides_how_many_results_the_model_reads(scene: Scene, size: str | None, shown: int) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    tool = {"type": "web_search"} if size is None else {"type": "web_search", "search_context_size": size}
    scene.stream("chat", tools=[tool])
    result = scene.list_sent("chat")[1]["messages"][-1]
    assert result["content"].count("\nURL: ") == shown


def test_only_allowed_domains_are_shown(scene: Scene) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    scene.stream("chat", tools=[{"type": "web_search", "filters": {"allowed_domains": ["b.example"]}}])
    result = scene.list_sent("chat")[1]["messages"][-1]["content"]
    assert "https://b.example/2" in result
    assert "https://a.example/1" not in result


@pytest.mark.parametrize(
    ("setting", "loss"),
    [
        ({"external_web_access": True}, ""),
        ({"external_web_access": False}, "/tools/0/external_web_access"),
        ({"search_content_types": ["text", "image"]}, "/tools/0/search_content_types"),
        ({"user_location": {"type": "approximate"}}, ""),
        ({"user_location": {"type": "approximate", "city": "Rome"}}, "/tools/0/user_location"),
    ],
)
def test_settings_that_a_search_cannot_follow_are_approximated(scene: Scene, setting: JsonObject, loss: str) -> None:
    scene.play("chat", SEARCHES, ANSWERS)
    scene.stream("chat", tools=[{"type": "web_search", **setting}], extra_headers={"x-dragoman-explain": "1"})
    assert scene.sdk.headers["x-dragoman-loss"] == ("1" if loss else "0")
    assert loss in scene.sdk.headers["x-dragoman-loss-detail"]
