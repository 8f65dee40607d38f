"""Every call is answered right after it, once, whatever the client's order was."""

from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.request import Request, Role, Text, ToolCall, ToolResult, Turn
from dragoman.translate.passes.pair_results import UNANSWERED, pair_results
from narrowing import expect, expect_all


def call(id: str, at: str = "") -> ToolCall:
    return ToolCall(id, "f", "{}", at)


def result(id: str, text: str = "r", at: str = "") -> ToolResult:
    return ToolResult(id, (Text(text),), at)


def user(*parts: Text | ToolResult | ToolCall, at: str = "") -> Turn:
    return Turn(Role.USER, parts, at)


def assistant(*parts: Text | ToolCall, at: str = "") -> Turn:
    return Turn(Role.ASSISTANT, parts, at)


def pair(*turns: Turn) -> tuple[tuple[Turn, ...], Ledger]:
    ledger = Ledger()
    return pair_results(Request("chat", "m", turns), ledger).turns, ledger


def test_a_conversation_in_order_stays_as_it_is() -> None:
    turns = (user(Text("1")), assistant(call("a"), call("b")), user(result("a"), result("b"), Text("2")))
    found, ledger = pair(*turns)
    assert found == turns
    assert len(ledger) == 0


def test_results_stand_first_and_in_the_order_of_their_calls() -> None:
    found, _ = pair(assistant(call("a"), call("b")), user(Text("2"), result("b"), result("a")))
    assert found[1].parts == (result("a"), result("b"), Text("2"))


def test_results_in_several_turns_are_gathered() -> None:
    found, ledger = pair(assistant(call("a"), call("b")), user(result("a")), user(result("b")))
    assert found[1].parts == (result("a"), result("b"))
    assert len(ledger) == 0


def test_a_missing_result_is_invented_and_noted() -> None:
    found, ledger = pair(assistant(call("a", "/a")), assistant(Text("on")))
    assert found[1] == user(ToolResult("a", (Text(UNANSWERED),), "/a", is_error=True))
    assert [(loss.path, loss.how) for loss in ledger] == [("/a", LossKind.INVENTED)]


def test_a_result_before_its_call_is_not_its_result() -> None:
    found, ledger = pair(user(result("a", at="/0")), assistant(call("a")), user(Text("2")))
    assert all(isinstance(part, Text) for part in found[0].parts)
    assert expect(ToolResult, found[2].parts[0]).call_id == "a"
    assert ("/0", LossKind.APPROXIMATED) in [(loss.path, loss.how) for loss in ledger]


def test_two_calls_of_one_id_in_one_turn_take_a_result_each() -> None:
    found, _ = pair(assistant(call("a"), call("a")), user(result("a", "first"), result("a", "second")))
    assert [part.id for part in expect_all(ToolCall, found[0].parts)] == ["a", "a-2"]
    assert found[1].parts == (result("a", "first"), result("a-2", "second"))


def test_an_id_in_another_alphabet_is_rewritten_on_both_sides() -> None:
    found, ledger = pair(assistant(call("fc:1/é")), user(result("fc:1/é")))
    assert expect(ToolCall, found[0].parts[0]).id == expect(ToolResult, found[1].parts[0]).call_id == "fc_1__"
    assert len(ledger) == 0


def test_long_ids_that_begin_alike_stay_apart() -> None:
    found, _ = pair(assistant(call("x" * 90), call("x" * 91)), user(result("x" * 91, "late"), result("x" * 90)))
    first, second = expect_all(ToolCall, found[0].parts)
    results = expect_all(ToolResult, found[1].parts)
    assert len(first.id) == len(second.id) == 64
    assert [part.call_id for part in results] == [first.id, second.id]
    assert results[1].content == (Text("late"),)


def test_a_call_that_is_not_the_assistants_becomes_text() -> None:
    found, ledger = pair(user(call("a", "/c")))
    assert isinstance(found[0].parts[0], Text)
    assert [loss.path for loss in ledger] == ["/c"]
