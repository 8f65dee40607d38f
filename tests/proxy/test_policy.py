"""What follows each end of an upstream turn: the whole decision table, without a gateway.

A row is written as the steps that a call takes while every target refuses it alike:

    a, b, c   ask the first target with its first, second, third credential (in the order of their first use)
    X         ask the second target
    -         wait, then ask again
    !         give up
"""

from collections.abc import Iterable
from itertools import product

import pytest
from msgspec.structs import replace

from dragoman.config.settings import Retry
from dragoman.net.headers import Headers
from dragoman.proxy.between_turns import Then
from dragoman.proxy.complete_reply import CompleteCall, CutCalls, DropCutCalls
from dragoman.proxy.policy import AFTER, Policy, RetryLimits, SecondChances
from dragoman.proxy.prepared import Translated
from dragoman.proxy.replies.translated import TranslatedStream
from dragoman.proxy.step import Ask, Completed, ErrorReply, Finish, GiveUp, NoReply, Step, Wait
from dragoman.translate.hub.events import TruncatedCall
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.upstreams.credentials.cooldowns import CredentialCooldown
from dragoman.upstreams.learned_quirks import LearnedQuirks
from dragoman.upstreams.provider import Endpoint, FirstTokenWait, ReplyRules
from dragoman.upstreams.routing import Route
from narrowing import expect, present
from proxy.in_memory import MESSAGES_STREAM, NOW, URL, make_provider, run, send_nothing
from proxy.policy_trial import ONE, TWO, Trial
from proxy.rigs import WriterRig
from tables import each_row

# What an upstream adds to its refusal.
SHORT_S, LONG_S = 2.0, 60.0
ADVICE: dict[str, dict[str, object]] = {
    "none": {},
    "wait 2 s": {"retry_after": SHORT_S},
    "wait 60 s": {"retry_after": LONG_S},
    "never": {"should_retry": False},
    "do": {"should_retry": True},
}

# Which kinds of failure are treated alike. `contract.md`: "Retries", "The next target", "Time-outs".
GROUPS: dict[str, tuple[Kind, ...]] = {
    "transient": (Kind.LOST, Kind.OVERLOADED, Kind.UPSTREAM, Kind.TRUNCATED, Kind.CORRUPT),
    "limited": (Kind.RATE_LIMITED,),
    "ours": (Kind.LIMITED, Kind.SPENT),
    "late": (Kind.TIMEOUT,),
    "account": (Kind.CREDENTIAL, Kind.FORBIDDEN, Kind.QUOTA, Kind.NOT_FOUND),
    "final": (
        *(Kind.BAD_REQUEST, Kind.TOO_LARGE, Kind.REQUEST_TIMEOUT, Kind.AUTH, Kind.CONFLICT, Kind.CONTEXT_TOO_LONG),
        *(Kind.REFUSED, Kind.BUSY, Kind.SHUTDOWN, Kind.BUG),
    ),
}

# (group, attempts, advice) -> the steps with
#                                one target    two targets     two credentials  two credentials, two targets
TABLE: dict[tuple[str, int, str], tuple[str, str, str, str]] = {
    ("transient", 3, "none"): ("a-a-a!", "a-a-aX-X-X!", "a-a-a!", "a-a-aX-X-X!"),
    ("transient", 3, "do"): ("a-a-a!", "a-a-aX-X-X!", "a-a-a!", "a-a-aX-X-X!"),
    ("transient", 3, "wait 2 s"): ("a-a-a!", "a-a-aX-X-X!", "a-a-a!", "a-a-aX-X-X!"),
    ("transient", 3, "wait 60 s"): ("a!", "aX!", "a!", "aX!"),
    ("transient", 3, "never"): ("a!", "aX!", "a!", "aX!"),
    # Where the upstream names no time, one other credential is used; each further attempt uses one of these two.
    ("limited", 3, "none"): ("a-a-a!", "a-a-aX-X-X!", "ab-a-b!", "ab-a-bX-X-X!"),
    ("limited", 3, "do"): ("a-a-a!", "a-a-aX-X-X!", "ab-a-b!", "ab-a-bX-X-X!"),
    ("limited", 3, "wait 2 s"): ("a-a-a!", "a-a-aX-X-X!", "ab-ab-ab!", "ab-ab-abX-X-X!"),
    ("limited", 3, "wait 60 s"): ("a!", "aX!", "ab!", "abX!"),
    ("limited", 3, "never"): ("a!", "aX!", "ab!", "abX!"),
    # It was sent and may be paid for: not to the same target again.
    **dict.fromkeys((("late", 3, advice) for advice in ADVICE), ("a!", "aX!", "a!", "aX!")),
    **dict.fromkeys((("account", 3, advice) for advice in ADVICE), ("a!", "aX!", "ab!", "abX!")),
    # A limit of the target's provider, whichever credential is used.
    **dict.fromkeys(
        ((("ours", attempts, advice)) for attempts in (1, 3) for advice in ADVICE), ("a!", "aX!", "a!", "aX!")
    ),
    **dict.fromkeys((("final", 3, advice) for advice in ADVICE), ("a!", "a!", "a!", "a!")),
    # The first attempt is the last.
    **dict.fromkeys((("transient", 1, advice) for advice in ADVICE), ("a!", "aX!", "a!", "aX!")),
    **dict.fromkeys((("limited", 1, advice) for advice in ADVICE), ("a!", "aX!", "ab!", "abX!")),
    **dict.fromkeys((("late", 1, advice) for advice in ADVICE), ("a!", "aX!", "a!", "aX!")),
    **dict.fromkeys((("account", 1, advice) for advice in ADVICE), ("a!", "aX!", "ab!", "abX!")),
    **dict.fromkeys((("final", 1, advice) for advice in ADVICE), ("a!", "a!", "a!", "a!")),
}
SETTINGS = ((1, 1), (2, 1), (1, 2), (2, 2))  # targets, credentials of the first: the columns of the table


