"""Three targets under faults: one whole reply or one typed error, and exactly as many calls as the table says."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import anthropic
import msgspec
import openai
import pytest

import grammar_chat
import grammar_messages
import grammar_responses
from e2e.cases import request_for
from e2e.faults import OPENAI_OVERLOADED, Fault, assert_error
from e2e.targets import ROUTES, Site, Targets, run_targets
from fakes.upstream import Answer, End, ReceivedRequest
from gateway import KEY
from narrowing import expect
from raw_http import post
from rig import ENCODERS, PATHS, PROTOCOLS, run_rig
from scripting.replies import ScriptedReply, Stop, Text
from sdk_replies import STOPS, STREAMS, WHOLE, Broke, Halted, Sdk, SdkReply

ATTEMPTS = 3
SETTINGS = f"[retry]\nattempts = {ATTEMPTS}\nbase_s = 0.002\n"
GRAMMARS = {"chat": grammar_chat, "responses": grammar_responses, "messages": grammar_messages}
QUOTA = {"chat": 429, "responses": 429, "messages": 402}

clients = pytest.mark.parametrize("client", PROTOCOLS)
modes = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
routes = pytest.mark.parametrize("route", ROUTES)
depths = pytest.mark.parametrize("failing", [1, 2, 3], ids=["the first", "the first two", "all three"])


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


def assert_answered(site: Site, client: str, reply: SdkReply | Broke | Halted) -> None:
    assert isinstance(reply, SdkReply), reply
    assert (reply.text, reply.stop) == (site.name, STOPS[client][Stop.NATURAL])


@clients
@modes
@routes
@depths
@pytest.mark.parametrize("name", TROUBLES)
def test_the_next_target_replies_or_the_last_error_is_returned(
    targets: Targets, client: str, streamed: bool, route: str, failing: int, name: str
) -> None:
    trouble, sites = TROUBLES[name], targets.on(route)
    for place, site in enumerate(sites):
        site.play(trouble.play(site, streamed) if place < failing else site.answers(streamed))
    reply = ask(targets.sdk, client, route, streamed)
    expected = [trouble.calls] * failing + [1, 0, 0]
    assert targets.counts(route) == expected[:3]
    if failing < len(sites):
        assert_answered(sites[failing], client, reply)
        assert targets.sdk.headers["x-dragoman-route"] == sites[failing].target
        assert "x-should-retry" not in targets.sdk.headers
        return
    assert isinstance(reply, Broke), reply
    assert reply.text == ""
    if trouble.seen[client] == 402:
        assert isinstance(reply.error, anthropic.APIStatusError)
        assert expect(dict, reply.error.body)["error"]["type"] == "billing_error"
    else:
        assert_error(client, reply.error, trouble.seen[client])
    response = targets.sdk.headers
    assert (response.get("retry-after"), response.get("x-should-retry")) == trouble.advice


@clients
@modes
@routes
@pytest.mark.parametrize("name", [name for name, trouble in TROUBLES.items() if trouble.calls == ATTEMPTS])
def test_a_temporary_failure_is_retried_at_the_first_target(
    targets: Targets, client: str, streamed: bool, route: str, name: str
) -> None:
    first, *others = targets.on(route)
    first.play(TROUBLES[name].play(first, streamed), first.answers(streamed))
    for site in others:
        site.play(site.answers(streamed))
    assert_answered(first, client, ask(targets.sdk, client, route, streamed))
    assert targets.counts(route) == [2, 0, 0]


@clients
@modes
@routes
@pytest.mark.parametrize(
    "fault",
    [
        Fault(400, ("invalid_request_error", None), "invalid_request_error"),
        Fault(
            400,
            ("invalid_request_error", "context_length_exceeded"),
            "invalid_request_error",
            "prompt is too long: this exceeds the context window of the model",
        ),
    ],
    ids=["bad request", "too long"],
)
def test_a_bad_request_is_not_sent_to_another_target(
    targets: Targets, client: str, streamed: bool, route: str, fault: Fault
) -> None:
    first, *others = targets.on(route)
    first.play(first.make_error(fault))
    for site in others:
        site.play(site.answers(streamed))
    reply = ask(targets.sdk, client, route, streamed)
    assert isinstance(reply, Broke), reply
    assert_error(client, reply.error, 400)
    assert targets.counts(route)[1:] == [0, 0]


@clients
@routes
@pytest.mark.parametrize("failing", [0, 1, 2], ids=["the first", "the second", "the third"])
def test_after_the_first_token_there_is_one_error_and_no_other_target_answers(
    targets: Targets, client: str, route: str, failing: int
) -> None:
    sites = targets.on(route)
    counts = [1] * (failing + 1) + [0] * (2 - failing)

    def begin() -> None:
        for place, site in enumerate(sites):
            breaking = (
                site.is_out_of_quota(True) if place < failing else site.make_reset(True, after=beginning_of(site))
            )
            site.play(breaking if place <= failing else site.answers(True))

    begin()
    reply = ask(targets.sdk, client, route, True)
    assert isinstance(reply, Broke), reply
    assert reply.text == beginning_of(sites[failing])
    assert targets.counts(route) == counts
    assert targets.sdk.headers["x-dragoman-route"] == sites[failing].target
    begin()
    response = post(
        targets.gateway.port, PATHS[client], msgspec.json.encode({**request_for(client, route), "stream": True})
    )
    if client == sites[failing].kind == "responses":  # passed through: the fields are the fake's
        assert (response.body.count(b"event: response.failed"), response.body.count(b'"delta":')) == (1, 1)
    else:
        text, error = GRAMMARS[client].fold_broken(response.body)
        assert (text, bool(error["message"])) == (beginning_of(sites[failing]), True)
    assert targets.counts(route) == counts


@dataclass(frozen=True)
class Stalled:
    """One request whose first targets never send a token."""

    client: str
    streamed: bool
    failing: int

    @property
    def name(self) -> str:
        return f"stall-{self.client}-{self.streamed}-{self.failing}"

    @property
    def targets(self) -> list[str]:
        return [f"{kind}/{self.name}-{place < self.failing}" for place, kind in enumerate(PROTOCOLS)]


STALLS = [Stalled(*case) for case in product(PROTOCOLS, (False, True), (1, 2, 3))]
PATIENCE_S = 4.0
TWICE = 2


def test_a_stalled_target_times_out_and_the_next_one_is_tried(tmp_path: Path) -> None:
    """All at the same time: each waits for a time-out or two."""
    settings = (
        f"[server]\nfirst_token_timeout_s = {PATIENCE_S}\nidle_timeout_s = {PATIENCE_S}\n"
        f"[retry]\nattempts = {TWICE}\nbase_s = 0.002\n"
    )
    routes = "".join(f'[[models]]\nname = "{case.name}"\nto = {case.targets}\n' for case in STALLS)
    with run_rig(tmp_path, settings + routes) as rig, ThreadPoolExecutor(len(STALLS)) as pool:
        for kind, fake in rig.fakes.items():
            fake.choose = stall_by_model(kind)
        sdks = [Sdk(rig.gateway.url, KEY, timeout_s=60) for _ in STALLS]
        reply = list(pool.map(lambda sdk, case: ask(sdk, case.client, case.name, case.streamed), sdks, STALLS))
        for sdk in sdks:
            sdk.close()
        calls = Counter(f"{kind}/{call.json['model']}" for kind, fake in rig.fakes.items() for call in fake.calls)
    for case, sdk, text in zip(STALLS, sdks, reply, strict=True):
        expected = [1] * case.failing + [1, 0, 0]  # what timed out may be paid for: it is not sent again
        assert [calls[target] for target in case.targets] == expected[:3], case
        if case.failing < len(PROTOCOLS):
            assert isinstance(text, SdkReply), (case, text)
            assert text.text == f"{PROTOCOLS[case.failing]} answers"
            assert sdk.headers["x-dragoman-route"] == case.targets[case.failing]
        else:
            assert isinstance(text, Broke), case
            assert_error(case.client, text.error, 504)
            assert "x-should-retry" not in sdk.headers


def stall_by_model(kind: str) -> Callable[[ReceivedRequest], Answer]:
    """The model's name decides whether it stalls: some send nothing, some only a head."""
    scripted, encoder = ScriptedReply((Text(f"{kind} answers"),)), ENCODERS[kind]

    def choose(request: ReceivedRequest) -> Answer:
        model = str(request.json["model"])
        if model.endswith("True"):
            return Answer(headless=len(model) % 2 == 0, end=End.HANG)
        if request.json.get("stream"):
            return Answer(encoder.encode_stream(scripted))
        return Answer(encoder.encode_whole(scripted), content_type="application/json")

    return choose


