"""A provider's credentials in turn, and which are left alone for how long."""

from collections.abc import Collection, Sequence
from itertools import product

import pytest
from msgspec.structs import replace

from dragoman.net.headers import Headers
from dragoman.proxy.credential_rotation import (
    COOLDOWNS,
    CredentialRound,
    available_targets,
    choose_least_restricted,
    start_cooldown,
)
from dragoman.proxy.step import NoReply
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.upstreams.credentials.cooldowns import ALL_MODELS, CredentialCooldown
from dragoman.upstreams.credentials.pool import CredentialChoice, Pool
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.routing import Route
from narrowing import present
from proxy.in_memory import NOW, make_pooled, make_provider, make_resting
from tables import each_row

NOTHING = Headers([])
SESSION = "t\0a conversation"


def pool_of(provider: Provider) -> Pool:
    return present(provider.account.cooldowns)


def round_of(
    provider: Provider, session: str | None = SESSION, excluded: tuple[int, ...] = (), *, spares: bool = False
) -> CredentialRound:
    return CredentialRound(provider, "m", session, excluded, spares=spares)


def list_used_slots(round: CredentialRound, failure: Failure) -> list[int]:
    """Return the slots of all credentials that are used while each is refused alike."""
    slots = []
    while (member := round.next()) is not None:
        slots.append(member.account.slot)
        round.record_refusal(NoReply(failure))
    return slots


def test_each_credential_is_used_once() -> None:
    provider = make_pooled(make_provider(), 3)
    assert sorted(list_used_slots(round_of(provider), Failure(Kind.NOT_FOUND, "which?"))) == [0, 1, 2]
    for provider, spares in product((make_provider(), make_resting(make_provider())), (False, True)):
        assert list_used_slots(round_of(provider, spares=spares), Failure(Kind.QUOTA, "spent")) == [0]


def test_a_conversation_stays_with_the_credential_that_answered_it() -> None:
    provider = make_pooled(make_provider(), 3)
    for slot in (2, 0, 1):
        pool_of(provider).record_success(slot, "m", SESSION, now=NOW)
        assert present(round_of(provider).next()).account.slot == slot


def test_the_first_token_binds_the_conversation_and_the_reply_to_the_credential() -> None:
    provider = make_pooled(make_provider(), 3)
    round = round_of(provider)
    member = round.next()
    assert member is not None
    round.record_answer(NOTHING, "t\0response resp_1")
    assert (
        pool_of(provider).last_member(SESSION)
        == pool_of(provider).last_member("t\0response resp_1")
        == member.account.slot
    )


def test_excluded_credentials_are_left_out() -> None:
    provider = make_pooled(make_provider(), 3)
    assert list_used_slots(round_of(provider, excluded=(0, 2)), Failure(Kind.NOT_FOUND, "which?")) == [1]
    exhausted = round_of(provider, excluded=(0, 1, 2))
    assert exhausted.next() is None
    assert exhausted.describe_exhaustion().failure.kind is Kind.QUOTA
    assert "'up'" in exhausted.describe_exhaustion().failure.message


@pytest.mark.parametrize(
    ("kind", "seconds", "models"),
    [
        (Kind.RATE_LIMITED, 5, ("m",)),
        (Kind.FORBIDDEN, 3600, ("m",)),
        (Kind.CREDENTIAL, 3600, ("m", "another")),
        (Kind.QUOTA, 3600, ("m", "another")),
    ],
)
def test_how_long_and_for_which_models_a_refused_credential_is_left_alone(
    kind: Kind, seconds: float, models: tuple[str, ...]
) -> None:
    provider = make_pooled(make_provider(), 2)
    pool = pool_of(provider)
    start_cooldown(provider.members[1], "m", Failure(kind, "no"))
    for model in ("m", "another"):
        expected = NOW + seconds if model in models else NOW
        assert pool.free_at(1, model, NOW) == expected
        assert pool.free_at(0, model, NOW) == NOW


@pytest.mark.parametrize(
    ("failure", "until"),
    [
        (Failure(Kind.QUOTA, "no", retry_after=7.0), NOW + 7),
        (Failure(Kind.QUOTA, "no", resets_at=NOW + 50, retry_after=7.0), NOW + 50),
        (Failure(Kind.QUOTA, "no", resets_at=NOW - 50, retry_after=7.0), NOW + 7),
        (Failure(Kind.QUOTA, "no", resets_at=NOW - 50), NOW + 3600),
    ],
)
def test_the_wait_that_the_upstream_names_wins(failure: Failure, until: float) -> None:
    provider = make_pooled(make_provider(), 2)
    start_cooldown(provider.members[0], "m", failure)
    assert pool_of(provider).free_at(0, "m", NOW) == until