def rows() -> Iterable[tuple[Kind, int, str, int, int, str]]:
    for (group, attempts, advice), columns in TABLE.items():
        for kind, ((targets, credentials), row) in product(GROUPS[group], zip(SETTINGS, columns, strict=True)):
            yield kind, attempts, advice, targets, credentials, row


def test_the_table_has_every_kind_once_and_every_case() -> None:
    assert sorted(kind.value for kinds in GROUPS.values() for kind in kinds) == sorted(kind.value for kind in Kind)
    assert set(AFTER) == set(Kind)
    assert set(TABLE) == set(product(GROUPS, (3, 1), ADVICE))


@each_row(
    ("kind", "attempts", "advice", "targets", "credentials", "row"),
    [
        pytest.param(*row, id=f"{row[0].value}, {row[1]} attempts, advice {row[2]}, {row[3]} targets, {row[4]} keys")
        for row in rows()
    ],
)
def test_the_steps_of_a_call_that_every_target_refuses_alike(
    kind: Kind, attempts: int, advice: str, targets: int, credentials: int, row: str
) -> None:
    failure = replace(Failure(kind, "no"), **ADVICE[advice])
    trial = Trial(targets=targets, credentials=credentials, attempts=attempts)
    assert trial.steps_until_given_up(failure) == row


@pytest.mark.parametrize(
    ("targets", "credentials", "attempts", "row"),
    [
        (1, 1, 3, "a-a-a!"),
        (2, 1, 3, "a-a-aX!"),
        (1, 2, 3, "a-a-a!"),
        (2, 2, 3, "a-a-aX!"),
        (1, 1, 1, "a!"),
        (2, 2, 1, "aX!"),
    ],
)
def test_a_provider_that_repeats_timeouts_is_retried_after_one(
    targets: int, credentials: int, attempts: int, row: str
) -> None:
    kiro = make_provider(
        "one", endpoint=Endpoint(URL, ("chat",), send_nothing, first_token=FirstTokenWait(retries_timeouts=True))
    )
    trial = Trial(targets=targets, credentials=credentials, attempts=attempts, first=kiro)
    assert trial.steps_until_given_up(Failure(Kind.TIMEOUT, "no data for 15 s")) == row


@pytest.mark.parametrize(("status", "row"), [(504, "a-a-aX-X-X!"), (408, "aX!"), (None, "aX!")])
def test_an_answer_with_status_504_is_retried_and_what_we_stopped_waiting_for_is_not(
    status: int | None, row: str
) -> None:
    trial = Trial(targets=2, credentials=1, attempts=3)
    assert trial.steps_until_given_up(Failure(Kind.TIMEOUT, "late", status=status)) == row


@pytest.mark.parametrize(
    ("retry_after", "waits"),
    [
        (None, [1.0, 2.0, 4.0]),  # base_s, doubled each time
        (0.0, [0.0, 0.0, 0.0]),  # a stale connection is no reason to wait
        (3.0, [3.0, 3.0, 3.0]),
        (5.0, [5.0, 5.0, 5.0]),  # max_wait_s itself is still waited for
        (5.1, []),
    ],
)
def test_how_long_each_retry_waits(retry_after: float | None, waits: list[float]) -> None:
    trial = Trial(attempts=4)
    trial.steps_until_given_up(Failure(Kind.OVERLOADED, "busy", retry_after=retry_after))
    assert trial.waits == waits


