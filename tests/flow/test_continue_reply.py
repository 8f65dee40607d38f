"""The request for the rest of a reply that another upstream has begun."""

import re

import pytest

from dragoman.flow.steps.continue_reply import Continuation
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Request, Role, Text, Turn

BROKEN = Failure(Kind.LOST, "the connection broke")
REQUEST = Request("chat", "m", (Turn(Role.USER, (Text("Tell me all."),)),), seed=7)


def test_the_reply_so_far_and_the_instruction_follow_the_conversation() -> None:
    ledger = Ledger()
    continuation = Continuation("Once upon a", BROKEN)
    request = continuation.change(REQUEST, ledger)
    assert request.turns[:-2] == REQUEST.turns
    begun, instruction = request.turns[-2:]
    assert begun == Turn(Role.ASSISTANT, (Text("Once upon a"),))
    [asks] = instruction.parts
    assert instruction.role is Role.USER
    assert isinstance(asks, Text)
    assert continuation.marker in asks.text
    assert (request.seed, len(ledger)) == (7, 0)


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_a_reply_of_white_space_is_requested_again_unchanged(text: str) -> None:
    assert Continuation(text, BROKEN).change(REQUEST, Ledger()) is REQUEST


def test_the_marker_depends_only_on_the_text_so_far() -> None:
    marker = Continuation("Once upon a", BROKEN).marker
    assert re.fullmatch(r"\[\[continue:[0-9a-f]{12}\]\]", marker)
    assert marker == Continuation("Once upon a", Failure(Kind.TIMEOUT, "late")).marker
    assert marker != Continuation("Once upon a time", BROKEN).marker


def test_half_a_surrogate_pair_has_a_marker_too() -> None:
    assert Continuation("\ud83d", BROKEN).marker != Continuation("\ud83e", BROKEN).marker
