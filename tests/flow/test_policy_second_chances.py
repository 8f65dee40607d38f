"""What a refused request may change, each once: a renewed credential, or another request."""

import pytest
from msgspec.structs import replace

from dragoman.flow.step import Ask, ErrorReply, GiveUp, NoReply
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Request
from dragoman.net.headers import Headers
from dragoman.providers.provider import Adjustment, RequestRules
from flow.in_memory import make_provider, make_renewing
from flow.policy_trial import TWO, Trial
from tables import each_row

REFUSED_CREDENTIAL = Failure(Kind.CREDENTIAL, "the token has expired")


async def renew_nothing() -> bool:
    return False


def test_a_refused_credential_is_renewed_once_and_then_its_failure_is_kept() -> None:
    trial = Trial(first=make_provider("one", auth=make_renewing(renew_nothing)))
    assert trial.expect_ask(trial.begin()).renew_after is None
    again = trial.expect_ask(trial.after(NoReply(REFUSED_CREDENTIAL)))
    assert (again.renew_after, again.number) == (REFUSED_CREDENTIAL, 2)
    assert trial.after(NoReply(REFUSED_CREDENTIAL)) == GiveUp(REFUSED_CREDENTIAL)


def test_each_of_several_credentials_is_renewed_once() -> None:
    trial = Trial(credentials=2, first=make_provider("one", auth=make_renewing(renew_nothing)))
    step = trial.begin()
    while isinstance(step, Ask):
        step = trial.after(NoReply(REFUSED_CREDENTIAL))
    first = trial.requests[0].provider.account.slot
    requests = [(ask.provider.account.slot, ask.renew_after is not None) for ask in trial.requests]
    assert requests == [(first, False), (first, True), (1 - first, False), (1 - first, True)]


@each_row("kind", [kind for kind in Kind if kind is not Kind.CREDENTIAL])
def test_no_other_failure_asks_for_a_renewal(kind: Kind) -> None:
    trial = Trial(first=make_provider("one", auth=make_renewing(renew_nothing)))
    trial.steps_until_given_up(Failure(kind, "no"))
    assert all(ask.renew_after is None for ask in trial.requests)


def drop_temperature(request: Request, ledger: Ledger) -> Request:
    return replace(request, temperature=None)


def drop_seed(request: Request, ledger: Ledger) -> Request:
    return replace(request, seed=None)


AMENDS = {
    "temperature": Adjustment("without temperature", drop_temperature),
    "seed": Adjustment("without seed", drop_seed),
    "server": Adjustment("as its server wants it", quirk="plain"),
    "model": Adjustment("as the model wants it", quirk="no_chat_tools", of_model=True, reroutes=True),
}


def adjust_by_message(failure: Failure) -> Adjustment | None:
    return AMENDS.get(failure.message)


def objection(what: str) -> NoReply:
    return NoReply(Failure(Kind.BAD_REQUEST, what))


def test_each_change_is_tried_once_and_changes_accumulate() -> None:
    trial = Trial(first=make_provider("one", requests=RequestRules(adjust=adjust_by_message)))
    trial.begin()
    assert trial.expect_ask(trial.after(objection("temperature"))).changes == (drop_temperature,)
    assert trial.expect_ask(trial.after(objection("seed"))).changes == (drop_temperature, drop_seed)
    assert trial.after(objection("temperature")) == GiveUp(Failure(Kind.BAD_REQUEST, "temperature"))


def test_a_quirk_is_learnt_for_the_tenant_and_the_request_is_repeated_at_once() -> None:
    trial = Trial(first=make_provider("one", requests=RequestRules(adjust=adjust_by_message)))
    trial.begin()
    assert trial.expect_ask(trial.after(objection("server"))).changes == ()
    trial.expect_ask(trial.after(objection("model")))
    assert trial.learnt.quirks("t", "one") == {"plain", "no_chat_tools:m"}
    assert trial.learnt.quirks("another tenant", "one") == frozenset()


@pytest.mark.parametrize(
    ("objected", "credentials", "is_repeated"),
    [
        ("temperature", 1, False),
        ("server", 1, False),
        ("model", 1, True),
        ("temperature", 2, True),
        ("server", 2, False),
    ],
)
def test_bytes_that_passed_unchanged_are_rebuilt_only_where_the_refusal_is_of_our_making(
    objected: str, credentials: int, is_repeated: bool
) -> None:
    trial = Trial(credentials=credentials, first=make_provider("one", requests=RequestRules(adjust=adjust_by_message)))
    trial.begin()
    end = NoReply(Failure(Kind.BAD_REQUEST, objected), ErrorReply(400, Headers([]), b"{}"))
    assert isinstance(trial.after(end), Ask) is is_repeated


def test_changes_stay_for_the_targets_and_retries_that_follow() -> None:
    trial = Trial(targets=2, first=make_provider("one", requests=RequestRules(adjust=adjust_by_message)))
    trial.begin()
    trial.after(objection("seed"))
    assert trial.expect_ask(trial.after(NoReply(Failure(Kind.LOST, "gone")))).changes == (drop_seed,)
    following = trial.expect_ask(trial.after(NoReply(Failure(Kind.QUOTA, "used up"))))
    assert (following.route, following.changes) == (TWO, (drop_seed,))