def test_waits_are_spread_by_the_jitter_and_a_named_time_is_not() -> None:
    def first_wait(failure: Failure) -> Step:
        limits = RetryLimits(Retry(attempts=2, base_s=2.0), continues=False, jitter=lambda: 1.25)
        policy = Policy((ONE,), {"one": make_provider("one")}, limits, SecondChances(LearnedQuirks(), "t"), {})
        policy.begin()
        return policy.after(NoReply(failure))

    assert first_wait(Failure(Kind.LOST, "gone")) == Wait(2.5)
    assert first_wait(Failure(Kind.LOST, "gone", retry_after=3.0)) == Wait(3.0)


def test_upstream_requests_are_numbered_over_retries_credentials_and_targets() -> None:
    trial = Trial(targets=2, credentials=2)
    trial.steps_until_given_up(Failure(Kind.RATE_LIMITED, "slow down", retry_after=SHORT_S))
    assert len(trial.requests) == 9
    assert [ask.number for ask in trial.requests] == list(range(1, 10))


def test_the_final_failure_is_the_last_refusal_with_its_own_error_body() -> None:
    trial = Trial(targets=2)
    trial.begin()
    trial.after(NoReply(Failure(Kind.QUOTA, "the first one's allowance is used up")))
    own = ErrorReply(404, Headers([]), b'{"error":{"message":"which model?"}}')
    unknown = Failure(Kind.NOT_FOUND, "which model?")
    assert trial.after(NoReply(unknown, own)) == GiveUp(unknown, own)


PASSING = (Kind.LOST, Kind.TIMEOUT, Kind.RATE_LIMITED, Kind.OVERLOADED, Kind.UPSTREAM, Kind.TRUNCATED, Kind.CORRUPT)
LASTING = GROUPS["account"]
OWN_BODY = ErrorReply(403, Headers([(b"x-should-retry", b"false"), (b"x-more", b"1")]), b"{}")


def give_up_after(*failures: Failure, error_reply: ErrorReply | None = None) -> GiveUp:
    """Let each target fail in this way, the last one with this error of its own."""
    ends = [NoReply(failure) for failure in failures[:-1]] + [NoReply(failures[-1], error_reply)]
    routes = tuple(Route(f"p{number}", "m") for number in range(len(failures)))
    limits = RetryLimits(Retry(attempts=1), continues=False, jitter=lambda: 1.0)
    providers = {route.provider: make_provider(route.provider) for route in routes}
    policy = Policy(routes, providers, limits, SecondChances(LearnedQuirks(), "t"), {})
    policy.begin()
    steps = [policy.after(end) for end in ends]
    return expect(GiveUp, steps[-1])


def test_of_several_targets_one_that_failed_in_passing_is_reported() -> None:
    """Else a client would give up for good because a spare provider's key is stale."""
    for passing, lasting, advice in product(PASSING, LASTING, (None, False)):
        first, last = Failure(passing, "not now"), Failure(lasting, "never", should_retry=advice)
        assert give_up_after(first, last, error_reply=OWN_BODY) == GiveUp(first), (passing, lasting)
        assert give_up_after(last, first) == GiveUp(first), (passing, lasting)
        assert give_up_after(last, last, error_reply=OWN_BODY) == GiveUp(last, OWN_BODY), (passing, lasting)


@each_row(
    ("rule", "failures", "expected"),
    [
        ("the last one where several pass", ((Kind.UPSTREAM, None), (Kind.LOST, None), (Kind.QUOTA, None)), 1),
        ("the shortest wait that is known", ((Kind.RATE_LIMITED, 9), (Kind.LOST, None), (Kind.QUOTA, None)), 0),
        ("the shortest of two", ((Kind.RATE_LIMITED, 9), (Kind.OVERLOADED, 7), (Kind.FORBIDDEN, None)), 1),
        (
            "the shortest of two, though the last one waits too",
            ((Kind.LOST, None), (Kind.OVERLOADED, 7), (Kind.LOST, 9)),
            1,
        ),
        ("the last target of all", ((Kind.RATE_LIMITED, 9), (Kind.CREDENTIAL, None), (Kind.LOST, None)), 2),
    ],
)
def test_which_failure_is_reported_where_several_targets_failed_in_passing(
    rule: str, failures: tuple[tuple[Kind, float | None], ...], expected: int
) -> None:
    made = [Failure(kind, f"{number}", retry_after=wait) for number, (kind, wait) in enumerate(failures)]
    assert give_up_after(*made) == GiveUp(made[expected]), rule


