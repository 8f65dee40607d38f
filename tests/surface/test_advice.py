"""Whether and when to retry: the upstream's advice is followed and passed on."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from asking import ask
from fakes.upstream import Answer, FakeUpstream
from rig import PROTOCOLS, Rig, run_rig, walk
from scripting import write_error, write_reply

SETTINGS = "[retry]\nattempts = 3\nbase_s = 0.01\n[[models]]\nname = 'two'\nto = ['chat/a', 'messages/b']\n"

NONSENSE = ["soon", "-5", "nan", "Wed, 99 Nov 2026 99:99:99 GMT", "1e400"]
NOT_NOW = "Not now."
clients = pytest.mark.parametrize("client", PROTOCOLS)
upstreams = pytest.mark.parametrize("upstream", PROTOCOLS)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), SETTINGS, upstreams=PROTOCOLS) as shared:
        yield shared


@pytest.mark.parametrize(("client", "status", "upstream"), walk([PROTOCOLS, [429, 500, 529]], [PROTOCOLS]))
def test_an_upstream_that_wants_no_retry_gets_none(patient: Rig, client: str, upstream: str, status: int) -> None:
    fake = patient.play(upstream, write_error(status, NOT_NOW, x_should_retry="false"))
    answer = patient.ask(client, upstream)
    assert len(fake.calls) == 1
    assert answer.headers["x-should-retry"] == "false"


@clients
@upstreams
def test_an_upstream_that_invites_one_is_quoted(patient: Rig, client: str, upstream: str) -> None:
    fake = patient.play(upstream, write_error(429, NOT_NOW, x_should_retry="true", retry_after="60"))
    answer = patient.ask(client, upstream)
    assert len(fake.calls) == 1
    assert answer.headers["x-should-retry"] == "true"
    assert answer.headers["retry-after"] == "60"


@clients
@upstreams
def test_a_retry_date_is_sent_in_seconds(patient: Rig, client: str, upstream: str) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    fake = patient.play(upstream, write_error(429, NOT_NOW, retry_after=soon))
    answer = patient.ask(client, upstream)
    assert 80 <= int(answer.headers["retry-after"]) <= 90
    assert len(fake.calls) == 1
    assert "x-should-retry" not in answer.headers


@clients
@upstreams
@pytest.mark.parametrize("ahead_s", [-7200, 7200], ids=["two hours behind", "two hours ahead"])
def test_a_date_is_judged_by_the_clock_that_wrote_it(patient: Rig, client: str, upstream: str, ahead_s: int) -> None:
    there = datetime.now(UTC) + timedelta(seconds=ahead_s)
    soon, date = (format_datetime(moment, usegmt=True) for moment in (there + timedelta(seconds=90), there))
    fake = patient.play(upstream, write_error(429, NOT_NOW, retry_after=soon, date=date))
    answer = patient.ask(client, upstream)
    assert 80 <= int(answer.headers["retry-after"]) <= 91
    assert len(fake.calls) == 1


@clients
@upstreams
def test_a_reset_in_other_headers_is_passed_on(patient: Rig, client: str, upstream: str) -> None:
    spent = {"x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "1m30s"}
    patient.play(upstream, write_error(429, NOT_NOW, **spent))
    assert 80 <= int(patient.ask(client, upstream).headers["retry-after"]) <= 90


@pytest.mark.parametrize(("client", "status", "upstream"), walk([PROTOCOLS, [301, 302, 303, 307, 308]], [PROTOCOLS]))
def test_a_redirect_is_an_error_that_names_it(patient: Rig, client: str, upstream: str, status: int) -> None:
    fake = patient.play(upstream, write_error(status, NOT_NOW, location="https://elsewhere.example/v1/chat?key=s3cret"))
    answer = patient.ask(client, upstream)
    assert answer.status == 502
    message = json.loads(answer.body)["error"]["message"]
    assert f"HTTP {status}" in message
    assert "elsewhere.example" in message
    assert "s3cret" not in message
    assert answer.headers["x-should-retry"] == "false"
    assert len(fake.calls) == 1


@pytest.mark.parametrize(("client", "nonsense", "upstream"), walk([PROTOCOLS, NONSENSE], [PROTOCOLS]))
def test_nonsense_is_no_advice(patient: Rig, client: str, upstream: str, nonsense: str) -> None:
    fake = patient.play(upstream, write_error(429, NOT_NOW, retry_after=nonsense))
    assert patient.ask(client, upstream).status == 429
    assert len(fake.calls) == 3


@clients
def test_milliseconds_are_kept(patient: Rig, client: str) -> None:
    patient.play("messages", write_error(429, NOT_NOW, retry_after_ms="5500"))
    answer = patient.ask(client, "messages")
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("6", "5500")


def compare_errors(first: Answer, second: Answer, gate: Rig) -> tuple[int, int, dict[str, str]]:
    fakes: list[FakeUpstream] = [gate.play("chat", first), gate.play("messages", second)]
    answer = ask(gate, "responses", "two")
    return len(fakes[0].calls), len(fakes[1].calls), answer.headers


def test_the_reported_error_decides_whether_a_retry_helps(patient: Rig) -> None:
    assert compare_errors(write_error(500, NOT_NOW), write_error(401, NOT_NOW), patient)[:2] == (3, 1)
    for one, two in ((500, 401), (401, 500), (429, 403)):
        headers = compare_errors(write_error(one, NOT_NOW), write_error(two, NOT_NOW), patient)[2]
        assert "x-should-retry" not in headers, (one, two)
    assert compare_errors(write_error(403, NOT_NOW), write_error(401, NOT_NOW), patient)[2]["x-should-retry"] == "false"


def test_two_targets_with_long_waits_leave_the_waiting_to_the_client(patient: Rig) -> None:
    for one, two in (("60", "30"), ("30", "60")):
        limited = [write_error(429, NOT_NOW, retry_after=wait) for wait in (one, two)]
        first, second, headers = compare_errors(limited[0], limited[1], patient)
        assert (first, second) == (1, 1)
        assert headers["retry-after"] == "30"
        assert "x-should-retry" not in headers


def test_a_second_target_that_answers_leaves_no_advice(patient: Rig) -> None:
    first, second, headers = compare_errors(
        write_error(529, NOT_NOW), write_reply("messages", "Hello", stream=False), patient
    )
    assert (first, second) == (3, 1)
    assert headers["x-dragoman-route"] == "messages/b"
    assert "x-should-retry" not in headers
