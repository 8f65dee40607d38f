"""Claude Code's billing line goes to Anthropic alone."""

import pytest

from dragoman.translate.caching.billing_line import drop_billing_line
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.request import Request, Role, Text, Turn

LINE = "x-anthropic-billing-header: cc_version=2.1.325.a1b; cc_entrypoint=cli;"


def request(*texts: str) -> Request:
    parts = tuple(Text(text, f"/system/{place}") for place, text in enumerate(texts))
    return Request("messages", "m", (Turn(Role.SYSTEM, parts, "/system"), Turn(Role.USER, (Text("hi"),))))


def list_instructions(given: Request, issuer: str = "openai") -> list[str]:
    turns = drop_billing_line(given, issuer, Ledger()).turns
    parts = [part for turn in turns if turn.role is Role.SYSTEM for part in turn.parts]
    return [part.text for part in parts if isinstance(part, Text)]


@pytest.mark.parametrize("line", [LINE, f"{LINE}\n", f"{LINE}\nx-anthropic-other: 1"])
def test_other_vendors_do_not_get_it(line: str) -> None:
    ledger = Ledger()
    drop_billing_line(request(line, "Be brief."), "openai", ledger)
    assert [(loss.path, loss.how) for loss in ledger] == [("/system/0", LossKind.DROPPED)]
    assert list_instructions(request(line, "Be brief.")) == ["Be brief."]
    assert list_instructions(request(line)) == []


def test_anthropic_gets_it_untouched() -> None:
    given = request(LINE, "Be brief.")
    assert drop_billing_line(given, "anthropic", Ledger()) is given


@pytest.mark.parametrize("text", [f"{LINE}\nBe brief.", f"Be brief.\n{LINE}", "", "x-anthropic"])
def test_a_block_that_says_anything_else_stays(text: str) -> None:
    assert list_instructions(request(text, "More.")) == [text, "More."]


def test_another_place_is_left_alone() -> None:
    assert list_instructions(request("Be brief.", LINE)) == ["Be brief.", LINE]