def test_a_target_that_advises_against_a_retry_has_not_failed_in_passing() -> None:
    never, limited = Failure(Kind.UPSTREAM, "a redirect", should_retry=False), Failure(Kind.RATE_LIMITED, "not now")
    assert give_up_after(never, Failure(Kind.QUOTA, "spent")) == GiveUp(Failure(Kind.QUOTA, "spent"))
    assert give_up_after(limited, never) == GiveUp(limited)


def test_a_judgement_of_the_request_is_reported_without_advice_against_a_retry() -> None:
    bad, limited = Failure(Kind.BAD_REQUEST, "no such field", should_retry=False), Failure(Kind.RATE_LIMITED, "not now")
    step = give_up_after(limited, bad, error_reply=OWN_BODY)
    own = expect(ErrorReply, step.error_reply)
    assert (step.failure, own.status, own.body) == (replace(bad, should_retry=None), 403, b"{}")
    assert own.headers.fields == [(b"x-more", b"1")]
    quota = Failure(Kind.QUOTA, "spent")
    assert give_up_after(quota, bad, error_reply=OWN_BODY) == GiveUp(bad, OWN_BODY)


def test_a_target_of_an_unknown_provider_is_passed_over() -> None:
    limits = RetryLimits(Retry(), continues=False, jitter=lambda: 1.0)
    chances = SecondChances(LearnedQuirks(), "t")
    policy = Policy((Route("nobody", "m"), TWO), {"two": make_provider("two")}, limits, chances, {})
    assert expect(Ask, policy.begin()).route == TWO
    alone = Policy((Route("nobody", "m"),), {}, limits, chances, {}).begin()
    assert isinstance(alone, GiveUp)
    assert (alone.failure.kind, alone.failure.code) == (Kind.NOT_FOUND, "model_not_found")
    assert "'nobody'" in alone.failure.message


def test_a_reply_that_has_come_to_its_end_is_finished() -> None:
    trial = Trial(targets=2, credentials=2)
    trial.begin()
    assert trial.after(Completed()) == Finish()
    trial.begin()
    assert trial.after(Completed(Failure(Kind.UPSTREAM, "reported in the stream"))) == Finish()


# Cut tool calls: `contract.md`, "repair_truncation"

CUT = TruncatedCall("call_1", "write", '{"path": "a')


@pytest.mark.parametrize(
    ("repairs", "calls", "completes"), [(True, 1, True), (True, 2, False), (False, 1, False), (False, 2, False)]
)
def test_one_cut_call_is_completed_where_its_provider_repairs(repairs: bool, calls: int, completes: bool) -> None:
    provider = make_provider("one", ("messages",), replies=ReplyRules(completes_cut_calls=repairs))
    reply = run(open_translated())
    trial = Trial(first=provider)
    trial.begin()
    assert isinstance(reply.origin.prepared, Translated)
    prepared = replace(reply.origin.prepared, provider=provider)
    cut = CutCalls(prepared, reply, (CUT,) * calls)
    assert trial.after(cut) == (CompleteCall(cut) if completes else DropCutCalls(cut))


async def open_translated() -> TranslatedStream:
    return await WriterRig("messages", MESSAGES_STREAM).open_translated()


def test_a_step_that_completes_the_reply_ends_it() -> None:
    trial = Trial()
    trial.begin()
    assert trial.after_step(Then.FINISH) == Finish()


# Several credentials

LIMITED = Failure(Kind.RATE_LIMITED, "slow down", retry_after=LONG_S)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ((Failure(Kind.CREDENTIAL, "expired"), LIMITED), LIMITED),
        ((LIMITED, Failure(Kind.CREDENTIAL, "expired")), LIMITED),
        ((Failure(Kind.FORBIDDEN, "no"), Failure(Kind.QUOTA, "spent")), Failure(Kind.QUOTA, "spent")),
        ((Failure(Kind.NOT_FOUND, "which?"), Failure(Kind.FORBIDDEN, "no")), Failure(Kind.FORBIDDEN, "no")),
        ((Failure(Kind.NOT_FOUND, "which?"), Failure(Kind.CREDENTIAL, "expired")), Failure(Kind.CREDENTIAL, "expired")),
    ],
)
def test_of_several_refused_credentials_the_client_gets_the_refusal_that_ends_soonest(
    failures: tuple[Failure, Failure], expected: Failure
) -> None:
    trial = Trial(credentials=2)
    trial.begin()
    trial.expect_ask(trial.after(NoReply(failures[0])))
    assert trial.after(NoReply(failures[1])) == GiveUp(expected)