@pytest.mark.parametrize(
    ("failure", "seconds"),
    [
        (Failure(Kind.RATE_LIMITED, "no"), 0),
        (Failure(Kind.RATE_LIMITED, "no", should_retry=True), 0),
        (Failure(Kind.RATE_LIMITED, "no", resets_at=NOW - 50), 0),
        (Failure(Kind.RATE_LIMITED, "no", retry_after=7200.0), 7200),
        (Failure(Kind.RATE_LIMITED, "no", resets_at=NOW + 50), 50),
        (Failure(Kind.QUOTA, "no"), 3600),
        (Failure(Kind.OVERLOADED, "no", status=529), 0),
    ],
)
def test_only_a_limit_without_a_reset_time_spares_a_credential_that_has_just_answered(
    failure: Failure, seconds: float
) -> None:
    provider = make_pooled(make_provider(), 2)
    pool_of(provider).record_success(0, "m", now=NOW - 59)
    start_cooldown(provider.members[0], "m", failure)
    assert pool_of(provider).free_at(0, "m", NOW) == NOW + seconds


@pytest.mark.parametrize(
    ("failures", "is_another_used"),
    [
        (("untimed", "untimed"), False),
        (("timed", "untimed"), True),
        (("untimed", "timed"), True),
        (("revoked", "untimed"), True),
        (("timed", "timed"), True),
    ],
)
def test_a_third_credential_is_used_unless_two_were_limited_without_a_reset_time(
    failures: tuple[str, str], is_another_used: bool
) -> None:
    kinds = {
        "untimed": Failure(Kind.RATE_LIMITED, "no"),
        "timed": LIMITED,
        "revoked": Failure(Kind.CREDENTIAL, "no"),
    }
    round = round_of(make_pooled(make_provider(), 20))
    round.begin_attempt()
    for failure in failures:
        round.record_refusal(NoReply(kinds[failure]))
        another = round.next()
    assert (another is not None) is is_another_used


def test_a_refused_conversation_moves_and_another_one_uses_the_same_credential_at_once() -> None:
    provider = make_pooled(make_provider(), 20)
    round = round_of(provider)
    home = present(round.begin_attempt()).account.slot
    pool_of(provider).record_success(home, "m", "t\0another conversation", now=NOW - 1000)
    round.record_refusal(NoReply(Failure(Kind.RATE_LIMITED, "no")))
    answering = present(round.next()).account.slot
    round.record_answer(NOTHING, None)
    assert pool_of(provider).free_at(home, "m", NOW) == NOW + 5, "for new conversations"
    assert present(round_of(provider).begin_attempt()).account.slot == answering != home
    assert present(round_of(provider, "t\0another conversation").begin_attempt()).account.slot == home


class RecordedChoices:
    """The choices of a captured request."""

    def __init__(self, *slots: int) -> None:
        self._choices = iter(slots)

    def choose(
        self, session: str | None, model: str, tried: Collection[int], now: float, untimed: Sequence[int] = ()
    ) -> CredentialChoice | None:
        slot = next(self._choices, None)
        return None if slot is None else CredentialChoice(slot)

    def find_soonest_free(self, model: str, now: float) -> int:
        return 0


def test_recorded_choices_are_followed_whatever_the_limit_is_today() -> None:
    pooled = make_pooled(make_provider(), 4)
    provider = replace(pooled, account=replace(pooled.account, chooser=RecordedChoices(3, 1, 0, 2)))
    assert list_used_slots(round_of(provider), Failure(Kind.RATE_LIMITED, "no")) == [3, 1, 0, 2]


@each_row("kind", [kind for kind in Kind if kind not in COOLDOWNS])
def test_no_other_failure_is_the_credentials(kind: Kind) -> None:
    provider = make_pooled(make_provider(), 2)
    start_cooldown(provider.members[0], "m", Failure(kind, "no", retry_after=60.0))
    assert pool_of(provider).free_at(0, "m", NOW) == NOW


@pytest.mark.parametrize(
    ("failure", "spares", "rests"),
    [
        (Failure(Kind.QUOTA, "no", resets_at=NOW + 50), True, True),
        (Failure(Kind.QUOTA, "no", resets_at=NOW + 50), False, False),  # there is no other target
        (Failure(Kind.QUOTA, "no"), True, False),  # without a reset
        (Failure(Kind.RATE_LIMITED, "no", retry_after=60.0), True, False),  # that is not the whole account
    ],
)
def test_a_single_credential_cools_down_only_where_another_target_can_answer_and_the_time_is_known(
    failure: Failure, spares: bool, rests: bool
) -> None:
    provider = make_resting(make_provider())
    list_used_slots(round_of(provider, spares=spares), failure)
    assert pool_of(provider).is_cooling_down("m", NOW) is rests


