"""What a policy decides beyond its table: second chances, replies to be continued, rounds."""

import pytest
from msgspec.structs import replace

from dragoman.net.headers import Headers
from dragoman.proxy.between_turns import Then
from dragoman.proxy.rounds import ContinuePause, Paused
from dragoman.proxy.step import Ask, ErrorReply, Finish, GiveUp, Interrupted, NoReply, Step
from dragoman.translate.hub.events import Ended, Stop
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Request, Role, Sampling, Text, Turn
from dragoman.translate.hub.usage import Usage
from dragoman.upstreams.provider import Adjustment, RequestRules
from dragoman.upstreams.rejections.rules import Found
from narrowing import expect, present
from proxy.in_memory import MESSAGES_STREAM, make_provider, make_renewing, run
from proxy.policy_trial import ONE, TWO, Trial
from proxy.rigs import WriterRig
from tables import each_row

BROKEN_OFF = Failure(Kind.LOST, "gone")
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
    return replace(request, sampling=replace(request.sampling, temperature=None))


def drop_seed(request: Request, ledger: Ledger) -> Request:
    return replace(request, sampling=replace(request.sampling, seed=None))


AMENDS = {
    "temperature": Adjustment("without temperature", drop_temperature),
    "seed": Adjustment("without seed", drop_seed),
    "again": Adjustment("unchanged"),
    "reasoning": Adjustment("without reasoning", drops_reasoning=True),
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


def test_rejected_reasoning_is_dropped_in_one_request_and_then_remembered_by_value() -> None:
    trial = Trial(first=make_provider("one", requests=RequestRules(adjust=adjust_by_message)))
    assert not trial.expect_ask(trial.begin()).drops_reasoning
    assert trial.expect_ask(trial.after(objection("reasoning"))).drops_reasoning
    following = trial.expect_ask(trial.after(objection("seed")))
    assert (following.drops_reasoning, following.changes) == (False, (drop_seed,))
    assert isinstance(trial.after(objection("reasoning")), GiveUp)


SAMPLING, ROLE, FIELD = Found("no_sampling"), Found("no_developer"), Found("extra_field", "/tools/*/new")


def rejection(*repairs: Found, words: str = "no") -> NoReply:
    return NoReply(Failure(Kind.BAD_REQUEST, words), ErrorReply(400, Headers([]), b"{}"), repairs=repairs)


def test_a_call_costs_three_more_requests_at_most_whatever_is_changed() -> None:
    trial = Trial(first=make_provider("one", requests=RequestRules(adjust=adjust_by_message)))
    trial.begin()
    first = rejection(SAMPLING, words="first")
    trial.expect_ask(trial.after(first))
    for words in ("temperature", "seed"):
        trial.expect_ask(trial.after(objection(words)))
    assert trial.after(objection("again")) == GiveUp(first.failure, first.error_reply)


def test_what_is_rejected_is_learnt_once_the_request_without_it_is_answered() -> None:
    trial = Trial()
    assert trial.expect_ask(trial.begin()).repairs == ()
    assert trial.expect_ask(trial.after(rejection(SAMPLING))).repairs == (SAMPLING,)
    assert trial.expect_ask(trial.after(rejection(ROLE))).repairs == (SAMPLING, ROLE)
    assert trial.policy.chances.first is not None
    assert trial.learnt.find("t", "one", "m") == ()
    trial.policy.record_repaired()
    assert trial.learnt.find("t", "one", "m") == (SAMPLING, ROLE)
    assert trial.learnt.find("t", "one", "another model") == (ROLE,)
    assert trial.learnt.find("another tenant", "one", "m") == ()
    assert trial.policy.chances.first is None


@each_row("then", [rejection(words="still no"), NoReply(Failure(Kind.UPSTREAM, "broken")), NoReply(BROKEN_OFF)])
def test_a_changed_request_that_fails_too_teaches_nothing_and_the_first_error_is_reported(then: NoReply) -> None:
    trial = Trial()
    trial.begin()
    first = rejection(SAMPLING, words="the first")
    step = trial.after(first)
    while isinstance(step, Ask):
        step = trial.after(then)
    assert step == GiveUp(first.failure, first.error_reply)
    assert trial.learnt.list_all() == []


def test_a_call_is_repaired_three_times_at_most() -> None:
    trial = Trial()
    trial.begin()
    for number in range(3):
        trial.expect_ask(trial.after(rejection(Found("extra_field", f"/f{number}"), words=str(number))))
    assert expect(GiveUp, trial.after(rejection(FIELD))).failure.message == "0"


@pytest.mark.parametrize(
    ("objected", "credentials", "is_repeated"),
    [
        ("temperature", 1, False),
        ("temperature", 2, True),
        ("again", 2, False),
        ("reasoning", 1, False),
        ("reasoning", 2, True),
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


# Which target continues a reply that broke off, and what the client gets if none does

BROKEN = Failure(Kind.LOST, "the connection broke")
TEXT = "Half a"
# After these the next target is tried; the others are faults of the client, or ours.
AT_FAULT = (Kind.RATE_LIMITED, Kind.CREDENTIAL, Kind.FORBIDDEN, Kind.QUOTA, Kind.NOT_FOUND)  # the credential is
OURS = (Kind.LIMITED, Kind.SPENT)  # a limit of the target that has broken off
CONTINUED = (Kind.LOST, Kind.TIMEOUT, Kind.OVERLOADED, Kind.UPSTREAM, Kind.TRUNCATED, Kind.CORRUPT, *AT_FAULT, *OURS)


def interrupt_reply(trial: Trial, failure: Failure = BROKEN, text: str | None = TEXT) -> Step:
    trial.policy.record_first_token(Headers([]), None)
    return trial.after(Interrupted(failure, text))


@each_row("kind", CONTINUED)
@each_row(
    ("targets", "credentials", "allowed", "text", "row"),
    [
        (1, 1, True, TEXT, "!"),
        (2, 1, True, TEXT, "X"),
        (1, 2, True, TEXT, "b"),
        (2, 2, False, TEXT, "!"),
        (2, 2, True, None, "!"),  # a tool was called, or there is no text yet
        (2, 1, True, "", "X"),
    ],
)
def test_which_target_continues_a_reply_that_broke_off(
    kind: Kind, targets: int, credentials: int, allowed: bool, text: str | None, row: str
) -> None:
    trial = Trial(targets=targets, credentials=credentials, continues=allowed)
    first = trial.expect_ask(trial.begin())
    failure = Failure(kind, "broke off")
    step = interrupt_reply(trial, failure, text)
    if row == "!":
        assert step == GiveUp(failure)
        return
    ask = trial.expect_ask(step)
    assert ask.route == (TWO if row == "X" else ONE)
    assert row == "X" or ask.provider.account.slot != first.provider.account.slot
    assert ask.continuation is not None
    assert (ask.continuation.text, ask.continuation.failure, ask.number) == (text, failure, 2)


@each_row("kind", CONTINUED)
def test_another_credential_continues_first_where_the_credential_is_at_fault_else_another_target(kind: Kind) -> None:
    trial = Trial(targets=2, credentials=2, continues=True)
    trial.begin()
    first = trial.expect_ask(interrupt_reply(trial, Failure(kind, "broke off")))
    second = trial.expect_ask(trial.after(NoReply(Failure(Kind.QUOTA, "spent"))))
    assert [first.route, second.route] == ([ONE, TWO] if kind in AT_FAULT else [TWO, ONE])
    slots = [ask.provider.account.slot for ask in trial.requests if ask.route == ONE]
    assert sorted(slots) == [0, 1]


def test_the_client_gets_the_first_failure_where_no_target_continues() -> None:
    trial = Trial(targets=2, continues=True)
    trial.begin()
    interrupt_reply(trial)
    assert trial.after(NoReply(Failure(Kind.QUOTA, "spent"))) == GiveUp(BROKEN)


def test_a_target_that_continues_is_retried_like_any_other() -> None:
    trial = Trial(targets=2, continues=True)
    trial.begin()
    interrupt_reply(trial)
    step = trial.after(NoReply(Failure(Kind.OVERLOADED, "busy")))
    assert (trial.expect_ask(step).route, trial.waits) == (TWO, [1.0])


def adjust_seed(failure: Failure) -> Adjustment | None:
    return Adjustment("without seed", drop_seed) if failure.kind is Kind.BAD_REQUEST else None


def test_the_request_of_a_continuation_holds_the_text_so_far_after_all_other_changes() -> None:
    trial = Trial(targets=2, continues=True, first=make_provider("one", requests=RequestRules(adjust=adjust_seed)))
    trial.begin()
    trial.after(NoReply(Failure(Kind.BAD_REQUEST, "no seed, please")))
    ask = trial.expect_ask(interrupt_reply(trial))
    assert ask.changes[0] is drop_seed
    request = Request("chat", "m", (Turn(Role.USER, (Text("Go on."),)),), sampling=Sampling(seed=7))
    for change in ask.changes:
        request = change(request, Ledger())
    assert request.sampling.seed is None
    assert [turn.role for turn in request.turns] == [Role.USER, Role.ASSISTANT, Role.USER]
    assert request.turns[1].parts == (Text(TEXT),)


def test_credentials_that_broke_off_the_reply_are_not_used_for_it_again() -> None:
    trial = Trial(credentials=3, continues=True)
    slots = [trial.expect_ask(trial.begin()).provider.account.slot]
    slots.append(trial.expect_ask(interrupt_reply(trial)).provider.account.slot)
    slots.append(trial.expect_ask(interrupt_reply(trial, text="Half a loaf")).provider.account.slot)
    assert sorted(slots) == [0, 1, 2]
    last = Failure(Kind.TRUNCATED, "the stream just ended")
    assert interrupt_reply(trial, last, "Half a loaf is") == GiveUp(last)


def test_a_second_interruption_continues_from_all_that_was_sent() -> None:
    trial = Trial(targets=2, credentials=2, continues=True)
    trial.begin()
    interrupt_reply(trial, Failure(Kind.QUOTA, "spent"))  # the other credential continues
    ask = trial.expect_ask(interrupt_reply(trial, text="Half a loaf"))
    assert ask.route == TWO
    assert present(ask.continuation).text == "Half a loaf"


def test_an_interruption_starts_a_cooldown() -> None:
    trial = Trial(credentials=2, continues=False)
    first = trial.expect_ask(trial.begin()).provider.account.slot
    interrupt_reply(trial, Failure(Kind.QUOTA, "spent"))
    assert trial.expect_ask(trial.begin()).provider.account.slot == 1 - first


def test_another_credential_continues_after_all_targets_have_broken_off_too() -> None:
    trial = Trial(targets=2, credentials=2, continues=True)
    first = trial.expect_ask(trial.begin())
    assert trial.expect_ask(interrupt_reply(trial)).route == TWO
    last = trial.expect_ask(interrupt_reply(trial, text="Half a loaf"))
    assert (last.route, last.provider.account.slot) == (ONE, 1 - first.provider.account.slot)
    assert isinstance(interrupt_reply(trial, text="Half a loaf is"), GiveUp)


@each_row("kind", [kind for kind in Kind if kind not in CONTINUED])
def test_no_target_continues_after_a_bad_request_a_too_long_context_or_a_refusal(kind: Kind) -> None:
    trial = Trial(targets=2, credentials=2, continues=True)
    trial.begin()
    failure = Failure(kind, "no")
    assert interrupt_reply(trial, failure) == GiveUp(failure)


# What follows when the gateway has run tools, or an upstream has paused: the same target gets the next request


async def pause() -> Paused:
    reply = await WriterRig("messages", MESSAGES_STREAM).open_translated()
    return Paused(reply, [Ended(Stop.PAUSE)], Ended(Stop.PAUSE), Usage(output=3))


def pause_once(targets: int = 1, attempts: int = 3) -> Trial:
    """Return a call whose first turn was paused, and whose second has just begun."""
    trial = Trial(targets=targets, attempts=attempts)
    trial.begin()
    paused = run(pause())
    step = trial.after(paused)
    assert isinstance(step, ContinuePause)
    step.rounds.add(paused.events, {}, paused.used.output)
    assert expect(Ask, trial.after_step(Then.NEXT_ROUND)).rounds is step.rounds
    return trial


def test_a_paused_turn_is_continued_by_the_same_target() -> None:
    trial = pause_once(targets=2)
    assert [ask.route for ask in trial.requests] == [ONE, ONE]
    assert [ask.number for ask in trial.requests] == [1, 2]


def test_a_reply_that_is_finished_ends() -> None:
    assert isinstance(pause_once().after_step(Then.FINISH), Finish)


def test_a_later_round_is_repeated_by_the_same_target_alone() -> None:
    trial = pause_once(targets=2, attempts=2)
    again = trial.after(NoReply(BROKEN))
    assert isinstance(again, Ask)
    assert (again.route, again.rounds) == (ONE, trial.requests[1].rounds)
    assert expect(GiveUp, trial.after(NoReply(BROKEN))).failure is BROKEN


def test_each_round_has_all_its_attempts() -> None:
    trial = Trial(attempts=2)
    trial.begin()
    for _ in range(3):  # each round fails once, and is repeated
        assert isinstance(trial.after(NoReply(BROKEN)), Ask)
        assert isinstance(trial.after_step(Then.NEXT_ROUND), Ask)
    assert isinstance(trial.after(NoReply(BROKEN)), Ask)
    assert isinstance(trial.after(NoReply(BROKEN)), GiveUp)


def test_the_client_gets_the_failure_of_a_later_round() -> None:
    assert isinstance(pause_once(targets=2).after(Interrupted(BROKEN)), GiveUp)
