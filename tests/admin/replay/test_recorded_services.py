"""The recorded upstream, as the client of a replay and as a server on a port; the recorded results of tools."""

import asyncio
import urllib.error
import urllib.request
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.admin.replay.recorded_services import (
    RecordedUpstream,
    config_for_upstream,
    encode_headers,
    make_error,
    replay_plans,
)
from dragoman.cli.replay import serve_upstream
from dragoman.config import load
from dragoman.config.providers import KINDS, PROTOCOLS_BY_KIND
from dragoman.config.settings import ProtocolName
from dragoman.flow.capture.files import read_capture
from dragoman.flow.capture.format import Capture, Chunk, Lookup, LookupName, ToolRun, UpstreamResponse
from dragoman.hub.server_tools import Page, SearchFound, SearchResult, ToolFailure, ToolOutcome
from dragoman.net.client import ConnectionLost, DialOptions, InvalidResponse, OutgoingRequest, UpstreamTimeout
from dragoman.tools.addresses import DomainRules
from dragoman.tools.backends import ToolPlan
from dragoman.tools.web_search import SearchQuery
from flow.in_memory import make_provider, run

FIXTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "kiro-cut-call.json"
POST = OutgoingRequest("POST", "http://upstream", ())
PAGE = Page("https://a.example/", "One", "Text", retrieved_at="2026-11-16T00:00:00+00:00")


def fixture() -> Capture:
    return read_capture(FIXTURE.read_bytes())


def make_recorded_upstream(**changes: object) -> RecordedUpstream:
    request = fixture().upstream_requests[0]
    chunks = (Chunk(0.0, b"one"), Chunk(0.01, b"two"))
    response = UpstreamResponse(status=200, headers=(), at=0.0, chunks=chunks, end="whole", ended_at=0.02)
    response = replace(response, **changes)
    return RecordedUpstream((replace(request, at=0.0, response=response),), age_s=3600.0)


def test_chunks_come_in_order_and_a_further_request_fails() -> None:
    async def run() -> None:
        upstream = make_recorded_upstream()
        response = await upstream.send(POST, DialOptions(), head_timeout_s=5.0)
        assert await response.read(100, 5.0) == b"onetwo"
        with pytest.raises(ConnectionLost):
            await upstream.send(POST, DialOptions(), head_timeout_s=5.0)

    asyncio.run(run())


def test_a_response_that_is_slower_than_the_timeout_times_out() -> None:
    async def run() -> None:
        with pytest.raises(UpstreamTimeout):
            await make_recorded_upstream(at=60.0).send(POST, DialOptions(), head_timeout_s=0.01)
        response = await make_recorded_upstream(chunks=(), end="closed").send(POST, DialOptions(), head_timeout_s=5.0)
        with pytest.raises(UpstreamTimeout):
            await response.chunk(0.01)

    asyncio.run(run())


def test_a_date_to_retry_at_is_as_far_ahead_as_it_was() -> None:
    async def run() -> bytes | None:
        headers = (("retry-after", "Sun, 15 Nov 2026 12:00:00 GMT"),)
        response = await make_recorded_upstream(headers=headers).send(POST, DialOptions(), head_timeout_s=5.0)
        return response.headers.get(b"retry-after")

    assert asyncio.run(run()) == b"Sun, 15 Nov 2026 13:00:00 GMT"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("TimedOut idle: silent", UpstreamTimeout), ("Corrupt: bad", InvalidResponse), ("Lost: cut", ConnectionLost)],
)
def test_recorded_errors_become_exceptions_again(text: str, kind: type[Exception]) -> None:
    error = make_error(text)
    assert type(error) is kind
    assert str(error).endswith(text.partition(": ")[2])


def test_a_server_sends_the_recorded_bytes_to_recorded_paths_only() -> None:
    capture = fixture()
    response = capture.upstream_requests[0].response
    assert response is not None

    async def run() -> None:
        server = await serve_upstream(capture, 0)
        try:
            root = f"http://127.0.0.1:{server.port}"
            body = await asyncio.to_thread(post, f"{root}/")
            assert body == b"".join(chunk.data for chunk in response.chunks)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                await asyncio.to_thread(post, f"{root}/another/path")
        finally:
            await server.close()

    asyncio.run(run())


def post(url: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=20) as reply:
        content = reply.read()
    assert isinstance(content, bytes)
    return content


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "echo"])
def test_the_configuration_for_it_is_valid(tmp_path: Path, kind: str) -> None:
    for protocol in PROTOCOLS_BY_KIND.get(kind) or get_args(ProtocolName):
        request = replace(fixture().upstream_requests[0], kind=kind, protocol=protocol)
        toml = config_for_upstream(replace(fixture(), upstream_requests=(request,)), 1234)
        (tmp_path / "dragoman.toml").write_text(toml)
        assert "replayed" in load(None, {}, tmp_path, tmp_path).providers, protocol


def test_the_header_names_and_values_are_bytes() -> None:
    assert encode_headers((("a", "b"),)) == [(b"a", b"b")]


def make_results(url: str) -> SearchFound:
    return SearchFound((SearchResult(url, "One"),))


def make_tool_lookup(tool: str, given: str, outcome: ToolOutcome | None) -> Lookup:
    run = ToolRun(tool, "index", given, outcome, 0.0, 0.01)
    return Lookup("up", LookupName.TOOL_RUN.value, {"value": msgspec.to_builtins(run)})


def capture(*lookups: Lookup) -> Capture:
    whole = read_capture(FIXTURE.read_bytes())
    backends = {"up": {"web_search": "index", "web_fetch": "library"}}
    settings = replace(whole.settings, tools={"web_search": {"results": 3}}, tool_backends=backends)
    return replace(whole, lookups=lookups, settings=settings)


def plan_of(*lookups: Lookup) -> ToolPlan:
    return replay_plans(capture(*lookups), {"up": make_provider()})["up"]


def test_a_run_is_found_by_its_input_and_used_once() -> None:
    plan = plan_of(
        make_tool_lookup("web_search", "a", make_results("https://a.example/")),
        make_tool_lookup("web_search", "b", make_results("https://b.example/")),
    )
    assert plan.search is not None
    assert plan.search_settings.results == 3

    async def search(text: str) -> object:
        assert plan.search is not None
        return await plan.search.search(SearchQuery(text, 3), 1.0)

    assert run(search("b")) == make_results("https://b.example/")
    assert run(search("a")) == make_results("https://a.example/")
    assert isinstance(run(search("a")), ToolFailure)


def test_a_page_is_returned_with_its_time() -> None:
    plan = plan_of(make_tool_lookup("web_fetch", PAGE.url, PAGE))
    assert plan.fetch is not None
    assert run(plan.fetch.fetch(PAGE.url, DomainRules())) == PAGE


def test_a_run_that_was_given_up_never_ends() -> None:
    plan = plan_of(make_tool_lookup("web_search", "a", None))

    async def scenario() -> bool:
        assert plan.search is not None
        try:
            async with asyncio.timeout(0.05):
                await plan.search.search(SearchQuery("a", 3), 1.0)
        except TimeoutError:
            return True
        return False

    assert run(scenario())


def test_a_capture_from_before_server_tools_has_none() -> None:
    assert replay_plans(read_capture(FIXTURE.read_bytes()), {"up": make_provider()}) == {}
