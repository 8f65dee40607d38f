"""A reply that broke off is continued by another upstream, which gets the text so far."""

import logging
import re

import pytest

from dragoman.proxy.continue_elsewhere import Continuation, record_continuation
from dragoman.proxy.outcome import FailedAttempt
from dragoman.proxy.request_record import Awaited
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Request, Role, Sampling, Text, Turn
from dragoman.upstreams.routing import Route
from narrowing import expect
from proxy.in_memory import make_call

BROKEN = Failure(Kind.LOST, "the connection broke")
BEGUN_REQUEST = Request("chat", "m", (Turn(Role.USER, (Text("Tell me all."),)),), sampling=Sampling(seed=7))


def test_the_reply_so_far_and_the_instruction_follow_the_conversation() -> None:
    ledger = Ledger()
    continuation = Continuation("Once upon a", BROKEN)
    request = continuation.change(BEGUN_REQUEST, ledger)
    assert request.turns[:-2] == BEGUN_REQUEST.turns
    begun, instruction = request.turns[-2:]
    assert begun == Turn(Role.ASSISTANT, (Text("Once upon a"),))
    [send_request] = instruction.parts
    assert instruction.role is Role.USER
    assert continuation.marker in expect(Text, send_request).text
    assert (request.sampling.seed, len(ledger)) == (7, 0)


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_a_reply_of_white_space_is_requested_again_unchanged(text: str) -> None:
    assert Continuation(text, BROKEN).change(BEGUN_REQUEST, Ledger()) is BEGUN_REQUEST


def test_the_marker_depends_only_on_the_text_so_far() -> None:
    marker = Continuation("Once upon a", BROKEN).marker
    assert re.fullmatch(r"\[\[continue:[0-9a-f]{12}\]\]", marker)
    assert marker == Continuation("Once upon a", Failure(Kind.TIMEOUT, "late")).marker
    assert marker != Continuation("Once upon a time", BROKEN).marker


def test_half_a_surrogate_pair_has_a_marker_too() -> None:
    assert Continuation("\ud83d", BROKEN).marker != Continuation("\ud83e", BROKEN).marker


def test_the_target_that_broke_off_is_recorded_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    record = make_call().record
    with caplog.at_level(logging.WARNING):
        record_continuation(record, Route("up", "m"), BROKEN)
    assert record.failed_attempts == (FailedAttempt("up/m", "lost"),)
    assert record.awaits is Awaited.MORE
    assert "up/m broke off (lost), another upstream continues" in caplog.text
