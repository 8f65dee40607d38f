"""Every service that searches or fetches for the gateway: the requests that it gets, and what its failures become."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anthropic.types import Message, WebFetchBlock, WebFetchToolResultBlock

from e2e.search_scene import ANSWERS, FETCH, SEARCHES, URL, SearchScene, fetches, outcomes, run_scene, says
from fakes.service import json_answer
from fakes.upstream import Answer, End
from narrowing import expect
from wire_json import JsonObject

SERVER = Path(__file__).parent.parent / "fakes" / "mcp_stdio.py"
HIT = {"url": URL, "title": "One"}
SEARCH_SERVICES: dict[str, tuple[str, JsonObject]] = {
    "searxng": ("/search", {"results": [{**HIT, "content": "Text of one."}]}),
    "brave": ("/res/v1/web/search", {"web": {"results": [{**HIT, "description": "Text of one."}]}}),
    "tavily": ("/search", {"results": [{**HIT, "content": "Text of one."}]}),
    "exa": ("/search", {"results": [{**HIT, "text": "Text of one."}]}),
}


@pytest.mark.parametrize("is_whole_path", [False, True])
@pytest.mark.parametrize("name", SEARCH_SERVICES)
def test_a_service_gets_its_requests_at_the_configured_address(
    scene: SearchScene, tmp_path: Path, name: str, is_whole_path: bool
) -> None:
    path, found = SEARCH_SERVICES[name]
    endpoint = f"http://127.0.0.1:{scene.services.port}" + (path if is_whole_path else "/")
    settings = f'[tools.web_search]\nbackend = "{name}"\nendpoint = "{endpoint}"\napi_key = "k-fake"'
    with run_scene(tmp_path, backend="", settings=settings) as own:
        scene.play().script_search(json_answer(found))
        message = own.play(SEARCHES, ANSWERS).reply()
        [request] = scene.services.requests
        assert request.path.partition("?")[0] == path
        assert outcomes(message) == [[URL]]
        assert "Text of one." in str(own.sent[1]["messages"])


# Pages

MCP = f'backend = "mcp"\ntool = "read"\ncommand = {json.dumps([sys.executable, str(SERVER)])}'


@pytest.fixture(scope="module")
def tavily(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with run_scene(tmp_path_factory.mktemp("tavily"), fetch_settings="timeout_s = 20\nmax_chars = 30") as scene:
        yield scene


@pytest.fixture(scope="module")
def mcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    settings = f"[tools.web_fetch]\n{MCP}\ntimeout_s = 20\nmax_chars = 30\n"
    with run_scene(tmp_path_factory.mktemp("mcp"), backend="", settings=settings) as scene:
        yield scene


def fetch(scene: SearchScene, url: str = URL, answer: Answer | None = None, **rules: object) -> Message:
    """Let the model fetch an address that the user has named."""
    scene.play(fetches(url), says("Done."))
    if answer is not None:
        scene.services.intercept = lambda request: answer
    user = {"role": "user", "content": f"Read {url} please."}
    message = scene.reply(messages=[user], tools=[{**FETCH, **rules}])
    assert message.stop_reason == "end_turn"
    return message


def page_of(message: Message) -> tuple[str, str | None, str]:
    [block] = [block for block in message.content if isinstance(block, WebFetchToolResultBlock)]
    result = expect(WebFetchBlock, block.content)
    return result.url, result.content.title, result.content.source.data


def test_tavily_extracts_a_page(tavily: SearchScene) -> None:
    page = {"url": URL, "title": "The page", "raw_content": "word " * 20}
    message = fetch(tavily, answer=json_answer({"results": [page], "failed_results": []}))
    assert page_of(message) == (URL, "The page", "word " * 6)
    [request] = tavily.services.requests
    assert (request.path, request.json["urls"]) == ("/v1/extract", [URL])
    assert request.headers["authorization"] == "Bearer tvly-fake"
    assert "word word" in str(tavily.sent[-1]["messages"][-1]["content"])


def test_a_failure_of_tavily_is_a_result(tavily: SearchScene) -> None:
    rows = [
        (json_answer({"results": [], "failed_results": [{"url": URL, "error": "404"}]}), "url_not_accessible"),
        (json_answer({"detail": "no"}, 401), "unavailable"),
        (json_answer({"detail": "slow down"}, 429), "too_many_requests"),
        (Answer(b"junk", content_type="application/json"), "unavailable"),
        (Answer(b"{", content_type="application/json", end=End.CUT), "unavailable"),
    ]
    for answer, code in rows:
        assert outcomes(fetch(tavily, answer=answer)) == [code], answer


def test_an_mcp_server_reads_a_page(mcp: SearchScene) -> None:
    assert page_of(fetch(mcp)) == (URL, "The page", f"Title: The page\n\nContent of {URL}"[:30])


def test_no_service_gets_a_request_for_what_the_client_does_not_allow(tavily: SearchScene, mcp: SearchScene) -> None:
    rows: list[tuple[str, JsonObject, str]] = [
        (URL, {"allowed_domains": ["other.example"]}, "url_not_allowed"),
        (URL, {"blocked_domains": ["a.example"]}, "url_not_allowed"),
        ("file:///etc/passwd", {}, "invalid_tool_input"),
        ("https://user:secret@a.example/", {}, "invalid_tool_input"),
        (f"https://a.example/{'x' * 2048}", {}, "url_too_long"),
    ]
    for url, rules, code in rows:
        for scene in (tavily, mcp):
            assert outcomes(fetch(scene, url, **rules)) == [code], url
            assert scene.services.requests == [], url
