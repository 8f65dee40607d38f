"""Pages that Tavily or an MCP server fetches for the gateway, judged by Anthropic's SDK."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anthropic.types import Message, WebFetchBlock, WebFetchToolResultBlock

from e2e.search_scene import chat_calls, chat_text
from fakes.kiro import json_answer
from fakes.upstream import Answer, End, FakeUpstream
from gateway import KEY, provider_section, running
from sdk_replies import Sdk
from wire_json import JsonObject

URL = "https://page.example/a"
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
ANSWER = chat_text("Done.")
SERVER = Path(__file__).parent.parent / "fakes" / "mcp_stdio.py"


class Scene:
    def __init__(self, sdk: Sdk, upstream: FakeUpstream, tavily: FakeUpstream) -> None:
        self.sdk = sdk
        self.upstream = upstream
        self.tavily = tavily

    def fetch(self, url: str = URL, **more: object) -> Message:
        """Let the model fetch an address that the user has named."""
        self.upstream.requests.clear()
        self.tavily.requests.clear()
        self.upstream.answers = [Answer(chat_calls(("call_1", "web_fetch", json.dumps({"url": url})))), Answer(ANSWER)]
        user = {"role": "user", "content": f"Read {url} please."}
        request: JsonObject = {"model": "chat/m", "max_tokens": 100, "messages": [user], "tools": [{**FETCH, **more}]}
        with self.sdk.anthropic.messages.stream(**request) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "end_turn"
        return message


def scenes(directory: Path, section: str) -> Iterator[Scene]:
    with FakeUpstream() as upstream, FakeUpstream() as tavily:
        root = tavily.url.removesuffix("/v1")
        tools = f"[tools.web_fetch]\n{section}\ntimeout_s = 20\nmax_chars = 30\n".replace("TAVILY", root)
        settings = f"[retry]\nattempts = 1\n{tools}{provider_section('chat', upstream.url, 'chat')}"
        with running(settings, directory) as gateway:
            sdk = Sdk(gateway.url, KEY)
            yield Scene(sdk, upstream, tavily)
            sdk.close()


@pytest.fixture(scope="module")
def tavily(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    section = 'backend = "tavily"\nendpoint = "TAVILY"\napi_key = "tvly-fake"'
    yield from scenes(tmp_path_factory.mktemp("tavily"), section)


@pytest.fixture(scope="module")
def mcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    command = json.dumps([sys.executable, str(SERVER)])
    yield from scenes(tmp_path_factory.mktemp("mcp"), f'backend = "mcp"\ntool = "read"\ncommand = {command}')


def page_of(message: Message) -> tuple[str, str | None, str]:
    [block] = [block for block in message.content if isinstance(block, WebFetchToolResultBlock)]
    assert isinstance(block.content, WebFetchBlock), block
    return block.content.url, block.content.content.title, block.content.content.source.data


def code_of(message: Message) -> str:
    [block] = [block for block in message.content if isinstance(block, WebFetchToolResultBlock)]
    assert not isinstance(block.content, WebFetchBlock), block
    return block.content.error_code


def test_tavily_extracts_a_page(tavily: Scene) -> None:
    page = {"url": URL, "title": "The page", "raw_content": "word " * 20}
    tavily.tavily.choose = lambda request: json_answer({"results": [page], "failed_results": []})
    assert page_of(tavily.fetch()) == (URL, "The page", "word " * 6)
    [request] = tavily.tavily.calls
    assert (request.path, request.json["urls"]) == ("/extract", [URL])
    assert request.headers["authorization"] == "Bearer tvly-fake"
    assert "word word" in str(tavily.upstream.calls[-1].json["messages"][-1]["content"])


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (json_answer({"results": [], "failed_results": [{"url": URL, "error": "404"}]}), "url_not_accessible"),
        (json_answer({"detail": "no"}, 401), "unavailable"),
        (json_answer({"detail": "slow down"}, 429), "too_many_requests"),
        (Answer(b"junk", content_type="application/json"), "unavailable"),
        (Answer(b"{", content_type="application/json", end=End.CUT), "unavailable"),
    ],
)
def test_a_failure_of_tavily_is_a_result(tavily: Scene, answer: Answer, code: str) -> None:
    tavily.tavily.choose = lambda request: answer
    assert code_of(tavily.fetch()) == code


def test_an_mcp_server_reads_a_page(mcp: Scene) -> None:
    assert page_of(mcp.fetch()) == (URL, "The page", "Title: The page\n\nContent of http"[:30])


@pytest.mark.parametrize("backend", ["tavily", "mcp"])
@pytest.mark.parametrize(
    ("url", "rules", "code"),
    [
        (URL, {"allowed_domains": ["other.example"]}, "url_not_allowed"),
        (URL, {"blocked_domains": ["page.example"]}, "url_not_allowed"),
        ("file:///etc/passwd", {}, "invalid_tool_input"),
        ("https://user:secret@page.example/", {}, "invalid_tool_input"),
        (f"https://page.example/{'x' * 2048}", {}, "url_too_long"),
    ],
)
def test_no_service_gets_a_request_for_what_the_client_does_not_allow(
    backend: str, url: str, rules: dict[str, object], code: str, request: pytest.FixtureRequest
) -> None:
    scene: Scene = request.getfixturevalue(backend)
    scene.tavily.choose = lambda request: json_answer({"results": [{"url": url, "raw_content": "reached"}]})
    assert code_of(scene.fetch(url, **rules)) == code
    assert scene.tavily.requests == []
