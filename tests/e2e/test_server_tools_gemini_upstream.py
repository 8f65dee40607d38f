"""Search over a Gemini upstream: Google's own where it works, else the gateway's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from anthropic.types import Message

from dragoman.admin.replay.difference import compare_captures
from dragoman.admin.replay.rerun import rerun
from dragoman.flow.capture.files import Bounds, CaptureDirectory, load_capture
from dragoman.http.handler import replay_site
from e2e.search_scene import SearchScene, search_scene
from e2e.test_server_tools import WEATHER, ask, outcomes
from scripting.encode_gemini import encode_stream
from scripting.replies import ScriptedReply, Stop, Text, Tokens, ToolCall
from waiting import wait_until
from wire_json import JsonObject

SEARCHES = encode_stream(
    ScriptedReply((ToolCall("call_1", "web_search", '{"query": "q"}'),), stop=Stop.TOOL, tokens=Tokens(10, 5))
)
ANSWERS = encode_stream(ScriptedReply((Text("See [One](https://a.example/1)."),), tokens=Tokens(30, 7)))
SEARCH: JsonObject = {"type": "web_search_20250305", "name": "web_search"}
FETCH: JsonObject = {"type": "web_fetch_20250910", "name": "web_fetch"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gemini")


@pytest.fixture(scope="module")
def scene(directory: Path) -> Iterator[SearchScene]:
    captures = f'[debug]\ncapture = "all"\ndirectory = "{directory}/captures"'
    with search_scene(directory, "gemini", settings=captures) as scene:
        yield scene


def reply_of(scene: SearchScene, model: str, *tools: JsonObject) -> Message:
    with scene.sdk.anthropic.messages.stream(**ask(model=f"up/{model}", tools=list(tools))) as events:
        return events.get_final_message()


def list_offered(request: JsonObject) -> list[str]:
    """The functions and the tools of Google's own in a request."""
    names: list[str] = []
    for entry in request["tools"]:
        for key, value in entry.items():
            names += [each["name"] for each in value] if key == "functionDeclarations" else [key]
    return sorted(names)


@pytest.mark.parametrize(
    ("model", "tools", "sent"),
    [
        ("gemini-2.5-flash", [SEARCH], ["googleSearch"]),
        ("gemini-2.5-flash", [SEARCH, FETCH], ["googleSearch", "urlContext"]),
        ("gemini-3-pro-preview", [SEARCH, WEATHER], ["get_weather", "googleSearch"]),
    ],
)
def test_googles_own_search_is_used_where_it_works(
    scene: SearchScene, model: str, tools: list[JsonObject], sent: list[str]
) -> None:
    scene.play(ANSWERS)
    reply_of(scene, model, *tools)
    assert list_offered(scene.sent[0]) == sent
    assert scene.searxng.requests == []


@pytest.mark.parametrize("also", [[], [FETCH]])
def test_beside_functions_the_gateway_searches_for_a_model_that_cannot(
    scene: SearchScene, directory: Path, also: list[JsonObject]
) -> None:
    scene.play(SEARCHES, ANSWERS)
    reply = reply_of(scene, "gemini-2.5-flash", SEARCH, WEATHER, *also)
    assert list_offered(scene.sent[0]) == sorted(["get_weather", "web_search", *(tool["name"] for tool in also)])
    assert outcomes(reply) == [["https://a.example/1", "https://b.example/2"]]
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (40, 12)
    assert len(scene.searxng.requests) == 1
    id = scene.sdk.headers["x-request-id"]
    files = CaptureDirectory(directory / "captures", Bounds(100, 1 << 30, 86_400.0))
    wait_until(lambda: any(id in file.name for file in files.files()))
    capture = load_capture(next(file for file in files.files() if id in file.name))
    parts = compare_captures(capture, rerun(capture, replay_site))
    assert [(part.name, change) for part in parts for change in part.changes] == []


def test_without_a_service_a_search_beside_functions_is_a_loss(tmp_path: Path) -> None:
    with search_scene(tmp_path, "gemini", searches=False) as scene:
        scene.play(ANSWERS)
        reply_of(scene, "gemini-2.5-flash", SEARCH, WEATHER)
        assert list_offered(scene.sent[0]) == ["get_weather"]
        assert scene.gateway.outcome(scene.sdk.headers["x-request-id"]).losses > 0