def test_an_answer_ends_a_cooldown() -> None:
    provider = make_pooled(make_provider(), 2)
    for slot in (0, 1):
        pool_of(provider).start_cooldown(slot, CredentialCooldown(ALL_MODELS, NOW + 60, "quota"), NOW)
    round = round_of(provider)
    member = round.next()
    round.record_answer(NOTHING, None)
    assert pool_of(provider).free_at(present(member).account.slot, "m", NOW) == NOW


def test_an_answer_may_report_that_it_used_up_the_allowance() -> None:
    spent = Headers([(b"x-ratelimit-remaining-tokens", b"0"), (b"x-ratelimit-reset-tokens", b"40s")])
    provider = make_pooled(make_provider(), 2)
    round = round_of(provider)
    member = round.next()
    round.record_answer(spent, None)
    assert pool_of(provider).free_at(present(member).account.slot, "m", NOW) == NOW + 40
    alone = make_resting(make_provider())
    lonely = round_of(alone, spares=True)
    lonely.next()
    lonely.record_answer(spent, None)
    assert not pool_of(alone).is_cooling_down("m", NOW)


LIMITED = Failure(Kind.RATE_LIMITED, "slow", retry_after=40.0)


def test_the_final_failure_of_a_single_credential_is_its_refusal() -> None:
    round = round_of(make_provider())
    round.next()
    end = NoReply(Failure(Kind.QUOTA, "spent"))
    round.record_refusal(end)
    assert round.choose_failure(end) is end


def test_the_final_failure_of_several_is_the_one_that_ends_soonest() -> None:
    provider = make_pooled(make_provider(), 2)
    round = round_of(provider)
    ends = [NoReply(Failure(Kind.RATE_LIMITED, "slow", retry_after=wait)) for wait in (90.0, 20.0)]
    for end in ends:
        round.next()
        round.record_refusal(end)
    assert round.choose_failure(ends[0]) is ends[1]


def test_a_credential_that_was_skipped_because_it_is_limited_counts_for_the_final_failure() -> None:
    provider = make_pooled(make_provider(), 2)
    pool = pool_of(provider)
    pool.record_success(0, "m", SESSION, now=NOW)
    pool.start_cooldown(1, CredentialCooldown("m", NOW + 40, Kind.RATE_LIMITED.value), NOW)
    round = round_of(provider)
    assert list_used_slots(round, Failure(Kind.CREDENTIAL, "expired")) == [0]
    final = round.choose_failure(NoReply(Failure(Kind.CREDENTIAL, "expired"))).failure
    assert (final.kind, final.status, final.retry_after) == (Kind.RATE_LIMITED, 429, 40.0)
    assert "'up'" in final.message


def test_a_permanent_refusal_does_not_promise_a_retry() -> None:
    provider = make_pooled(make_provider(), 2)
    pool_of(provider).record_success(0, "m", SESSION, now=NOW)
    pool_of(provider).start_cooldown(1, CredentialCooldown(ALL_MODELS, NOW + 40, Kind.CREDENTIAL.value), NOW)
    round = round_of(provider)
    expired = Failure(Kind.CREDENTIAL, "expired")
    list_used_slots(round, expired)
    assert round.choose_failure(NoReply(expired)).failure is expired


def test_targets_that_cool_down_are_left_out_unless_all_do() -> None:
    one, two = (make_resting(make_provider(name)) for name in ("one", "two"))
    providers = {"one": one, "two": two}
    routes = (Route("one", "m"), Route("two", "m"), Route("nobody", "m"))
    assert available_targets(routes, providers) == routes
    pool_of(one).start_cooldown(0, CredentialCooldown(ALL_MODELS, NOW + 60, "quota"), NOW)
    assert available_targets(routes, providers) == routes[1:]
    assert available_targets(routes[:1], providers) == routes[:1]
    pool_of(two).start_cooldown(0, CredentialCooldown("m", NOW + 60, "quota"), NOW)
    assert available_targets(routes[:2], providers) == routes[:2]


def test_a_target_is_not_left_out_after_limits_without_a_reset_time() -> None:
    """Its running conversations would lose their caches."""
    one, two = make_pooled(make_provider("one"), 2), make_provider("two")
    routes = (Route("one", "m"), Route("two", "m"))
    for slot in (0, 1):
        assert pool_of(one).start_untimed_cooldown(slot, "m", NOW) == 5
    assert available_targets(routes, {"one": one, "two": two}) == routes


def test_a_question_without_a_conversation_goes_to_whoever_is_free_soonest() -> None:
    provider = make_pooled(make_provider(), 3)
    for slot, seconds in enumerate((60, 20, 40)):
        pool_of(provider).start_cooldown(slot, CredentialCooldown(ALL_MODELS, NOW + seconds, "quota"), NOW)
    assert choose_least_restricted(provider, "m").account.slot == 1
    alone = make_provider()
    assert choose_least_restricted(alone, "m") is alone