def test_a_stall_after_the_first_token_is_one_error_and_no_other_target_answers(tmp_path: Path) -> None:
    settings = f"[server]\nidle_timeout_s = {PATIENCE_S}\n{SETTINGS}"
    with run_targets(tmp_path, settings) as rig, ThreadPoolExecutor(len(PROTOCOLS)) as pool:
        first, *others = rig.on("by key")
        for site in others:
            site.play(site.answers(True))
        first.play(replace(first.make_reset(True, after=beginning_of(first)), end=End.HANG))
        response = list(pool.map(lambda client: streamed_raw(rig, client), PROTOCOLS))
        for client, body in zip(PROTOCOLS, response, strict=True):
            text, error = GRAMMARS[client].fold_broken(body)
            assert (text, bool(error["message"])) == (beginning_of(first), True)
        assert rig.counts("by key") == [len(PROTOCOLS), 0, 0]


def streamed_raw(rig: Targets, client: str) -> bytes:
    body = msgspec.json.encode({**request_for(client, "by key"), "stream": True})
    return post(rig.gateway.port, PATHS[client], body).body


def beginning_of(site: Site) -> str:
    """The piece of its name that each of them sends first."""
    return {"codex": site.name, "kiro": site.name[:7]}.get(site.kind, site.name[:5])
