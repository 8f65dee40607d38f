"""Claude Code and Codex search the web through the gateway on an upstream that has no web search."""

from collections.abc import Callable
from pathlib import Path

from clients import claude_code, codex
from clients.proof import Proves
from clients.rig import Rig
from clients.searching import QUERY, check_claude_code, check_codex, let_search, searxng, settings_for
from fakes.agent import Use


def test_claude_code_searches_the_web(rig: Callable[..., Rig], client: Callable[[str], Path], proves: Proves) -> None:
    with searxng() as service:
        here = rig("chat", Use("WebSearch", {"query": QUERY}), settings=settings_for(service))
        let_search(here)
        ran = claude_code.search(here, client("claude-code"))
        check_claude_code(here, claude_code.tool_result(ran))
        assert [request.path for request in service.requests] == ["/search?q=what+do+pandas+eat&format=json"]
    proves("Claude Code", "chat", "web search")


def test_codex_searches_the_web(rig: Callable[..., Rig], client: Callable[[str], Path], proves: Proves) -> None:
    with searxng() as service:
        here = rig("chat", settings=settings_for(service))
        let_search(here)
        ran = codex.search(here, client("codex"))
        check_codex(here, codex.items(ran))
        assert [request.path for request in service.requests] == ["/search?q=what+do+pandas+eat&format=json"]
    proves("Codex", "chat", "web search")
