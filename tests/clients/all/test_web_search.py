"""Claude Code, Codex, Gemini CLI, Vercel AI and pydantic-ai search the web on upstreams of every protocol."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from clients import claude_code, codex, gemini_cli
from clients.driven import DRIVERS, outcomes
from clients.node_sdks import drive
from clients.proof import Proves
from clients.rig import UPSTREAMS, Rig
from clients.searching import (
    ANSWER,
    QUERY,
    URL,
    check_claude_code,
    check_codex,
    let_search,
    search_with_account,
    searxng,
    settings_for,
)
from fakes.agent import Use

Rigging = Callable[..., Rig]
Client = Callable[[str], Path]
upstreams = pytest.mark.parametrize("upstream", UPSTREAMS)
SEARCHED = "/search?q=what+do+pandas+eat&format=json"
MODES = ("chat", "chat-stream", "responses", "responses-stream", "messages", "messages-stream")


@pytest.mark.parametrize("upstream", ["chat", "responses", "kiro"])
def test_claude_code_searches_the_web(upstream: str, rig: Rigging, client: Client, proves: Proves) -> None:
    with searxng() as service:
        here = rig(upstream, Use("WebSearch", {"query": QUERY}), settings=settings_for(service))
        let_search(here)
        check_claude_code(here, claude_code.tool_result(claude_code.search(here, client("claude-code"))))
        assert [request.path for request in service.requests] == [SEARCHED]
    proves("Claude Code", upstream, "web search")


def test_claude_code_searches_the_web_with_the_account_of_kiro(rig: Rigging, client: Client) -> None:
    here = rig("kiro", Use("WebSearch", {"query": QUERY}))
    let_search(here)
    queries = search_with_account(here)
    check_claude_code(here, claude_code.tool_result(claude_code.search(here, client("claude-code"))))
    assert queries == [QUERY]


@upstreams
def test_codex_searches_the_web(upstream: str, rig: Rigging, client: Client, proves: Proves) -> None:
    with searxng() as service:
        here = rig(upstream, settings=settings_for(service))
        let_search(here)
        check_codex(here, codex.items(codex.search(here, client("codex"))))
        assert [request.path for request in service.requests] == [SEARCHED]
    proves("Codex", upstream, "web search")


@pytest.mark.parametrize("upstream", ["chat", "kiro"])
def test_gemini_cli_searches_the_web(upstream: str, rig: Rigging, client: Client, node: Path, proves: Proves) -> None:
    with searxng() as service:
        here = rig(upstream, Use("google_web_search", {"query": QUERY}), settings=settings_for(service))
        let_search(here)
        ran = gemini_cli.ask(here, node, client("gemini-cli"), "Search the web.")
        assert gemini_cli.result(ran)["status"] == "success", ran
        assert len(service.requests) == 1
    # What the client's own tool made of the reply and its metadata, for the model that had called it.
    found = next(text for request in here.agent.requests for text in request.results if "Sources:" in text)
    assert ANSWER.removesuffix(".") in found
    assert f"[1] Panda food ({URL})" in found
    assert here.agent.complaints == []
    proves("Gemini CLI", upstream, "web search")


@upstreams
def test_vercel_ai_searches_the_web_and_sends_the_search_back(
    upstream: str, rig: Rigging, client: Client, node: Path, proves: Proves
) -> None:
    with searxng() as service:
        here = rig(upstream, settings=settings_for(service))
        let_search(here)
        native = ("messages", "messages-stream") if upstream == "messages" else ()  # these bytes pass unchanged
        modes = [mode for mode in MODES if mode not in (*native, "chat", "chat-stream")]
        found = outcomes(drive(here, node, client("node-sdks"), "web_search.mjs", *modes))
        assert list(found) == modes
        for mode, outcome in found.items():
            assert outcome.error == [], outcome
            printed = msgspec.json.decode(outcome.text, type=dict)
            assert printed["text"].endswith(ANSWER), mode
            assert printed["calls"] == 1, mode
            assert URL in printed["urls"], mode
            # Without a store on the server, the SDK leaves a search of Responses out of the history.
            assert printed["again"] == ANSWER or mode.startswith("responses"), mode
            assert printed["again"].endswith(ANSWER), mode
    assert here.agent.complaints == []
    proves("Vercel AI SDK", upstream, "web search")


@upstreams
def test_pydantic_ai_searches_the_web_and_sends_the_search_back(
    upstream: str, rig: Rigging, client: Client, proves: Proves
) -> None:
    with searxng() as service:
        here = rig(upstream, settings=settings_for(service))
        let_search(here)
        native = ("messages", "messages-stream") if upstream == "messages" else ()  # these bytes pass unchanged
        modes = [mode for mode in MODES if mode not in native]
        ran = here.run(client("pydantic-ai") / "bin" / "python", DRIVERS / "web_search.py", *modes)
        found = outcomes(ran)
        assert list(found) == modes, ran
        for mode, outcome in found.items():
            assert outcome.error == [], outcome
            printed = msgspec.json.decode(outcome.text, type=dict)
            assert printed["text"].endswith(ANSWER), mode
            assert len(printed["calls"]) == (0 if mode.startswith("chat") else 1), mode
            assert printed["again"].endswith(ANSWER), mode
    assert here.agent.complaints == []
    proves("pydantic-ai", upstream, "web search")
