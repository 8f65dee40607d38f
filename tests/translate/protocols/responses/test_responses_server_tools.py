"""Tools that the gateway runs: their items in replies, and what earlier ones say when they come back."""

import pytest
from msgspec.structs import replace
from openai.types.responses import ResponseFunctionWebSearch

import grammar_responses
from dragoman.translate.hub.events import (
    Closed,
    Delta,
    Ended,
    Event,
    HostedBlock,
    Opened,
    Stop,
    ToolReturned,
    UsageReported,
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ReplyContext
from dragoman.translate.hub.request import Pick, ReplyExtras, Request, ToolChoice
from dragoman.translate.hub.server_tools import (
    MAX_RUNS_BYTES,
    CallPlace,
    SearchFound,
    SearchResult,
    ServerToolUse,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
    WebPage,
)
from dragoman.translate.hub.usage import Usage
from narrowing import expect
from translate.protocols.responses.responses_kit import (
    CLIENT,
    HELLO,
    STARTED,
    encode_events,
    judge_reply,
    make_context,
    parse_body,
    terminal,
    types,
)
from wire_json import JsonObject

SEARCH = HostedBlock("call_1", "web_search", {"query": "tides"}, is_ours=True)
FETCH = HostedBlock("call_2", "web_fetch", {"url": "https://t.example"}, is_ours=True)
FOUND = SearchFound((SearchResult("https://t.example", "Tides", "High."), SearchResult("https://u.example", "U")))
FAILED = ToolFailure(ToolErrorCode.UNAVAILABLE, "no")
PAGE = WebPage("https://t.example/moved", "Tides", "High.")


def make_tool_runs(*tools: tuple[HostedBlock, ToolOutcome]) -> list[Event]:
    """A reply that runs these tools and says hello."""
    events: list[Event] = [STARTED]
    for number, (block, outcome) in enumerate(tools):
        events += [Opened(number, block), ToolReturned(number, outcome), Closed(number)]
    return [*events, UsageReported(Usage(web_searches=1, web_fetches=1)), *move_blocks(len(tools))]


def move_blocks(by: int) -> list[Event]:
    return [
        replace(event, block=event.block + by) if isinstance(event, Opened | Delta | Closed) else event
        for event in HELLO[1:]
    ]


def context(sources: bool) -> ReplyContext:
    return make_context(
        Request(protocol="responses", model="gpt-x", turns=(), extras=ReplyExtras(search_sources=sources))
    )


ALL = ((SEARCH, FOUND), (FETCH, PAGE), (SEARCH, FAILED), (FETCH, FAILED))


@pytest.mark.parametrize("sources", [True, False])
def test_a_whole_reply_equals_the_fold_of_its_stream(sources: bool) -> None:
    events = make_tool_runs(*ALL)
    whole = CLIENT.encode_whole(events, context(sources), Ledger())
    assert grammar_responses.whole(whole) == grammar_responses.fold(encode_events(events, context(sources)))


def test_the_sdk_reads_every_action_and_status() -> None:
    items = [
        expect(ResponseFunctionWebSearch, item) for item in judge_reply(encode_events(make_tool_runs(*ALL))).output[:4]
    ]
    assert [item.status for item in items] == ["completed", "completed", "failed", "failed"]
    assert [item.action.model_dump(exclude_none=True) for item in items] == [
        {"type": "search", "query": "tides", "queries": ["tides"]},
        {"type": "open_page", "url": "https://t.example/moved"},
        {"type": "search", "query": "tides", "queries": ["tides"]},
        {"type": "open_page", "url": "https://t.example"},
    ]
    assert len({item.id for item in items}) == 4


def test_events_of_a_search_are_sent_as_it_runs() -> None:
    machine = CLIENT.encoder(make_context(), Ledger())
    before = b"".join([*machine.feed(STARTED), *machine.feed(Opened(0, SEARCH))])
    assert types(before)[2:] == [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
    ]
    after = b"".join([*machine.feed(ToolReturned(0, FOUND)), *machine.feed(Closed(0))])
    assert types(after) == ["response.web_search_call.completed", "response.output_item.done"]


PLACE = CallPlace("call_1", 2, 7)


def read_back(block: HostedBlock, outcome: ToolOutcome) -> ServerToolUse:
    """Return what a later turn reads of a use, from the item that a client got."""
    [item, *_] = terminal(encode_events(make_tool_runs((block, outcome))))["output"]
    parts = parse_body({"model": "gpt-x", "input": [item]}).turns[0].parts
    [use] = CLIENT.read_tool_uses(parts).values()
    return expect(ServerToolUse, use)


def test_what_a_tool_returned_comes_back_from_a_client_that_keeps_opaque_values() -> None:
    pdf, prose = WebPage("https://t.example", "T", pdf="JVBERg=="), SearchFound((), "Prose.")
    rows: list[tuple[HostedBlock, ToolOutcome, ToolOutcome]] = [
        (SEARCH, SearchFound(FOUND.results, shown=1), SearchFound(FOUND.results[:1])),
        *((SEARCH, outcome, outcome) for outcome in (prose, FAILED)),
        *((FETCH, outcome, outcome) for outcome in (pdf, replace(PAGE, truncated=True), FAILED)),
    ]
    for block, outcome, expected in rows:
        use = read_back(replace(block, place=PLACE), outcome)
        assert use.outcome == expected
        assert (use.kind, use.input, use.place, use.is_ours) == (block.kind, block.input, PLACE, True)


def test_only_so_much_of_one_reply_is_kept_and_the_ledger_names_the_bound() -> None:
    ledger = Ledger()
    large = WebPage("https://t.example", "T", "x" * (MAX_RUNS_BYTES // 2))
    written = encode_events(make_tool_runs((FETCH, large), (FETCH, large), (FETCH, large)), ledger=ledger)
    assert MAX_RUNS_BYTES < len(written) < 2 * MAX_RUNS_BYTES + 100_000
    assert [loss.path for loss in ledger] == ["/content/1", "/content/2"]
    assert all(str(MAX_RUNS_BYTES) in loss.why for loss in ledger)


def test_a_call_without_a_query_has_none() -> None:
    empty = HostedBlock("call_1", "web_search", {}, is_ours=True)
    [item, *_] = judge_reply(encode_events(make_tool_runs((empty, FAILED)))).output
    assert expect(ResponseFunctionWebSearch, item).action.model_dump(exclude_none=True) == {
        "type": "search",
        "query": "",
        "queries": [],
    }


def test_pages_do_not_count_as_searches() -> None:
    response = judge_reply(encode_events(make_tool_runs((SEARCH, FOUND), (FETCH, PAGE))))
    assert response.model_dump(warnings=False)["tool_usage"]["web_search"] == {"num_requests": 1}


def test_a_reply_that_ends_with_a_search_is_complete() -> None:
    events: list[Event] = [STARTED, Opened(0, SEARCH), ToolReturned(0, FOUND), Closed(0), Ended(Stop.LENGTH)]
    [item] = grammar_responses.fold(encode_events(events))["output"]
    assert item["status"] == "completed"


def read_uses(*items: JsonObject) -> list[ServerToolUse | None]:
    request = parse_body({"model": "m", "input": [{"role": "user", "content": "x"}, *items]})
    return list(CLIENT.read_tool_uses(request.turns[1].parts).values())


def call(action: JsonObject | None, status: str = "completed", **more: object) -> JsonObject:
    acting = {} if action is None else {"action": action}
    return {"type": "web_search_call", "id": "ws_1", "status": status, **acting, **more}


def test_an_earlier_search_has_its_query_and_its_sources() -> None:
    sources = [{"type": "url", "url": "https://t.example"}, {"type": "api", "name": "oai-weather"}]
    [use] = read_uses(call({"type": "search", "query": "tides", "sources": sources}))
    found = SearchFound((SearchResult("https://t.example", "https://t.example"),))
    assert use == ServerToolUse("ws_1", "web_search", {"query": "tides"}, found)


@pytest.mark.parametrize(
    ("action", "query"),
    [
        ({"type": "search", "query": "tides"}, "tides"),
        ({"type": "search", "queries": ["tides", "moon"]}, "tides; moon"),
        ({"type": "search", "query": "tides", "sources": []}, "tides"),
        ({"type": "search", "query": "tides", "sources": None}, "tides"),
        (None, ""),
    ],
)
def test_an_earlier_search_without_sources_says_that_they_were_not_kept(action: JsonObject | None, query: str) -> None:
    [use] = read_uses(call(action))
    assert use is not None
    assert use.input == {"query": query}
    assert "not kept" in (expect(SearchFound, use.outcome).text or "")


def test_a_failed_search_is_a_failure() -> None:
    [use] = read_uses(call({"type": "search", "query": "tides"}, "failed"))
    assert use is not None
    assert expect(ToolFailure, use.outcome).code is ToolErrorCode.UNAVAILABLE


@pytest.mark.parametrize("more", [{"type": "open_page"}, {"type": "find_in_page", "pattern": "moon"}])
def test_an_opened_page_is_a_fetch(more: JsonObject) -> None:
    [use] = read_uses(call({"url": "https://t.example", **more}))
    assert use is not None
    assert (use.kind, use.input) == ("web_fetch", {"url": "https://t.example"})
    page = expect(WebPage, use.outcome)
    assert page.url == "https://t.example"
    assert ("moon" in page.text) is ("pattern" in more)


def test_items_without_ids_get_one_each_that_does_not_change() -> None:
    items = [{"type": "web_search_call", "action": {"type": "search", "query": query}} for query in ("a", "b")]
    first, second = read_uses(*items), read_uses(*items)
    assert first == second
    assert len({use.id for use in first if use is not None}) == 2


def test_other_items_are_no_uses() -> None:
    assert read_uses({"type": "file_search_call", "id": "fs_1", "queries": [], "status": "completed"}) == []


def test_allowed_tools_distinguish_a_hosted_search_from_a_function_of_that_name() -> None:
    named = [{"type": "function", "name": "web_search"}]
    hosted = [{"type": "web_search_preview"}]
    choices = [
        parse_body(
            {"model": "m", "input": "x", "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": tools}}
        )
        for tools in (named, hosted)
    ]
    assert [request.tool_choice for request in choices] == [
        ToolChoice(Pick.AUTO, "/tool_choice", allowed=("web_search",)),
        ToolChoice(Pick.AUTO, "/tool_choice", allowed=("web_search",), allowed_hosted=frozenset({"web_search"})),
    ]