@each_row("answered", [True, False])
@each_row(
    ("failure", "attempts", "row"),
    [
        (Failure(Kind.RATE_LIMITED, "no", status=429), 3, "ab-a-b!"),
        (Failure(Kind.RATE_LIMITED, "no", status=429, should_retry=True), 4, "ab-a-b-a!"),
        (Failure(Kind.RATE_LIMITED, "no", status=429), 1, "ab!"),
        (Failure(Kind.RATE_LIMITED, "no", status=429, retry_after=LONG_S), 3, "abc!"),
        (Failure(Kind.RATE_LIMITED, "no", status=429, resets_at=NOW + LONG_S), 1, "abc!"),
        (Failure(Kind.OVERLOADED, "no", status=529), 3, "a-a-a!"),
        (Failure(Kind.OVERLOADED, "no", status=529), 1, "a!"),
    ],
)
def test_a_limit_without_a_reset_time_is_passed_on_after_two_credentials(
    failure: Failure, attempts: int, row: str, answered: bool
) -> None:
    trial = Trial(credentials=3, attempts=attempts)
    pool = present(trial.providers["one"].account.pool)
    for slot in range(3):
        if answered:
            pool.record_success(slot, "m", now=NOW)
    assert trial.steps_until_given_up(failure) == row


def test_a_retry_that_finds_an_overload_stays_with_the_two_credentials() -> None:
    trial = Trial(credentials=3)
    step = trial.begin()
    for kind in (Kind.RATE_LIMITED, Kind.RATE_LIMITED, Kind.OVERLOADED, Kind.RATE_LIMITED):
        trial.expect_ask(step)
        step = trial.after(NoReply(Failure(kind, "no")))
    assert isinstance(step, GiveUp)
    assert len({ask.provider.account.slot for ask in trial.requests}) == 2


def test_a_retry_after_a_limit_without_a_reset_time_does_not_use_a_credential_before_its_reset() -> None:
    """Another request learns of the reset while this one waits."""
    trial = Trial(credentials=3)
    pool = present(trial.providers["one"].account.pool)
    limited = NoReply(Failure(Kind.RATE_LIMITED, "no"))
    first = trial.expect_ask(trial.begin()).provider.account.slot
    pool.start_cooldown(first, CredentialCooldown("m", NOW + 3600, "rate_limited"), NOW)
    second = trial.expect_ask(trial.after(limited)).provider.account.slot
    assert trial.expect_ask(trial.after(limited)).provider.account.slot == second
    assert len(trial.waits) == 1


def test_a_credential_that_is_cooling_down_is_not_used() -> None:
    trial = Trial(credentials=2)
    first = trial.expect_ask(trial.begin()).provider.account.slot
    trial.after(NoReply(Failure(Kind.QUOTA, "spent")))
    assert [ask.provider.account.slot for ask in trial.requests] == [first, 1 - first]
    trial.policy.record_first_token(Headers([]), None)
    trial.after(Completed())
    assert trial.expect_ask(trial.begin()).provider.account.slot == 1 - first


def test_a_failure_at_the_end_of_a_reply_starts_a_cooldown() -> None:
    """Codex says inside a good stream that the allowance is used up."""
    trial = Trial(credentials=2)
    first = trial.expect_ask(trial.begin()).provider.account.slot
    trial.policy.record_first_token(Headers([]), None)
    assert trial.after(Completed(Failure(Kind.QUOTA, "spent", retry_after=LONG_S))) == Finish()
    assert trial.expect_ask(trial.begin()).provider.account.slot == 1 - first


def test_a_call_that_is_over_frees_the_credential_that_it_was_to_find_out_about() -> None:
    trial = Trial(credentials=2)
    pool = trial.providers["one"].account.pool
    assert pool is not None
    for slot in (0, 1):
        pool.start_cooldown(slot, CredentialCooldown("m", NOW + 3600, "quota"), NOW)
    slot = trial.expect_ask(trial.begin()).provider.account.slot
    trial.clock.now += 301  # from now on, the cooldown is doubted by one request at a time
    assert pool.choose(None, "m", {1 - slot}, trial.clock.now) is None
    trial.policy.release()
    assert pool.choose(None, "m", {1 - slot}, trial.clock.now) is not None
