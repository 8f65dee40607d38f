"""Earlier uses of the gateway's own tools as calls and results, or as text."""

from collections.abc import Mapping, Sequence

import pytest

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import (
    Citation,
    Foreign,
    Part,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.translate.hub.server_tools import (
    CallPlace,
    SearchFound,
    SearchResult,
    ServerToolUse,
    SourceText,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
    WebPage,
    seal_source,
)
from dragoman.translate.passes.earlier_uses import (
    WritingRules,
    find_unrun_uses,
    write_earlier_uses,
    write_own_uses_as_text,
)

BOTH = ("web_search", "web_fetch")
USER = Turn(Role.USER, (Text("hi"),))
ONE = SearchResult("https://a.example/1", "One", "Text of one.", "2026-01-02")
FOUND = SearchFound((ONE,))
RULES = WritingRules({"web_search": "gateway_web_search"}, documents=False, ran={})


def request(*turns: Turn) -> Request:
    return Request("messages", "model-1", turns)


def use(
    number: int, outcome: ToolOutcome | None = FOUND, *, ours: bool = True, place: CallPlace | None = None
) -> Foreign:
    """Stand for the blocks of one search in a client's history; `read_uses` knows them."""
    found = ServerToolUse(f"srv-{number}", "web_search", {"query": "x"}, outcome, is_ours=ours, place=place)
    USES[found.id] = found
    return Foreign("server_tool_use", {"id": found.id}, f"/messages/1/content/{number}")


RESULT = Foreign("web_search_tool_result", {})
USES: dict[str, ServerToolUse] = {}


def read_uses(parts: Sequence[Part]) -> Mapping[int, ServerToolUse | None]:
    found: dict[int, ServerToolUse | None] = {}
    for index, part in enumerate(parts):
        if isinstance(part, Foreign) and isinstance(part.raw, dict):
            found[index] = USES.get(str(part.raw.get("id")))
    return found


def rewrite(*parts: Part, after: Sequence[Turn] = (), ledger: Ledger | None = None) -> list[Turn]:
    given = request(USER, Turn(Role.ASSISTANT, parts), *after)
    return list(write_earlier_uses(given, read_uses, RULES, Ledger() if ledger is None else ledger).turns[1:])


def outline(turns: Sequence[Turn]) -> list[list[str]]:
    """Return the parts of each turn in short."""
    return [[_short(part) for part in turn.parts] for turn in turns]


def _short(part: Part) -> str:
    match part:
        case ToolCall(id=id, name=name):
            return f"{name} {id}"
        case ToolResult(call_id=id, is_error=is_error):
            return f"{'error' if is_error else 'result'} {id}"
        case Text(text=text):
            return text
        case _:
            return type(part).__name__


def test_a_turn_is_split_into_call_result_and_the_rest() -> None:
    turns = rewrite(Text("Let me look."), use(1), RESULT, Text("Found."))
    assert outline(turns) == [["Let me look.", "gateway_web_search srv-1"], ["result srv-1"], ["Found."]]
    assert [turn.role for turn in turns] == [Role.ASSISTANT, Role.USER, Role.ASSISTANT]


def test_searches_of_one_round_stay_in_one_turn_and_rounds_apart() -> None:
    turns = rewrite(use(1), RESULT, use(2), RESULT, Text("More."), use(3), RESULT, Text("Done."))
    assert outline(turns) == [
        ["gateway_web_search srv-1", "gateway_web_search srv-2"],
        ["result srv-1", "result srv-2"],
        ["More.", "gateway_web_search srv-3"],
        ["result srv-3"],
        ["Done."],
    ]


def test_calls_and_the_parts_beside_them_are_in_the_round_in_which_they_were() -> None:
    """What the model wrote beside its calls, and how many rounds there were, is not seen in the blocks alone."""
    first, second = use(1, place=CallPlace("a")), use(2, place=CallPlace("b", 1))
    assert outline(rewrite(first, RESULT, second, RESULT, Text("Done."))) == [
        *(["gateway_web_search a"], ["result a"], ["gateway_web_search b"], ["result b"], ["Done."]),
    ]
    own = ToolCall("call-1", "get_weather", "{}")
    assert outline(rewrite(first, RESULT, own)) == [["gateway_web_search a"], ["result a"], ["get_weather call-1"]]
    beside = use(3, place=CallPlace("c", 0, rest=len("I") + 1))
    together = outline(rewrite(beside, RESULT, Text("I"), own))
    assert together == [["gateway_web_search c", "I", "get_weather call-1"], ["result c"]]
    cited = Text("[One](https://a.example/1)", citations=(Citation("https://a.example/1"),))
    between = (
        use(4, place=CallPlace("d", 0, 1)),
        RESULT,
        Thinking("x"),
        use(5, place=CallPlace("e", 0, len("See ") + len(cited.text))),
        RESULT,
    )
    assert outline(rewrite(*between, Text("See "), cited, Thinking(""), Text("Done."))) == [
        ["gateway_web_search d", "Thinking", "gateway_web_search e", "See [One](https://a.example/1)", "Thinking"],
        ["result d", "result e"],
        ["Done."],
    ]


def test_what_a_later_turn_cannot_repeat_is_noted() -> None:
    pdf, opened = WebPage("https://a.example/a.pdf", "a.pdf", pdf="JVBERg=="), WebPage("https://a.example/", "A")
    rows: list[tuple[ToolOutcome, bool, list[str]]] = [(pdf, True, ["dropped"]), (opened, False, ["approximated"])]
    for outcome, ours, expected in rows:
        ledger = Ledger()
        rewrite(use(1, outcome, ours=ours), RESULT, ledger=ledger)
        assert [loss.how.value for loss in ledger] == expected
    reading = Ledger()
    given = request(USER, Turn(Role.ASSISTANT, (use(1, pdf), RESULT)))
    turns = write_earlier_uses(given, read_uses, WritingRules({}, documents=True, ran={}), reading).turns
    assert (outline(turns)[-1], list(reading)) == (["result srv-1"], [])


def test_a_result_that_stands_in_a_later_turn_belongs_to_its_call() -> None:
    own, answer = ToolCall("call-1", "get_weather", "{}"), ToolResult("call-1", (Text("sunny"),))
    USES["late"] = ServerToolUse("srv-1", "web_search", {}, FOUND, is_ours=True, is_result=True)
    late = Foreign("web_search_tool_result", {"id": "late"})
    after = [Turn(Role.USER, (answer,)), Turn(Role.ASSISTANT, (late, Text("Done.")))]
    assert outline(rewrite(use(1, None), own, after=after)) == [
        ["gateway_web_search srv-1", "get_weather call-1"],
        ["result srv-1", "result call-1"],
        ["Done."],
    ]


def test_the_text_that_citations_had_cut_is_one_again() -> None:
    cited = Text("[One](https://a.example/1)", citations=(Citation("https://a.example/1"),))
    turns = rewrite(use(1), RESULT, Text("See "), cited, Text(" now."))
    assert outline(turns)[-1] == ["See [One](https://a.example/1) now."]


def test_thinking_stays_with_its_round() -> None:
    turns = rewrite(Thinking("first"), use(1), RESULT, Thinking("second"), Text("Done."))
    assert outline(turns) == [["Thinking", "gateway_web_search srv-1"], ["result srv-1"], ["Thinking", "Done."]]


@pytest.mark.parametrize("server_first", [True, False])
def test_a_search_beside_a_call_of_the_client_has_its_result_in_the_next_turn(server_first: bool) -> None:
    own = ToolCall("call-1", "get_weather", "{}")
    parts: tuple[Part, ...] = (use(1), RESULT, own) if server_first else (own, use(1), RESULT)
    answer = Turn(Role.USER, (ToolResult("call-1", (Text("sunny"),)), Text("and?")))
    turns = rewrite(*parts, after=[answer])
    calls = ["gateway_web_search srv-1", "get_weather call-1"]
    results = ["result srv-1", "result call-1"]
    if not server_first:
        calls, results = calls[::-1], results[::-1]
    assert outline(turns) == [calls, [*results, "and?"]]


def test_results_are_not_lost_where_no_turn_of_the_user_follows() -> None:
    own = ToolCall("call-1", "get_weather", "{}")
    assert outline(rewrite(use(1), RESULT, own)) == [
        ["gateway_web_search srv-1", "get_weather call-1"],
        ["result srv-1"],
    ]
    turns = rewrite(use(1), RESULT, own, after=[Turn(Role.ASSISTANT, (Text("hm"),))])
    assert outline(turns) == [["gateway_web_search srv-1", "get_weather call-1"], ["result srv-1"], ["hm"]]


def test_an_error_comes_back_as_an_error() -> None:
    turns = rewrite(use(1, ToolFailure(ToolErrorCode.UNAVAILABLE, "no")), RESULT, Text("Sorry."))
    assert outline(turns)[1] == ["error srv-1"]


def test_only_the_titles_of_another_vendors_results_can_be_read_and_that_is_noted() -> None:
    ledger = Ledger()
    rewrite(use(1, ours=False), RESULT, Text("x"), ledger=ledger)
    assert [loss.path for loss in ledger] == ["/messages/1/content/1"]
    ours = Ledger()
    rewrite(use(2), RESULT, Text("x"), ledger=ours)
    assert list(ours) == []


def test_a_search_that_has_not_run_is_found_and_gets_the_result_of_its_run() -> None:
    given = request(USER, Turn(Role.ASSISTANT, (Text("a"), use(1, None))))
    [unrun] = find_unrun_uses(given, read_uses, BOTH)
    assert unrun.id == "srv-1"
    assert find_unrun_uses(given, read_uses, ()) == ()
    ran = {"srv-1": ToolResult("srv-1", (Text("found"),))}
    turns = write_earlier_uses(given, read_uses, WritingRules({}, False, ran), Ledger()).turns
    assert outline(turns[1:]) == [["a", "web_search srv-1"], ["result srv-1"]]
    without = write_earlier_uses(given, read_uses, RULES, Ledger()).turns
    assert outline(without[1:])[-1] == ["error srv-1"]


def test_the_same_history_gives_the_same_turns_and_another_is_not_copied() -> None:
    parts = (Text("a"), use(1), RESULT, Text("b"))
    assert rewrite(*parts) == rewrite(*parts)
    plain = request(USER, Turn(Role.ASSISTANT, (Text("x"),)))
    assert write_earlier_uses(plain, read_uses, RULES, Ledger()) is plain


def test_a_search_that_the_gateway_ran_is_text_for_a_vendor_with_a_search_of_its_own() -> None:
    ledger = Ledger()
    given = request(USER, Turn(Role.ASSISTANT, (use(1), RESULT, Text("Found."))))
    changed = write_own_uses_as_text(given, read_uses, ledger)
    [search, answer] = changed.turns[1].parts
    assert isinstance(search, Text)
    assert search.text.startswith("Web search for 'x':\n\n1. One\nURL: https://a.example/1\n")
    assert answer == Text("Found.")
    assert [loss.path for loss in ledger] == ["/messages/1/content/1"]


def test_a_search_that_the_vendor_ran_itself_is_not_touched() -> None:
    given = request(USER, Turn(Role.ASSISTANT, (use(1, ours=False), RESULT, Text("Found."))))
    assert write_own_uses_as_text(given, read_uses, Ledger()) is given


def test_a_citation_that_the_gateway_wrote_is_not_returned_to_a_vendor() -> None:
    ours = Citation(url="https://a.example/1", raw={"encrypted_index": seal_source(SourceText("Text of one."))})
    theirs = Citation(url="https://a.example/1", raw={"encrypted_index": "Eo8BCioIAhgBIiQ"})
    ledger = Ledger()
    given = request(USER, Turn(Role.ASSISTANT, (Text("Found.", "/messages/1/content/0", citations=(ours, theirs)),)))
    [text] = write_own_uses_as_text(given, read_uses, ledger).turns[1].parts
    assert isinstance(text, Text)
    assert text.citations == (theirs,)
    assert [loss.path for loss in ledger] == ["/messages/1/content/0/citations"]
