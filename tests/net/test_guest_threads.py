"""What pages and names cost never holds up the gateway's own work, and never waits for it."""

import ast
import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dragoman
from dragoman.net.guest_threads import resolve_guest_name, run_on_page_thread
from dragoman.server_tools.addresses import DomainRules
from dragoman.server_tools.guarded_fetch import GuardedFetcher
from dragoman.server_tools.web_fetch import PageFetcher, PageLimits
from dragoman.translate.hub.server_tools import WebPage
from fakes.raw import RawServer
from server_tools.test_guarded_fetch import World, page

SRC = Path(dragoman.__file__).parent
LIMITS = PageLimits(60.0, 1_000_000, 1000, "dragoman/test")

# Who may use the default executor, and for what: work of the gateway and its operator.
OWN_WORK = {
    "upstreams/credentials/refresher.py": "credentials",
    "upstreams/credentials/credential.py": "files of credentials",
    "operate/captures/cache_why.py": "captures, which the operator asks about",
    "operate/captures/replay/rerun.py": "a loop of its own, in which nothing runs beside it",
    "app.py": "captures on disk",
    "server/api/config.py": "the operator's configuration",
    "server/api/captures.py": "captures, for the operator",
    "server/api/limits.py": "limits of very many keys, for the operator",
    "server/api/teams.py": "very many teams, for the operator",
    "server/console/found_requests.py": "a capture, for the operator",
    "net/proxy.py": "the name of a configured proxy",
    "net/server.py": "the address to listen on",
    "operate/metrics/registry.py": "metrics",
}


def uses_default_executor(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    first = node.args[0] if node.args else None
    is_default = isinstance(first, ast.Constant) and first.value is None
    is_lookup = node.func.attr == "getaddrinfo" and not (
        isinstance(node.func.value, ast.Name) and node.func.value.id == "socket"
    )
    return node.func.attr == "to_thread" or (node.func.attr == "run_in_executor" and is_default) or is_lookup


@pytest.mark.rest
def test_only_the_gateways_own_work_is_given_to_the_default_executor() -> None:
    found = {
        str(file.relative_to(SRC))
        for file in SRC.rglob("*.py")
        if any(uses_default_executor(node) for node in ast.walk(ast.parse(file.read_text())))
    }
    assert found <= OWN_WORK.keys(), "work that others decide on belongs to net/guest_threads.py or run_off_loop"


async def test_pages_are_fetched_and_read_while_the_default_executor_is_full() -> None:
    release = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    blocked = loop.run_in_executor(None, release.wait)
    try:
        async with RawServer(page(b"text/html", b"<p>Hello")) as server:
            world = World(server.port)
            outcome = await PageFetcher(GuardedFetcher(world.send, world.resolve), LIMITS).fetch(
                "http://page.example/", DomainRules()
            )
            assert isinstance(outcome, WebPage)
            assert outcome.text == "Hello"
        assert await resolve_guest_name("127.0.0.1", 80) == ["127.0.0.1"]
    finally:
        release.set()
        await blocked


async def test_the_gateways_own_work_goes_on_while_a_page_is_read() -> None:
    release = threading.Event()
    reading = [asyncio.create_task(run_on_page_thread(release.wait)) for _ in range(50)]
    try:
        assert await asyncio.to_thread(lambda: "renewed") == "renewed"
    finally:
        release.set()
        await asyncio.gather(*reading)
