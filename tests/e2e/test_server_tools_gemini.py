"""Searches and pages for Gemini clients, judged by google-genai; and search over a Gemini upstream."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from google.genai import types

from asking import ask
from e2e.account_rig import KIRO_MODEL as MODEL
from e2e.account_rig import run_kiro
from e2e.search_scene import (
    FETCH,
    FOUND,
    OTHER,
    SEARCH,
    SEARCHES,
    URL,
    WEATHER,
    SearchScene,
    calls,
    fetches,
    outcomes,
    run_scene,
    says,
)
from e2e.test_replays import Kept, assert_same, debug
from e2e.test_server_tools_chat import PAUSES
from e2e.test_server_tools_kiro import ANSWERS as KIRO_ANSWERS
from e2e.test_server_tools_kiro import FOUND as KIRO_FOUND
from e2e.test_server_tools_kiro import SEARCHES as KIRO_SEARCHES
from fakes.service import json_answer
from fakes.upstream import Gate
from gateway import KEY
from sdk_replies_gemini import google_client
from wire_json import JsonObject

ANSWERS = says(f"🐼 See [One]({URL}) and [x](https://no.example/).")
GOOGLE_SEARCH = types.Tool(google_search=types.GoogleSearch())
URL_CONTEXT = types.Tool(url_context=types.UrlContext())
Reply = list[types.GenerateContentResponse]
modes = pytest.mark.parametrize("stream", [True, False])


def stream_reply(
    scene: SearchScene, tool: types.Tool = GOOGLE_SEARCH, text: str = "pandas?"
) -> Iterator[types.GenerateContentResponse]:
    config = types.GenerateContentConfig(tools=[tool])
    models = google_client(scene.gateway.url, KEY).models
    yield from models.generate_content_stream(model=scene.model, contents=text, config=config)


def reply_of(
    scene: SearchScene,
    *,
    stream: bool = True,
    tool: types.Tool = GOOGLE_SEARCH,
    text: str = "pandas?",
    id: str | None = None,
) -> Reply:
    if stream and id is None:
        return list(stream_reply(scene, tool, text))
    options = None if id is None else types.HttpOptions(headers={"x-request-id": id})
    config = types.GenerateContentConfig(tools=[tool], http_options=options)
    models = google_client(scene.gateway.url, KEY).models
    if stream:
        return list(models.generate_content_stream(model=scene.model, contents=text, config=config))
    return [models.generate_content(model=scene.model, contents=text, config=config)]


def text_of(reply: Reply) -> str:
    parts = [part for chunk in reply for part in (candidate_of(chunk).content or types.Content()).parts or ()]
    return "".join(part.text or "" for part in parts if not part.thought)


def candidate_of(chunk: types.GenerateContentResponse) -> types.Candidate:
    assert chunk.candidates is not None
    [candidate] = chunk.candidates
    return candidate


def grounding_of(reply: Reply) -> types.GroundingMetadata:
    """The metadata, which stands on the last chunk alone."""
    assert all(candidate_of(chunk).grounding_metadata is None for chunk in reply[:-1])
    metadata = candidate_of(reply[-1]).grounding_metadata
    assert metadata is not None
    return metadata


def sources_of(metadata: types.GroundingMetadata) -> list[tuple[str | None, str | None]]:
    return [(chunk.web.uri, chunk.web.title) for chunk in metadata.grounding_chunks or () if chunk.web is not None]


def page_of(reply: Reply) -> types.UrlMetadata:
    metadata = candidate_of(reply[-1]).url_context_metadata
    assert metadata is not None
    [page] = metadata.url_metadata or []
    return page


@modes
def test_a_search_is_grounding_metadata_on_the_last_chunk(scene: SearchScene, stream: bool) -> None:
    reply = reply_of(scene.play(SEARCHES, ANSWERS), stream=stream, id=f"counted-{stream}")
    text = f"Let me look. 🐼 See [One]({URL}) and [x](https://no.example/)."
    assert text_of(reply) == text
    assert candidate_of(reply[-1]).finish_reason is types.FinishReason.STOP
    assert len({chunk.response_id for chunk in reply}) == 1
    metadata = grounding_of(reply)
    assert metadata.web_search_queries == ["pandas"]
    assert sources_of(metadata) == [(URL, "One"), (OTHER, OTHER)]
    [support] = metadata.grounding_supports or []
    segment = support.segment
    assert segment is not None
    assert text.encode()[segment.start_index or 0 : segment.end_index] == f"[One]({URL})".encode()
    assert support.grounding_chunk_indices == [0]
    usage = reply[-1].usage_metadata
    assert usage is not None
    assert (usage.prompt_token_count, usage.tool_use_prompt_token_count) == (10, 30)
    assert (usage.candidates_token_count, usage.total_token_count) == (12, 52)
    counted = scene.gateway.outcome(f"counted-{stream}").usage
    assert counted is not None
    assert counted.input == 40


def test_the_search_is_offered_as_a_function_and_is_no_loss(scene: SearchScene) -> None:
    reply = scene.play(SEARCHES, ANSWERS).ask("gemini", tools=[{"googleSearch": {}}])
    assert reply.headers["x-dragoman-loss"] == "0"
    assert [tool["function"]["name"] for tool in scene.sent[0]["tools"]] == ["web_search"]
    assert len(scene.searched) == 1


@modes
def test_a_page_is_url_context_metadata_and_a_source(scene: SearchScene, stream: bool) -> None:
    for answer, supports in ((says(f"See [it]({URL})."), 1), (says("Done."), 0)):
        reply = reply_of(scene.play(fetches(), answer), stream=stream, tool=URL_CONTEXT, text=f"Read {URL}")
        page = page_of(reply)
        assert page.retrieved_url == URL
        assert page.url_retrieval_status is types.UrlRetrievalStatus.URL_RETRIEVAL_STATUS_SUCCESS
        metadata = grounding_of(reply)
        assert sources_of(metadata) == [(URL, "Pandas")], "even if it is not cited"
        assert len(metadata.grounding_supports or ()) == supports


def test_a_page_or_a_search_that_fails_is_shown_as_such(scene: SearchScene) -> None:
    reply = reply_of(scene.play(fetches("https://invented.example/"), says("No.")), tool=URL_CONTEXT)
    assert page_of(reply).url_retrieval_status is types.UrlRetrievalStatus.URL_RETRIEVAL_STATUS_ERROR
    scene.play(SEARCHES, ANSWERS).script_search(json_answer({}, 500))
    reply = reply_of(scene)
    assert candidate_of(reply[-1]).finish_reason is types.FinishReason.STOP
    assert sources_of(grounding_of(reply)) == []
    assert "unavailable" in scene.sent[1]["messages"][-1]["content"]


def test_an_empty_chunk_keeps_the_stream_alive_while_a_search_runs(tmp_path: Path) -> None:
    with run_scene(tmp_path, settings="[server]\nkeep_alive_s = 0.05") as scene:
        kept_alive = threading.Event()
        scene.play(SEARCHES, ANSWERS).script_search(replace(json_answer(FOUND), gate=Gate(kept_alive)))
        reply: Reply = []
        for chunk in stream_reply(scene):
            reply.append(chunk)
            if len([each for each in reply if text_of([each]) == ""]) >= 3:
                kept_alive.set()
    assert text_of(reply).startswith("Let me look. 🐼 See")


@modes
def test_gemini_clis_search_over_kiro_has_text_and_sources(tmp_path: Path, stream: bool) -> None:
    with run_kiro(tmp_path) as rig:
        rig.fake.found = KIRO_FOUND
        rig.play(KIRO_SEARCHES, KIRO_ANSWERS)
        reply = ask(rig.gateway, "gemini", MODEL, "pandas", stream=stream, tools=[{"googleSearch": {}}])
    chunks = reply.events if stream else [reply.json]
    last = chunks[-1]["candidates"][0]
    assert last["finishReason"] == "STOP"
    found = [chunk["web"] for chunk in last["groundingMetadata"]["groundingChunks"]]
    assert found == [{"uri": URL, "title": "One"}, {"uri": OTHER, "title": "Two"}]
    texts = [part.get("text", "") for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(texts) == f"Let me look. See [One]({URL})."


@modes
def test_a_reply_that_anthropic_pauses_continues(scene: SearchScene, stream: bool) -> None:
    native = scene.on("anthropic").play(*PAUSES)
    reply = reply_of(native, stream=stream)
    assert len(native.sent) == 2
    assert text_of(reply) == "Look: one, two."
    metadata = grounding_of(reply)
    assert metadata.web_search_queries == ["q1", "q2"]
    assert sources_of(metadata) == [("https://v.example/", "V")]


def test_the_history_of_googles_sdk_holds_what_a_search_returned(scene: SearchScene) -> None:
    config = types.GenerateContentConfig(tools=[GOOGLE_SEARCH])
    chat = google_client(scene.gateway.url, KEY).chats.create(model=scene.model, config=config)
    scene.play(SEARCHES, ANSWERS, says("More."))
    list(chat.send_message_stream("pandas?"))
    assert text_of(list(chat.send_message_stream("and?"))) == "More."
    second, later = scene.sent[1]["messages"], scene.sent[-1]["messages"]
    assert [turn["role"] for turn in later] == ["user", "assistant", "tool", "assistant", "user"]
    assert later[:3] == second


def test_a_function_of_the_client_beside_the_search_ends_the_reply(scene: SearchScene) -> None:
    scene.play(calls(("call_1", "web_search", {"query": "pandas"}), ("call_2", "get_weather", {"city": "Rome"})))
    declared: JsonObject = {"name": "get_weather", "parameters": {"type": "OBJECT"}}
    reply = scene.ask("gemini", tools=[{"googleSearch": {}}, {"functionDeclarations": [declared]}])
    [candidate] = reply.json["candidates"]
    named = [part["functionCall"]["name"] for part in candidate["content"]["parts"] if "functionCall" in part]
    assert named == ["get_weather"]
    assert candidate["groundingMetadata"]["webSearchQueries"] == ["pandas"]
    assert len(scene.sent) == 1


# A Gemini upstream: Google's own search where it works, else the gateway's


def list_offered(request: JsonObject) -> list[str]:
    """Return the functions and the tools of Google's own in a request."""
    names: list[str] = []
    for entry in request["tools"]:
        for key, value in entry.items():
            names += [each["name"] for each in value] if key == "functionDeclarations" else [key]
    return sorted(names)


