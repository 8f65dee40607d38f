"""The recording versions of a call's surroundings and tools pass everything on and note what came back."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.accounts.lost_calls import LostCall, LostCalls
from dragoman.config.secret import SecretSource
from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.flow.capture.format import NO_PROVIDER, LookupName
from dragoman.flow.capture.recording_runtime import (
    RecordingCatalogue,
    RecordingChooser,
    RecordingFetcher,
    RecordingMemory,
    describe_backends,
    describe_tools,
    record_plan,
    record_runtime,
)
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.request import Inline
from dragoman.hub.server_tools import FetchOutcome, Page, SearchFound, SearchOutcome, SearchResult, ToolText
from dragoman.providers.models import CachedCatalogue
from dragoman.providers.provider import Catalogue, ModelInfo
from dragoman.tools.addresses import DomainRules
from dragoman.tools.backends import McpServers, ToolPlan, make_plan
from dragoman.tools.web_search import SearchQuery
from flow.capture.recordings import look_up, make_recording
from flow.in_memory import NOW, make_call, make_pooled, make_provider, make_world, run
from narrowing import present

URL = "https://example.com/cat.png"
CAT = Inline("image/png", "aGVsbG8=")
FOUND = SearchFound((SearchResult("https://a.example/", "One", "the key is sk-canary-1234"),))


class Album:
    """A media fetcher that has one picture."""

    async def fetch_all(self, urls: Sequence[str]) -> dict[str, Inline]:
        if list(urls) != [URL]:
            raise RequestError(Failure(Kind.BAD_REQUEST, "no such picture"))
        return {URL: CAT}


def make_catalogue(*models: ModelInfo, fails: bool = False) -> CachedCatalogue:
    async def list_models() -> tuple[ModelInfo, ...]:
        if fails:
            raise RequestError(Failure(Kind.UPSTREAM, "no list", status=500))
        return models

    provider = make_provider(catalogue=Catalogue(list_models=list_models))
    return CachedCatalogue(provider, lambda: 0.0)


def test_a_catalogue_notes_what_it_returns_about_a_model() -> None:
    recording = make_recording()
    catalogue = RecordingCatalogue(make_catalogue(ModelInfo("m", max_output=9)), "up", recording)
    assert not catalogue.complete
    assert run(catalogue.wait_for_list()) == catalogue.list_known() == (ModelInfo("m", max_output=9),)
    assert catalogue.complete
    assert (catalogue.max_output("m"), catalogue.max_output("n"), catalogue.list_problem()) == (9, None, "")
    assert look_up(recording, "up", LookupName.MAX_OUTPUT) == [{"value": 9}, {"value": None}]
    assert look_up(recording, "up", LookupName.LIST_PROBLEM) == []


def test_a_catalogue_notes_why_its_list_could_not_be_read() -> None:
    recording = make_recording()
    catalogue = RecordingCatalogue(make_catalogue(fails=True), "up", recording)
    run(catalogue.wait_for_list())
    assert catalogue.list_problem() == "HTTP 500"
    assert look_up(recording, "up", LookupName.LIST_PROBLEM) == [{"value": "HTTP 500"}]


def test_choices_of_credentials_are_made_by_the_pool_and_noted() -> None:
    recording, pool = make_recording(), make_pooled(make_provider(), 2).account.pool
    chooser = RecordingChooser(present(pool), "up", recording)
    assert present(chooser.choose(None, "m", (), NOW)).member == 0
    assert chooser.choose(None, "m", {0, 1}, NOW) is None
    assert chooser.find_soonest_free("m", NOW) == 0
    assert look_up(recording, "up", LookupName.CREDENTIAL) == [{"value": 0}, {"value": None}]
    assert look_up(recording, "up", LookupName.SOONEST_CREDENTIAL) == [{"value": 0}]


def test_fetched_media_are_noted_and_so_is_a_failure() -> None:
    recording = make_recording()
    fetcher = RecordingFetcher(Album(), recording)
    assert run(fetcher.fetch_all([URL])) == {URL: CAT}
    with pytest.raises(RequestError):
        run(fetcher.fetch_all([]))
    found, failed = look_up(recording, NO_PROVIDER, LookupName.MEDIA)
    assert found == {"value": {URL: msgspec.to_builtins(CAT)}}
    assert isinstance(failed, dict)
    assert "no such picture" in str(failed["refused"])


def test_media_that_do_not_fit_into_the_recording_are_left_out() -> None:
    recording = make_recording(room=1)
    assert run(RecordingFetcher(Album(), recording).fetch_all([URL])) == {URL: CAT}
    assert look_up(recording, NO_PROVIDER, LookupName.MEDIA) == []
    assert "fetched media" in recording.make_capture().truncated


async def test_recalled_calls_are_noted_and_what_is_remembered_is_passed_on() -> None:
    recording, memory = make_recording(), LostCalls(None)
    recorder = RecordingMemory(memory, recording)
    lost = (LostCall("search", '{"q":'),)
    await recorder.remember("t", b"digest", lost)
    assert await memory.recall("t", (b"digest",)) == lost
    assert await recorder.recall("t", (b"digest",)) == lost
    assert await recorder.recall("t", (b"other",)) == ()
    first, second = look_up(recording, NO_PROVIDER, LookupName.CUT_CALLS)
    assert "search" in str(first)
    assert second == {"value": ()}


def test_a_recorded_runtime_leaves_the_real_one_alone() -> None:
    runtime = make_world(make_pooled(make_provider("one"), 2), make_provider("two"))
    runtime = replace(runtime, fetcher=Album())
    recording = make_recording()
    recorded = record_runtime(runtime, recording, make_call())
    one, two = recorded.providers["one"], recorded.providers["two"]
    assert isinstance(one.account.chooser, RecordingChooser)
    assert one.account.pool is runtime.providers["one"].account.pool
    assert len(one.members) == 2
    assert two.account.chooser is None
    assert isinstance(recorded.catalogues["one"], RecordingCatalogue)
    assert isinstance(recorded.fetcher, RecordingFetcher)
    assert runtime.providers["one"].account.chooser is None
    assert isinstance(runtime.fetcher, Album)


class Index:
    """A search service that finds one page, and nothing at all for "forever"."""

    name = "index"

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        if query.text == "forever":
            await asyncio.get_running_loop().create_future()
        return FOUND


class Library:
    name = "library"

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        return Page(url, "One", "Text")


def plan_with_secret() -> ToolPlan:
    secrets = (b"sk-canary-1234",)
    return make_plan(Index(), Library(), frozenset(), Tools(), McpServers(), secrets)


def test_runs_are_noted_without_secrets() -> None:
    recording = make_recording()
    plan = record_plan(plan_with_secret(), "up", recording)
    assert run(present(plan.search).search(SearchQuery("bears", 3), 1.0)) == FOUND
    page = run(present(plan.fetch).fetch("https://a.example/", DomainRules()))
    assert isinstance(page, Page)
    assert page.retrieved_at
    first, second = look_up(recording, "up", LookupName.TOOL_RUN)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (first["value"]["tool"], first["value"]["backend"], first["value"]["input"]) == (
        *("web_search", "index", "bears"),
    )
    assert "canary" not in str(first)
    assert second["value"]["outcome"]["retrieved_at"] == page.retrieved_at


@pytest.mark.parametrize("text", [ToolText("Finds pages.", "A query."), None])
def test_a_services_text_is_noted_for_the_replay(text: ToolText | None) -> None:
    async def describe(is_first_round: bool) -> ToolText | None:
        return text

    recording = make_recording()
    plan = record_plan(replace(plan_with_secret(), describe_search=describe), "up", recording)
    assert plan.describe_search is not None
    assert run(plan.describe_search(True)) == text
    [noted] = look_up(recording, "up", LookupName.TOOL_TEXT)
    assert isinstance(noted, dict)
    assert msgspec.convert(noted["value"], ToolText | None) == text


async def test_a_run_that_is_given_up_is_noted_without_an_outcome() -> None:
    recording = make_recording()
    plan = record_plan(plan_with_secret(), "up", recording)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await present(plan.search).search(SearchQuery("forever", 3), 1.0)
    [noted] = look_up(recording, "up", LookupName.TOOL_RUN)
    assert isinstance(noted, dict)
    assert noted["value"]["outcome"] is None


def test_the_settings_in_a_capture_have_no_secrets_addresses_or_commands() -> None:
    search = WebSearch(("mcp",), "https://host.example/", SecretSource("sk-canary"), command=("run", "--key", "canary"))
    described = describe_tools(Tools(search, WebFetch(max_chars=7)))
    assert "canary" not in str(described)
    assert "host.example" not in str(described)
    assert "'max_chars': 7" in str(described["web_fetch"])
    assert describe_backends(plan_with_secret()) == {"web_search": "index", "web_fetch": "library"}
