"""Search services for client tests, and an upstream's agent that uses the gateway's web search."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from clients.rig import Rig
from fakes.agent import Use
from fakes.kiro import json_answer
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest

QUERY = "what do pandas eat"
URL = "https://pandas.example/food"
FOUND = {
    "results": [
        {"url": URL, "title": "Panda food", "content": "Pandas eat bamboo.", "publishedDate": "2026-01-02"},
        {"url": "https://zoo.example/", "title": "The zoo", "content": "A zoo has pandas."},
    ]
}
ANSWER = f"They eat bamboo, says [Panda food]({URL})."


@contextmanager
def searxng() -> Iterator[FakeUpstream]:
    """A SearXNG that finds the same for every query."""
    with FakeUpstream(intercept=lambda request: json_answer(FOUND)) as service:
        yield service


def settings_for(service: FakeUpstream) -> str:
    """Return the settings with which every search of a client is run by this service."""
    root = service.url.removesuffix("/v1")
    return f'[tools.web_search]\nbackend = "searxng"\nendpoint = "{root}"\n'


def let_search(rig: Rig) -> None:
    """Make the upstream's agent search when it is offered the gateway's tool, and answer with a link."""
    rig.agent.search = Use("web_search", {"query": QUERY})
    rig.agent.answer = ANSWER


def search_with_account(rig: Rig) -> list[str]:
    """Make a fake Kiro answer the searches of its accounts; return the list in which their queries appear."""
    queries: list[str] = []

    def intercept(request: ReceivedRequest) -> Answer | None:
        if not request.headers.get("x-amz-target", "").endswith(".InvokeMCP") and request.path != "/mcp":
            return None
        message = msgspec.json.decode(request.body, type=dict)
        if message["method"] != "tools/call":
            return None
        queries.append(message["params"]["arguments"]["query"])
        results = [
            {"title": item["title"], "url": item["url"], "snippet": item["content"]} for item in FOUND["results"]
        ]
        text = json.dumps({"results": results, "totalResults": 2, "query": queries[-1], "error": None})
        result = {"content": [{"type": "text", "text": text}], "isError": False}
        return json_answer({"jsonrpc": "2.0", "id": message["id"], "result": result})

    rig.upstream.intercept = intercept
    return queries


def check_claude_code(rig: Rig, found: dict[str, object]) -> None:
    """Check the structured result of Claude Code's WebSearch, from which its "Did 1 search" is made."""
    assert found["searchCount"] == 1, found
    assert found["query"] == QUERY
    text, search, answer = msgspec.convert(found["results"], list[object])
    assert isinstance(search, dict)
    assert search["content"] == [{"title": item["title"], "url": item["url"]} for item in FOUND["results"]]
    assert (text, answer) == ("Now I will use the tool web_search, as asked.", ANSWER)
    assert rig.agent.complaints == []


def check_codex(rig: Rig, items: list[dict[str, object]]) -> None:
    """Check what Codex has shown its user: the search, and the answer after it."""
    [search] = [item for item in items if item["type"] == "web_search"]
    assert search["query"] == QUERY
    assert [item["text"] for item in items if item["type"] == "agent_message"][-1] == ANSWER
    assert rig.agent.complaints == []
