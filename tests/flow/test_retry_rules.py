"""What a client is advised after a failure, and when an upstream is given up, as tables."""

import pytest

from dragoman.config.settings import Server
from dragoman.flow.failures import should_retry
from dragoman.flow.reply_bounds import ReplyDeadline, Timeouts, timeouts_for
from dragoman.hub.failure import Failure, Kind
from dragoman.providers.provider import FirstTokenWait
from tables import each_row

UNMENDABLE = {Kind.AUTH, Kind.CREDENTIAL, Kind.QUOTA, Kind.FORBIDDEN}


@each_row("kind", Kind)
def test_x_should_retry_is_false_where_no_retry_helps(kind: Kind) -> None:
    assert should_retry(Failure(kind, "x")) is (False if kind in UNMENDABLE else None)


@each_row("kind", [kind for kind in Kind if kind not in (Kind.AUTH, Kind.CREDENTIAL)])
@each_row("advice", [True, False])
def test_an_upstreams_own_advice_passes(kind: Kind, advice: bool) -> None:
    assert should_retry(Failure(kind, "x", should_retry=advice)) is advice


def test_no_advice_of_an_upstream_makes_a_refused_credential_worth_a_retry() -> None:
    assert should_retry(Failure(Kind.CREDENTIAL, "x", should_retry=True)) is False


@pytest.mark.parametrize(
    ("wait", "server_s", "first_token_s"),
    [
        (FirstTokenWait(), 300, 300),
        (FirstTokenWait(40), 300, 40),
        (FirstTokenWait(limit_s=15), 300, 15),
        (FirstTokenWait(limit_s=15), 2, 2),
        (FirstTokenWait(40, 15), 300, 40),
    ],
)
def test_a_providers_own_time_wins_then_the_shorter_of_its_kinds_and_the_servers(
    wait: FirstTokenWait, server_s: float, first_token_s: float
) -> None:
    server = Server(first_token_timeout_s=server_s)
    assert timeouts_for(wait, server) == Timeouts(first_token_s, server.token_timeout_s, server.idle_timeout_s)


def test_signs_of_life_move_the_deadline_but_not_beyond_the_time_for_a_token() -> None:
    wait = ReplyDeadline("up", Timeouts(10, 25, 5), now=100)
    assert wait.deadline == 110
    assert "first_token_timeout_s" in wait.failure().message
    wait.extend(109, has_token=False)
    assert wait.deadline == 119
    wait.extend(118, has_token=False)
    assert wait.deadline == 125
    assert "; token_timeout_s" in wait.failure().message
    wait.extend(124, has_token=True)
    assert wait.deadline == 129
    assert "idle_timeout_s" in wait.failure().message
