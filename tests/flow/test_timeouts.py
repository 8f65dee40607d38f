"""How long an upstream may send nothing, before and after its first token."""

import math

import pytest

from dragoman.config.settings import Server
from dragoman.flow.timeouts import ReplyDeadline, Timeouts, timeouts_for
from dragoman.hub.failure import Kind
from dragoman.providers.provider import FirstTokenWait

SERVER = Server(first_token_timeout_s=300, token_timeout_s=900, idle_timeout_s=200)


@pytest.mark.parametrize(
    ("own_s", "limit_s", "first_token_s"),
    [
        (None, math.inf, 300),
        (None, 15.0, 15),  # the kind is more hurried than the server
        (None, 1000.0, 300),  # and never less
        (600.0, 15.0, 600),  # set in its section
    ],
)
def test_which_timeout_holds_before_the_first_token(own_s: float | None, limit_s: float, first_token_s: float) -> None:
    assert timeouts_for(FirstTokenWait(own_s, limit_s), SERVER) == Timeouts(first_token_s, 900, 200)


def test_a_sign_of_life_extends_the_wait_but_not_beyond_the_time_for_a_token() -> None:
    wait = ReplyDeadline("up", Timeouts(first_token_s=10, token_s=25, idle_s=100), now=1000)
    assert wait.deadline == 1010
    wait.extend(1008, has_token=False)
    assert wait.deadline == 1018
    wait.extend(1017, has_token=False)
    assert wait.deadline == 1025
    wait.extend(1024, has_token=False)
    assert wait.deadline == 1025


def test_after_a_token_only_pauses_count() -> None:
    wait = ReplyDeadline("up", Timeouts(first_token_s=10, token_s=25, idle_s=100), now=1000)
    for now in (1005, 1080, 1170):
        wait.extend(now, has_token=True)
        assert wait.deadline == now + 100


def test_the_time_left_is_never_zero() -> None:
    wait = ReplyDeadline("up", Timeouts(10, 25, 100), now=1000)
    assert wait.left(1004) == 6
    assert wait.left(1010) == wait.left(2000) == 0.001


@pytest.mark.parametrize(
    ("signs", "has_token", "words"),
    [
        ((), False, ("for 10 s before its first token", "first_token_timeout_s")),
        ((1009, 1018, 1024), False, ("no token within 25 s", "token_timeout_s")),
        ((1009,), True, ("for 100 s", "idle_timeout_s")),
    ],
)
def test_the_failure_names_the_provider_the_time_and_the_setting(
    signs: tuple[float, ...], has_token: bool, words: tuple[str, ...]
) -> None:
    wait = ReplyDeadline("up", Timeouts(10, 25, 100), now=1000)
    for now in signs:
        wait.extend(now, has_token)
    failure = wait.failure()
    assert failure.kind is Kind.TIMEOUT
    assert "'up'" in failure.message
    assert all(word in failure.message for word in words)
    assert failure.retry_after is None
