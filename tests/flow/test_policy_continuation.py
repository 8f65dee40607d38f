"""Which target continues a reply that broke off, and what the client gets if none does."""

from msgspec.structs import replace

from dragoman.flow.step import GiveUp, Interrupted, NoReply, Step
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Request, Role, Text, Turn
from dragoman.net.headers import Headers
from dragoman.providers.provider import Adjustment, RequestRules
from flow.in_memory import make_provider
from flow.policy_trial import ONE, TWO, Trial
from narrowing import present
from tables import each_row

BROKEN = Failure(Kind.LOST, "the connection broke")
TEXT = "Half a"
# After these the next target is tried; the others are faults of the client, or ours.
AT_FAULT = (Kind.RATE_LIMITED, Kind.CREDENTIAL, Kind.FORBIDDEN, Kind.QUOTA, Kind.NOT_FOUND)  # the credential is
CONTINUED = (Kind.LOST, Kind.TIMEOUT, Kind.OVERLOADED, Kind.UPSTREAM, Kind.TRUNCATED, Kind.CORRUPT, *AT_FAULT)


def interrupt_reply(trial: Trial, failure: Failure = BROKEN, text: str | None = TEXT) -> Step:
    trial.policy.note_first_token(Headers([]), None)
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


def drop_seed(request: Request, ledger: Ledger) -> Request:
    return replace(request, seed=None)


def adjust_seed(failure: Failure) -> Adjustment | None:
    return Adjustment("without seed", drop_seed) if failure.kind is Kind.BAD_REQUEST else None


def test_the_request_of_a_continuation_holds_the_text_so_far_after_all_other_changes() -> None:
    trial = Trial(targets=2, continues=True, first=make_provider("one", requests=RequestRules(adjust=adjust_seed)))
    trial.begin()
    trial.after(NoReply(Failure(Kind.BAD_REQUEST, "no seed, please")))
    ask = trial.expect_ask(interrupt_reply(trial))
    assert ask.changes[0] is drop_seed
    request = Request("chat", "m", (Turn(Role.USER, (Text("Go on."),)),), seed=7)
    for change in ask.changes:
        request = change(request, Ledger())
    assert request.seed is None
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
