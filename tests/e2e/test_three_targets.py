"""Three targets under faults: one whole reply or one typed error, and exactly as many calls as the table says."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path

import anthropic
import openai
import pytest

import asking
import grammar_chat
import grammar_messages
import grammar_responses
from e2e.cases import request_for
from e2e.faults import OPENAI_OVERLOADED, Fault, assert_error
from e2e.targets import ROUTES, Site, Targets, run_targets
from fakes.upstream import Answer, End, FakeUpstream
from gateway import provider_section
from narrowing import expect
from rig import PROTOCOLS, run_rig
from scripting.replies import Stop
from sdk_replies import STOPS, STREAMS, WHOLE, Broke, Halted, Sdk, SdkReply
from waiting import wait_until

ATTEMPTS = 3
SETTINGS = f"[retry]\nattempts = {ATTEMPTS}\nbase_s = 0.002\n"
GRAMMARS = {"chat": grammar_chat, "responses": grammar_responses, "messages": grammar_messages}
QUOTA = {"chat": 429, "responses": 429, "messages": 402}


@dataclass(frozen=True)
class Trouble:
    play: Callable[[Site, bool], Answer]
    calls: int  # of each target that has it
    seen: dict[str, int]  # client -> status, where no other target answers
    advice: tuple[str | None, str | None]  # retry-after, x-should-retry


def _all(status: int) -> dict[str, int]:
    return dict.fromkeys(PROTOCOLS, status)


def _make_failure(status: int, code: str, kind: str, *headers: tuple[str, str]) -> Callable[[Site, bool], Answer]:
    fault = Fault(status, (code, code), kind, headers=headers)
    return lambda site, streamed: site.make_error(fault)


LIMITED = ("rate_limit_exceeded", "rate_limit_error")
TROUBLES: dict[str, Trouble] = {
    "429, soon": Trouble(_make_failure(429, *LIMITED, ("retry-after-ms", "5")), ATTEMPTS, _all(429), ("1", None)),
    "429, later": Trouble(_make_failure(429, *LIMITED, ("retry-after", "30")), 1, _all(429), ("30", None)),
    "500": Trouble(_make_failure(500, "server_error", "api_error"), ATTEMPTS, _all(500), (None, None)),
    "503": Trouble(_make_failure(503, "server_error", "overloaded_error"), ATTEMPTS, OPENAI_OVERLOADED, (None, None)),
    "reset before the first byte": Trouble(
        lambda site, streamed: Answer(headless=True, end=End.RESET), ATTEMPTS, _all(502), (None, None)
    ),
    "reset before the first token": Trouble(
        lambda site, streamed: site.make_reset(streamed, after=""), ATTEMPTS, _all(502), (None, None)
    ),
    "quota under a good status": Trouble(
        lambda site, streamed: site.is_out_of_quota(streamed), 1, QUOTA, (None, "false")
    ),
    "unknown model": Trouble(_make_failure(404, "model_not_found", "not_found_error"), 1, _all(404), (None, None)),
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    with run_targets(tmp_path_factory.mktemp("targets"), SETTINGS) as rig:
        yield rig


def ask(sdk: Sdk, client: str, route: str, streamed: bool) -> SdkReply | Broke | Halted:
    """Return what the official SDK reads or raises."""
    try:
        return (STREAMS[client][-1] if streamed else WHOLE[client])(sdk, request_for(client, route))
    except (openai.APIError, anthropic.APIError) as error:
        return Broke("", error)


def has_answered(site: Site, client: str, reply: SdkReply | Broke | Halted) -> bool:
    natural = STOPS[client][Stop.NATURAL]
    return isinstance(reply, SdkReply) and (reply.text, reply.stop) == (site.name, natural)


WAYS = list(product(PROTOCOLS, (False, True)))  # client, and whether the reply is streamed


FAILURES = list(product(ROUTES, TROUBLES, (1, 2, 3)))  # route, trouble, how many of the first targets have it
ALL_FAILURES = [(*way, *row) for way, row in product(WAYS, FAILURES)]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(*way, *row) for way, row in zip(cycle(WAYS), FAILURES, strict=False)], id="in turns"),
        pytest.param(ALL_FAILURES, id="all", marks=pytest.mark.rest),
    ],
)
def test_the_next_target_replies_or_the_last_error_is_returned(
    targets: Targets, rows: list[tuple[str, bool, str, str, int]]
) -> None:
    for row in rows:
        client, streamed, route, name, failing = row
        trouble, sites = TROUBLES[name], targets.on(route)
        for place, site in enumerate(sites):
            site.play(trouble.play(site, streamed) if place < failing else site.answers(streamed))
        reply = ask(targets.sdk, client, route, streamed)
        assert targets.counts(route) == ([trouble.calls] * failing + [1, 0, 0])[:3], row
        response = targets.sdk.headers
        if failing < len(sites):
            assert has_answered(sites[failing], client, reply), (row, reply)
            assert response["x-dragoman-route"] == sites[failing].target, row
            assert "x-should-retry" not in response, row
            continue
        assert isinstance(reply, Broke), (row, reply)
        assert reply.text == "", row
        if trouble.seen[client] == 402:
            assert isinstance(reply.error, anthropic.APIStatusError), row
            assert expect(dict, reply.error.body)["error"]["type"] == "billing_error", row
        else:
            assert_error(client, reply.error, trouble.seen[client])
        assert (response.get("retry-after"), response.get("x-should-retry")) == trouble.advice, row


LASTING = {
    "401": _make_failure(401, "invalid_api_key", "authentication_error", ("x-should-retry", "false")),
    "402": _make_failure(402, "insufficient_quota", "billing_error", ("x-should-retry", "false")),
    "403": _make_failure(403, "forbidden", "permission_error", ("x-should-retry", "false")),
    "404": _make_failure(404, "model_not_found", "not_found_error", ("x-should-retry", "false")),
}
NOT_NOW = ("429, later", "500", "503", "reset before the first byte")


MIXED = list(product(NOT_NOW, LASTING, range(3)))  # what passes, what does not, and which target fails in passing


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(*way, *row) for way, row in zip(cycle(WAYS), MIXED, strict=False)], id="in turns"),
        pytest.param([(*way, *row) for way, row in product(WAYS, MIXED)], id="all", marks=pytest.mark.rest),
    ],
)
def test_a_target_that_fails_in_passing_is_reported_and_may_be_tried_again(
    targets: Targets, rows: list[tuple[str, bool, str, str, int]]
) -> None:
    """Wherever it stands among targets that fail for good."""
    for row in rows:
        client, streamed, name, lasting, place = row
        sites = targets.on("by key")
        for number, site in enumerate(sites):
            site.play((TROUBLES[name].play if number == place else LASTING[lasting])(site, streamed))
        reply = ask(targets.sdk, client, "by key", streamed)
        assert isinstance(reply, Broke), (row, reply)
        passes = sites[place].kind == client and name == "503"  # the error of its own protocol
        assert_error(client, reply.error, 503 if passes else TROUBLES[name].seen[client])
        response = targets.sdk.headers
        assert (response.get("retry-after"), response.get("x-should-retry")) == TROUBLES[name].advice, row
        outcome = targets.gateway.outcome(response["x-request-id"])
        assert outcome.outcome == outcome.failed_attempts[-3 + place if place else 0].why, row


def test_a_temporary_failure_is_retried_at_the_first_target(targets: Targets) -> None:
    temporary = [name for name, trouble in TROUBLES.items() if trouble.calls == ATTEMPTS]
    for (client, streamed), (route, name) in zip(cycle(WAYS), product(ROUTES, temporary), strict=False):
        first, *others = targets.on(route)
        first.play(TROUBLES[name].play(first, streamed), first.answers(streamed))
        for site in others:
            site.play(site.answers(streamed))
        row = (client, streamed, route, name)
        assert has_answered(first, client, ask(targets.sdk, client, route, streamed)), row
        assert targets.counts(route) == [2, 0, 0], row


TOO_LONG = "prompt is too long: this exceeds the context window of the model"
BAD_REQUESTS = [
    Fault(400, ("invalid_request_error", None), "invalid_request_error"),
    Fault(400, ("invalid_request_error", "context_length_exceeded"), "invalid_request_error", TOO_LONG),
]


def test_a_bad_request_is_not_sent_to_another_target(targets: Targets) -> None:
    for (client, streamed), route, fault in product(WAYS, ROUTES, BAD_REQUESTS):
        first, *others = targets.on(route)
        first.play(first.make_error(fault))
        for site in others:
            site.play(site.answers(streamed))
        reply = ask(targets.sdk, client, route, streamed)
        assert isinstance(reply, Broke), (client, streamed, route, fault, reply)
        assert_error(client, reply.error, 400)
        assert targets.counts(route)[1:] == [0, 0], (client, streamed, route, fault)


def test_after_the_first_token_there_is_one_error_and_no_other_target_answers(targets: Targets) -> None:
    """Judged by the SDK, and by the grammar of the protocol."""
    for row in product(PROTOCOLS, ROUTES, (0, 1, 2), ("sdk", "grammar")):
        client, route, failing, judge = row
        sites = targets.on(route)
        text = beginning_of(sites[failing])
        for site in sites[:failing]:
            site.play(site.is_out_of_quota(True))
        sites[failing].play(sites[failing].make_reset(True, after=text))
        for site in sites[failing + 1 :]:
            site.play(site.answers(True))
        if judge == "sdk":
            reply = ask(targets.sdk, client, route, True)
            assert isinstance(reply, Broke), (row, reply)
            assert reply.text == text, row
            assert targets.sdk.headers["x-dragoman-route"] == sites[failing].target, row
        else:
            response = asking.ask(targets.gateway, client, route, stream=True).body
            if client == sites[failing].kind == "responses":  # passed through: the fields are the fake's
                assert (response.count(b"event: response.failed"), response.count(b'"delta":')) == (1, 1), row
            else:
                read, error = GRAMMARS[client].fold_broken(response)
                assert (read, bool(error["message"])) == (text, True), row
        assert targets.counts(route) == [1] * (failing + 1) + [0] * (2 - failing), row


IMPATIENT_S = 0.1  # with providers that never answer
STALLS = list(product(PROTOCOLS, (False, True), (1, 2, 3)))  # client, streamed, how many of the targets never answer


def list_targets(failing: int) -> list[str]:
    """Return three targets of which the first are at providers that stall."""
    return [f"{kind}{'-stalled' * (place < failing)}/m" for place, kind in enumerate(PROTOCOLS)]


@pytest.mark.rest
def test_a_stalled_target_times_out_and_the_next_one_is_tried(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stalled = {kind: stack.enter_context(FakeUpstream()) for kind in PROTOCOLS}
        settings = [SETTINGS]
        for place, (kind, fake) in enumerate(stalled.items()):  # one sends nothing, one only a head
            fake.answers = [Answer(headless=place % 2 == 0, end=End.HANG)]
            section = provider_section(kind, fake.url, f"{kind}-stalled")
            settings.append(f"{section}first_token_timeout_s = {IMPATIENT_S}\n")
        settings += [f'[[models]]\nname = "{failing}"\nto = {list_targets(failing)}\n' for failing in (1, 2, 3)]
        rig = stack.enter_context(run_rig(tmp_path, "\n".join(settings), upstreams=PROTOCOLS))
        for row in STALLS:
            client, streamed, failing = row
            for kind in PROTOCOLS:
                rig.play(kind, f"{kind} answers", stream=streamed)
                stalled[kind].requests.clear()
            reply = ask(rig.sdk, client, str(failing), streamed)
            wait_for_calls(list(stalled.values())[:failing])
            # What timed out may be paid for: it is not sent again.
            assert [len(fake.calls) for fake in stalled.values()] == ([1] * failing + [0, 0])[:3], row
            if failing < len(PROTOCOLS):
                assert isinstance(reply, SdkReply), (row, reply)
                assert reply.text == f"{PROTOCOLS[failing]} answers", row
                assert rig.sdk.headers["x-dragoman-route"] == list_targets(failing)[failing], row
            else:
                assert isinstance(reply, Broke), row
                assert_error(client, reply.error, 504)
                assert "x-should-retry" not in rig.sdk.headers, row


def wait_for_calls(fakes: list[FakeUpstream]) -> None:
    """Wait until each has read a request, which it may do only after the gateway has stopped waiting for it."""
    wait_until(lambda: all(fake.calls for fake in fakes))


def test_a_stall_after_the_first_token_is_one_error_and_no_other_target_answers(tmp_path: Path) -> None:
    with run_targets(tmp_path, f"[server]\nidle_timeout_s = 0.2\n{SETTINGS}") as rig:
        first, *others = rig.on("by key")
        for site in others:
            site.play(site.answers(True))
        first.play(replace(first.make_reset(True, after=beginning_of(first)), end=End.HANG))
        for client in PROTOCOLS:
            text, error = GRAMMARS[client].fold_broken(asking.ask(rig.gateway, client, "by key", stream=True).body)
            assert (text, bool(error["message"])) == (beginning_of(first), True), client
        assert rig.counts("by key") == [len(PROTOCOLS), 0, 0]


def beginning_of(site: Site) -> str:
    """The piece of its name that each of them sends first."""
    return {"codex": site.name, "kiro": site.name[:7]}.get(site.kind, site.name[:5])
