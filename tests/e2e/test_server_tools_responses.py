"""Web search and fetch that the gateway runs for Responses clients, judged by OpenAI's SDK and the stream's grammar."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from openai.types.responses import Response, ResponseFunctionWebSearch, ResponseOutputMessage, ResponseOutputText
from openai.types.responses.response_function_web_search import ActionOpenPage, ActionSearch
from openai.types.responses.response_output_text import AnnotationURLCitation

import grammar_responses
from e2e.search_scene import (
    FOUND,
    OTHER,
    SEARCHES,
    URL,
    SearchScene,
    calls,
    fetches,
    says,
    searches,
)
from fakes.service import json_answer
from fakes.upstream import Gate
from narrowing import expect
from scripting.replies import Ending, ScriptedReply, Text
from wire_json import JsonObject

SOURCES = "web_search_call.action.sources"
SEARCH: JsonObject = {"type": "web_search"}
OWN = {"type": "function", "name": "web_search", "parameters": {"type": "object", "properties": {}}}
ANSWERS = says(f"🐼 See [One]({URL}) and [Two]({OTHER}), [x](https://no.example/).")
LIFECYCLE = [
    "response.output_item.added",
    "response.web_search_call.in_progress",
    "response.web_search_call.searching",
    "response.web_search_call.completed",
    "response.output_item.done",
]
over_all = pytest.mark.parametrize("upstream", ["chat", "messages", "responses", "kiro"])


def list_searches(response: Response) -> list[ResponseFunctionWebSearch]:
    return [item for item in response.output if isinstance(item, ResponseFunctionWebSearch)]


def list_offered(request: JsonObject) -> list[str]:
    """Return the names of the functions in a Chat or Responses request."""
    return [tool.get("function", tool)["name"] for tool in request.get("tools") or ()]


def count_searches(response: Response) -> object:
    usage = response.model_dump(warnings=False)["tool_usage"]
    return usage and usage["web_search"]["num_requests"]


@over_all
def test_a_search_passes_through_its_lifecycle_between_two_messages(scene: SearchScene, upstream: str) -> None:
    there = scene.on(upstream).play(SEARCHES, ANSWERS)
    events, response = there.respond()
    assert [item.type for item in response.output] == ["message", "web_search_call", "message"]
    assert [event["type"] for event in events if event.get("output_index") == 1] == LIFECYCLE
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events].count("response.created") == 1
    [item] = list_searches(response)
    assert (item.id[:3], item.status) == ("ws_", "completed")
    assert item.action == ActionSearch(type="search", query="pandas", queries=["pandas"])
    assert len(scene.searched) == 1


@over_all
def test_a_whole_reply_is_the_stream_folded(scene: SearchScene, upstream: str) -> None:
    read: dict[bool, Callable[[bytes], JsonObject]] = {True: grammar_responses.fold, False: grammar_responses.whole}
    replies = []
    for stream, fold in read.items():
        reply = (
            scene.on(upstream)
            .play(SEARCHES, ANSWERS)
            .ask("responses", stream=stream, tools=[SEARCH], include=[SOURCES])
        )
        assert reply.status == 200, reply.body
        replies.append({**fold(reply.body), "completed_at": 0})
    assert replies[0] == replies[1]


def test_the_client_sees_a_search_begin_before_it_has_ended(scene: SearchScene) -> None:
    shown = threading.Event()
    scene.play(SEARCHES, ANSWERS).script_search(replace(json_answer(FOUND), gate=Gate(shown)))
    types: list[str] = []
    with scene.sdk.openai.responses.stream(
        model=scene.model, input="pandas?", tools=[{"type": "web_search"}]
    ) as stream:
        for event in stream:
            types.append(event.type)
            if event.type == "response.web_search_call.searching":
                shown.set()  # else the search would not return
    begun, ended = (types.index(f"response.web_search_call.{step}") for step in ("searching", "completed"))
    assert types.index("response.output_text.delta") < begun < ended
    assert "response.web_search_call.failed" not in types


def test_sources_are_sent_only_where_they_are_requested_which_is_no_loss(scene: SearchScene) -> None:
    _, response = scene.play(SEARCHES, ANSWERS).respond(include=[SOURCES])
    assert scene.sdk.headers["x-dragoman-loss"] == "0"
    action = expect(ActionSearch, list_searches(response)[0].action)
    assert [source.url for source in action.sources or ()] == [URL, OTHER]
    _, response = scene.play(SEARCHES, ANSWERS).respond()
    assert "sources" not in list_searches(response)[0].action.model_dump(exclude_unset=True, warnings=False)


def test_links_to_sources_are_annotations_with_offsets_in_characters(scene: SearchScene) -> None:
    events, response = scene.play(SEARCHES, ANSWERS).respond()
    part = expect(ResponseOutputText, expect(ResponseOutputMessage, response.output[2]).content[0])
    cited = [note for note in part.annotations if isinstance(note, AnnotationURLCitation)]
    assert [(note.url, note.title) for note in cited] == [(URL, "One"), (OTHER, OTHER)]
    places = [part.text[note.start_index : note.end_index] for note in cited]
    assert places == [f"[One]({URL})", f"[Two]({OTHER})"]
    types = [event["type"] for event in events]
    added = [at for at, type_ in enumerate(types) if type_ == "response.output_text.annotation.added"]
    assert [events[at]["annotation_index"] for at in added] == [0, 1]
    assert max(added) < len(types) - 1 - types[::-1].index("response.output_text.done")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, count_searches(response)) == (40, 12, 1)


def test_a_failed_search_has_the_status_failed_and_no_completed_event(scene: SearchScene) -> None:
    for status in (500, 403, 429):
        scene.play(SEARCHES, ANSWERS).script_search(json_answer({}, status))
        events, response = scene.respond()
        assert [item.status for item in list_searches(response)] == ["failed"], status
        about = [event["type"] for event in events if event.get("output_index") == 1]
        assert about == [step for step in LIFECYCLE if not step.endswith("call.completed")], status
        assert (response.status, count_searches(response)) == ("completed", None), status


def test_every_search_is_an_item_in_the_order_of_the_calls(scene: SearchScene) -> None:
    both = calls(("c1", "web_search", {"query": "first"}), ("c2", "web_search", {"query": "second"}))
    _, response = scene.play(both, ANSWERS).respond()
    assert [expect(ActionSearch, item.action).query for item in list_searches(response)] == ["first", "second"]
    assert count_searches(response) == 2
    _, response = scene.play(SEARCHES, searches("again", "call_2"), ANSWERS).respond()
    assert [item.type for item in response.output] == ["message", "web_search_call"] * 2 + ["message"]


def test_max_tool_calls_counts_searches_and_the_last_round_has_none(scene: SearchScene) -> None:
    _, response = scene.play(SEARCHES, searches("again", "call_2"), ANSWERS).respond(max_tool_calls=1)
    assert [item.status for item in list_searches(response)] == ["completed", "failed"]
    assert [bool(request.get("tools")) for request in scene.sent] == [True, True, False]
    assert len(scene.searched) == 1
    assert scene.sdk.headers["x-dragoman-loss"] == "0"


def test_every_type_of_the_tool_is_run(scene: SearchScene) -> None:
    for type_ in ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"):
        tool = {"type": type_}
        _, response = scene.play(SEARCHES, ANSWERS).respond(tools=[tool], tool_choice=tool)
        assert len(list_searches(response)) == 1, type_
        first, second = scene.sent
        assert first["tool_choice"] == {"type": "function", "function": {"name": "web_search"}}, type_
        assert second.get("tool_choice", "auto") == "auto", type_


def test_a_client_function_of_the_same_name_is_never_taken_for_the_search(scene: SearchScene) -> None:
    scene.play(calls(("call_1", "gateway_web_search", {"query": "x"})), ANSWERS)
    _, response = scene.respond(tools=[OWN, SEARCH])
    assert list_offered(scene.sent[0]) == ["web_search", "gateway_web_search"]
    assert len(list_searches(response)) == 1
    _, response = scene.play(calls(("call_1", "web_search", {}))).respond(tools=[OWN, SEARCH])
    assert [item.type for item in response.output] == ["message", "function_call"]
    assert scene.searched == []


def test_allowed_tools_and_the_name_of_the_search_move_together(scene: SearchScene) -> None:
    there, again = scene.on("responses"), calls(("call_1", "gateway_web_search", {"query": "x"}))
    own = {"type": "function", "name": "web_search"}
    rows: list[tuple[list[JsonObject], set[str]]] = [
        ([SEARCH], {"gateway_web_search"}),
        ([own], {"web_search"}),
        ([own, SEARCH], {"web_search", "gateway_web_search"}),
    ]
    for allowed, names in rows:
        choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
        there.play(again, ANSWERS).respond(tools=[OWN, SEARCH], tool_choice=choice)
        first, second = (request["tool_choice"] for request in there.sent)
        for chosen in (first, second):
            assert {tool["name"] for tool in chosen["tools"]} == names, allowed
        assert (first["mode"], second["mode"]) == ("required", "auto"), allowed
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}
    there.play(again, again, ANSWERS).respond(tools=[OWN, SEARCH], tool_choice=choice, max_tool_calls=1)
    last = there.sent[2]
    assert (list_offered(last), last["tool_choice"]) == (["web_search"], "none"), "no tool that it is not offered"


def test_a_page_is_an_opened_page_and_counts_as_no_search(scene: SearchScene) -> None:
    scene.play(SEARCHES, fetches(id="call_2"), ANSWERS)
    events, response = scene.respond(tools=[SEARCH, {"type": "web_fetch"}])
    assert [item.action for item in list_searches(response)] == [
        ActionSearch(type="search", query="pandas", queries=["pandas"]),
        ActionOpenPage(type="open_page", url=URL),
    ]
    assert [event["type"] for event in events if event.get("output_index") == 2] == LIFECYCLE
    assert count_searches(response) == 1
    assert "Pandas eat bamboo." in scene.sent[2]["messages"][-1]["content"]
    _, response = scene.play(fetches(), ANSWERS).respond(tools=[{"type": "web_fetch"}])
    assert [item.status for item in list_searches(response)] == ["failed"], "the conversation does not name the page"
    assert scene.fetched == []


def test_a_failure_after_the_search_ends_the_same_stream(scene: SearchScene) -> None:
    there = scene.on("messages").play(SEARCHES, ScriptedReply((Text("So"),), ending=Ending.ERROR))
    text, error = grammar_responses.fold_broken(there.ask("responses", stream=True, tools=[SEARCH]).body)
    assert (text, error["code"]) == ("Let me look. So", "server_error")


def test_the_context_size_and_domains_decide_which_results_the_model_reads(scene: SearchScene) -> None:
    eight = {"results": [{"url": f"https://{name}.example/", "title": name, "content": "."} for name in "abcdefgh"]}
    for size, shown in {"low": 3, "medium": 6, "high": 8, None: 8}.items():
        scene.play(SEARCHES, ANSWERS).script_search(json_answer(eight))
        scene.respond(tools=[SEARCH if size is None else SEARCH | {"search_context_size": size}])
        assert scene.sent[1]["messages"][-1]["content"].count("\nURL: ") == shown, size
    scene.play(SEARCHES, ANSWERS).respond(tools=[SEARCH | {"filters": {"allowed_domains": ["b.example"]}}])
    result = scene.sent[1]["messages"][-1]["content"]
    assert OTHER in result
    assert URL not in result


def test_settings_that_a_search_cannot_follow_are_approximated(scene: SearchScene) -> None:
    rows: list[tuple[JsonObject, list[str]]] = [
        ({"external_web_access": True}, []),
        ({"external_web_access": False}, ["/tools/0/external_web_access"]),
        ({"search_content_types": ["text", "image"]}, ["/tools/0/search_content_types"]),
        ({"user_location": {"type": "approximate"}}, []),
        ({"user_location": {"type": "approximate", "city": "Rome"}}, ["/tools/0/user_location"]),
    ]
    for setting, losses in rows:
        reply = scene.play(SEARCHES, ANSWERS).ask("responses", stream=True, tools=[SEARCH | setting])
        assert [path for path, _ in reply.losses] == losses, setting