def test_googles_own_search_is_used_where_it_works(scene: SearchScene) -> None:
    rows: list[tuple[str, list[JsonObject], list[str]]] = [
        ("gemini-2.5-flash", [SEARCH], ["googleSearch"]),
        ("gemini-2.5-flash", [SEARCH, FETCH], ["googleSearch", "urlContext"]),
        ("gemini-3-pro-preview", [SEARCH, WEATHER], ["get_weather", "googleSearch"]),
    ]
    for model, tools, sent in rows:
        there = scene.on("gemini").play(ANSWERS)
        there.reply(model=f"gemini/{model}", tools=tools)
        assert (list_offered(there.sent[0]), there.searched) == (sent, []), (model, sent)


def test_beside_functions_the_gateway_searches_for_a_model_that_cannot(tmp_path: Path) -> None:
    with run_scene(tmp_path, "gemini", settings=debug(tmp_path / "captures")) as scene:
        kept = Kept(tmp_path / "captures", scene.gateway)
        for also in ([], [FETCH]):
            reply = scene.play(SEARCHES, ANSWERS).reply(tools=[SEARCH, WEATHER, *also])
            names = ["get_weather", "web_search", *(tool["name"] for tool in also)]
            assert list_offered(scene.sent[0]) == sorted(names)
            assert outcomes(reply) == [[URL, OTHER]]
            assert (reply.usage.input_tokens, reply.usage.output_tokens) == (40, 12)
            assert len(scene.searched) == 1
            assert_same(kept.take_new(1), also)


def test_without_a_service_a_search_beside_functions_is_a_loss(tmp_path: Path) -> None:
    with run_scene(tmp_path, "gemini", backend="") as scene:
        scene.play(ANSWERS).reply(tools=[SEARCH, WEATHER])
        assert list_offered(scene.sent[0]) == ["get_weather"]
        assert scene.gateway.outcome(scene.sdk.headers["x-request-id"]).losses > 0
