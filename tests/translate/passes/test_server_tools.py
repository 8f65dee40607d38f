"""The gateway's own tools as functions, the rounds of a reply, and what the model reads of results."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dragoman.translate.hub.events import Closed, Delta, Event, OpaqueAdded, Opened, ThinkingBlock
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.request import (
    Document,
    Function,
    Hosted,
    Inline,
    Part,
    Pick,
    Request,
    Role,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from dragoman.translate.hub.server_tools import SearchFound, SearchResult, ToolErrorCode, ToolFailure, WebPage
from dragoman.translate.passes.server_tools import (
    add_round,
    offer_server_tools,
    relax_choice,
    select_shown,
    withdraw_server_tools,
    write_result,
)
from replies import END, START, call, text

BOTH = ("web_search", "web_fetch")
SEARCH = Hosted("web_search", {"type": "web_search_20250305"}, "/tools/0", max_uses=3)
FETCH = Hosted("web_fetch", {"type": "web_fetch_20250910"}, "/tools/1")
CODE = Hosted("code_execution", {"type": "code_execution"}, "/tools/2")
WEATHER = Function("get_weather")
USER = Turn(Role.USER, (Text("hi"),))
ONE = SearchResult("https://a.example/1", "One", "Text of one.", "2026-01-02")
TWO = SearchResult("https://b.example/2", "Two")
FOUND = SearchFound((ONE,))


def request(*tools: Tool, choice: ToolChoice | None = None, turns: Sequence[Turn] = (USER,)) -> Request:
    return Request("messages", "model-1", tuple(turns), tools, choice)


def names_of(given: Request) -> list[str]:
    return [tool.kind if isinstance(tool, Hosted) else tool.name for tool in given.tools]


# Offering


def test_a_server_tool_becomes_a_function_in_its_place() -> None:
    offered, tools = offer_server_tools(request(WEATHER, SEARCH, CODE, FETCH), BOTH)
    assert names_of(offered) == ["get_weather", "web_search", "code_execution", "web_fetch"]
    assert tools is not None
    assert tools.declared == {"web_search": SEARCH, "web_fetch": FETCH}
    function = offered.tools[1]
    assert isinstance(function, Function)
    assert function.at == "/tools/0"
    assert isinstance(function.parameters, dict)
    assert function.parameters["required"] == ["query"]


def test_a_request_without_such_a_tool_is_left_alone() -> None:
    plain = request(WEATHER, CODE)
    assert offer_server_tools(plain, BOTH) == (plain, None)
    assert offer_server_tools(request(SEARCH), ()) == (request(SEARCH), None)


def test_a_client_that_wants_no_calls_is_offered_none() -> None:
    none = ToolChoice(Pick.NONE, "/tool_choice")
    assert offer_server_tools(request(SEARCH, WEATHER, choice=none), BOTH) == (request(WEATHER, choice=none), None)
    assert offer_server_tools(request(SEARCH, choice=none), BOTH) == (request(), None)


def test_a_name_that_a_tool_of_the_client_has_is_not_used_twice() -> None:
    taken = (Function("web_search"), Function("gateway_web_search"), Function("gateway_web_search2"))
    _, tools = offer_server_tools(request(*taken, SEARCH), BOTH)
    assert tools is not None
    assert tools.kinds == {"gateway_web_search3": "web_search"}


def test_a_tool_that_is_declared_twice_is_offered_once() -> None:
    again = replace(SEARCH, at="/tools/1", max_uses=5)
    offered, tools = offer_server_tools(request(SEARCH, again, WEATHER), BOTH)
    assert names_of(offered) == ["web_search", "get_weather"]
    assert tools is not None
    assert tools.declared == {"web_search": again}


def test_a_forced_server_tool_is_a_forced_function_in_the_first_round_only() -> None:
    forced = ToolChoice(Pick.NAMED, "/tool_choice", hosted="web_search")
    offered, _ = offer_server_tools(request(Function("web_search"), SEARCH, choice=forced), BOTH)
    assert offered.tool_choice == ToolChoice(Pick.NAMED, "/tool_choice", name="gateway_web_search")
    assert relax_choice(offered).tool_choice == ToolChoice(Pick.AUTO, "/tool_choice")


def test_a_forced_function_of_the_client_stays_its_own() -> None:
    forced = ToolChoice(Pick.NAMED, "/tool_choice", name="web_search")
    offered, _ = offer_server_tools(request(Function("web_search"), SEARCH, choice=forced), BOTH)
    assert offered.tool_choice == forced


def test_the_allowed_tools_move_with_the_name() -> None:
    choice = ToolChoice(
        Pick.REQUIRED, "/tool_choice", allowed=("web_search", "get_weather"), allowed_hosted=frozenset({"web_search"})
    )
    offered, tools = offer_server_tools(request(Function("web_search"), WEATHER, SEARCH, choice=choice), BOTH)
    assert offered.tool_choice is not None
    assert tools is not None
    assert set(offered.tool_choice.allowed or ()) == {"get_weather", "gateway_web_search"}
    withdrawn = withdraw_server_tools(relax_choice(offered), tools)
    assert withdrawn.tool_choice is not None
    assert (withdrawn.tool_choice.pick, withdrawn.tool_choice.allowed) == (Pick.AUTO, ("get_weather",))


def test_withdrawn_tools_leave_no_choice_behind() -> None:
    offered, tools = offer_server_tools(request(SEARCH, choice=ToolChoice(Pick.AUTO, "/tool_choice")), BOTH)
    assert tools is not None
    withdrawn = withdraw_server_tools(offered, tools)
    assert (withdrawn.tools, withdrawn.tool_choice) == ((), None)


# Rounds


def test_a_round_is_repeated_as_it_came_with_its_results() -> None:
    opaque = Opaque("up", OpaqueForm.SIGNATURE, "c2ln", "model-1")
    thought: list[Event] = [Opened(0, ThinkingBlock()), Delta(0, "hm"), OpaqueAdded(0, opaque), Closed(0)]
    events = [START, *thought, *text(1, "Let me ", "look."), *call(2, "web_search", '{"query":', '"x"}'), END]
    result = ToolResult("call-2", (Text("found"),))
    extended = add_round(request(SEARCH), events, {"call-2": result})
    parts = (Thinking("hm", opaque=opaque), Text("Let me look."), ToolCall("call-2", "web_search", '{"query":"x"}'))
    assert extended.turns == (USER, Turn(Role.ASSISTANT, parts), Turn(Role.USER, (result,)))


def test_results_stand_in_the_order_of_the_calls() -> None:
    events = [START, *call(0, "web_search", "{}"), *call(1, "web_search"), END]
    results: dict[str, Part] = {f"call-{number}": ToolResult(f"call-{number}", ()) for number in (1, 0)}
    *_, called, answered = add_round(request(SEARCH), events, results).turns
    assert [part.arguments for part in called.parts if isinstance(part, ToolCall)] == ["{}", "{}"]
    assert [part.call_id for part in answered.parts if isinstance(part, ToolResult)] == ["call-0", "call-1"]


# Results

CITE = "\n\nCite what you use with Markdown links to its URL."


def read(outcome: SearchFound | WebPage | ToolFailure, tool: Hosted = SEARCH, *, documents: bool = False) -> str:
    result = write_result("call-1", select_shown(outcome, tool), documents=documents)
    return "".join(part.text for part in result.content if isinstance(part, Text))


def test_results_are_numbered_with_their_dates_and_texts() -> None:
    assert read(SearchFound((ONE, TWO))) == (
        "1. One\nURL: https://a.example/1\nDate: 2026-01-02\nText of one.\n\n2. Two\nURL: https://b.example/2" + CITE
    )
    assert read(SearchFound(())) == "The search found nothing."
    assert read(SearchFound((ONE,), "As prose.")) == "As prose." + CITE


@pytest.mark.parametrize(("size", "shown"), [("low", 3), ("medium", 6), ("high", 8), (None, 8)])
def test_the_context_size_limits_the_results(size: str | None, shown: int) -> None:
    assert read(SearchFound((TWO,) * 8), replace(SEARCH, context_size=size)).count("URL:") == shown


def test_a_failure_is_an_error_result_with_its_code() -> None:
    failure = ToolFailure(ToolErrorCode.TOO_MANY_REQUESTS, "Slow down.")
    result = write_result("call-1", failure, documents=False)
    assert result == ToolResult("call-1", (Text("Error (too_many_requests): Slow down."),), is_error=True)


def test_a_pdf_is_a_document_for_a_model_that_reads_one() -> None:
    pdf = WebPage("https://a.example/a.pdf", "a.pdf", pdf="JVBERg==")
    result = write_result("call-1", pdf, documents=True)
    assert result.content[0] == Document(Inline("application/pdf", "JVBERg=="), title="a.pdf")
    refused = write_result("call-1", pdf, documents=False)
    assert refused.is_error
    assert "cannot read" in read(pdf)


def test_a_page_that_was_cut_is_marked() -> None:
    page = WebPage("https://a.example/", "A", "text", truncated=True)
    assert read(page) == "# A\nURL: https://a.example/\n\ntext\n\n[The page is longer; this is its beginning.]"
