"""Several accounts of Kiro, Codex and Copilot: which is used after one is exhausted, and when that one again."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import openai
import pytest

import fakes.codex as codex
import fakes.copilot as copilot
import fakes.kiro as kiro
from dragoman.proxy.outcome import FailedAttempt
from dragoman.upstreams.credentials.cooldowns import PROBE_AFTER_S
from e2e.pool_rig import key_of, pool_of
from fakes.service import json_answer, stream
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, running
from rig import QUICK
from sdk_replies import Sdk

Answers = dict[str, Answer]
DAYS_4_S = 4 * 86_400


@dataclass
class Accounts:
    """Two accounts behind one fake, by the names of their files; `refusals` are by the bearer that was presented."""

    gateway: Running
    sdk: Sdk
    model: str
    bearers: tuple[str, str]
    refusals: Answers
    seen: list[str]

    def send(self, opening: str) -> str:
        reply = self.sdk.openai.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": opening}]
        )
        return str(reply.choices[0].message.content)

    def streams(self, opening: str) -> str:
        reply = self.sdk.openai.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": opening}], stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices)

    def take_used(self) -> list[str]:
        seen = list(self.seen)
        self.seen.clear()
        return seen

    def find_opening(self, bearer: str) -> str:
        """Return the first message of a new conversation that goes to that account."""
        for number in range(64):
            self.send(f"conversation {number} for {bearer[-4:]}")
            if self.take_used() == [bearer]:
                return f"conversation {number} for {bearer[-4:]}"
        raise AssertionError("none of 64 conversations falls to that account")

    def steps(self) -> tuple[FailedAttempt, ...]:
        return self.gateway.outcome(self.sdk.headers["x-request-id"]).failed_attempts

    def advance_clock(self, seconds: float) -> None:
        pool_of(self.gateway, self.model.partition("/")[0]).clock = lambda: time.time() + seconds


def refuse_bearers(fake: FakeUpstream, path: str, refusals: Answers, seen: list[str]) -> None:
    """Requests to the path are noted, and refused where their bearer is."""

    def refuse(request: ReceivedRequest) -> Answer | None:
        if request.method != "POST" or urlsplit(request.path).path != path:
            return None
        seen.append(key_of(request))
        return refusals.get(key_of(request))

    fake.intercept = refuse


@contextmanager
def accounts(
    fake: FakeUpstream, section: str, path: str, model: str, bearers: tuple[str, str], folder: Path
) -> Iterator[Accounts]:
    refusals: Answers = {}
    seen: list[str] = []
    with ExitStack() as stack:
        refuse_bearers(fake, path, refusals, seen)
        gateway = stack.enter_context(running(QUICK + section, folder))
        gateway.settle()
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        yield Accounts(gateway, sdk, model, bearers, refusals, seen)


@contextmanager
def kiro_accounts(folder: Path) -> Iterator[Accounts]:
    with kiro.FakeKiro() as upstream:
        assert isinstance(upstream, kiro.FakeKiro)
        upstream.replies = [kiro.make_framed(kiro.words("Hello"), kiro.tail())]
        bearers = []
        for name in ("a.json", "b.json"):
            upstream.sign_in(folder / name)
            bearers.append(msgspec.json.decode((folder / name).read_bytes())["accessToken"])
        section = upstream.section("FILES").replace('"FILES"', '["a.json", "b.json"]')
        path, model = "/generateAssistantResponse", "kiro/claude-sonnet-4.5"
        with accounts(upstream, section, path, model, (bearers[0], bearers[1]), folder) as own:
            yield own


@contextmanager
def codex_accounts(folder: Path) -> Iterator[Accounts]:
    with codex.FakeCodex() as upstream:
        assert isinstance(upstream, codex.FakeCodex)
        bearers = []
        for name in ("a.json", "b.json"):
            file = upstream.auth_file(7200)
            (folder / name).write_bytes(msgspec.json.encode(file))
            bearers.append(str(file["tokens"]["access_token"]))
        section = upstream.section(["a.json", "b.json"])
        pair = (bearers[0], bearers[1])
        with accounts(upstream, section, codex.RESPONSES, "codex/gpt-5.5", pair, folder) as own:
            yield own


@contextmanager
def copilot_accounts(folder: Path) -> Iterator[Accounts]:
    with copilot.FakeCopilot() as upstream:
        assert isinstance(upstream, copilot.FakeCopilot)
        pair = ("gho_FAKEfirst", "gho_FAKEsecond")
        upstream.github |= set(pair)
        for name, token in zip(("a.json", "b.json"), pair, strict=True):
            (folder / name).write_bytes(msgspec.json.encode({"github.com": {"oauth_token": token}}))
        section = upstream.section(["a.json", "b.json"])
        with accounts(upstream, section, copilot.CHAT, "copilot/gpt-4.1", pair, folder) as own:
            yield own


def make_limit_error(resets_in_s: float) -> dict[str, object]:
    return {
        "type": "usage_limit_reached",
        "message": "The usage limit has been reached",
        "plan_type": "plus",
        "resets_at": int(time.time() + resets_in_s),
    }


USED_UP: dict[str, Callable[[], Answer]] = {
    "kiro": lambda: kiro.refusal(402, "You have reached the limit.", "MONTHLY_REQUEST_COUNT", "ServiceQuotaExceeded"),
    "codex": lambda: json_answer({"error": make_limit_error(DAYS_4_S)}, 429),
    "copilot": lambda: json_answer({"error": {"code": "quota_exceeded", "message": "No quota left."}}, 402),
}
KINDS: dict[str, Callable[[Path], AbstractContextManager[Accounts]]] = {
    "kiro": kiro_accounts,
    "codex": codex_accounts,
    "copilot": copilot_accounts,
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_a_conversation_keeps_its_account(tmp_path: Path, kind: str) -> None:
    with KINDS[kind](tmp_path) as rig:
        for bearer in rig.bearers:
            opening = rig.find_opening(bearer)
            assert [rig.send(opening), rig.streams(opening)] == ["Hello", "Hello"]
            assert rig.take_used() == [bearer] * 2


@kinds
def test_a_used_up_account_is_left_and_the_next_one_answers_at_once(tmp_path: Path, kind: str) -> None:
    with KINDS[kind](tmp_path) as rig:
        first, second = rig.bearers
        opening = rig.find_opening(first)
        rig.refusals[first] = USED_UP[kind]()
        assert rig.send(opening) == "Hello"
        assert rig.take_used() == [first, second]
        assert rig.steps() == (FailedAttempt(rig.model, "quota"),)
        assert rig.streams(opening) == "Hello"
        assert rig.take_used() == [second]


@kinds
def test_a_long_cooldown_is_probed_once_and_ends_early_if_its_reset_was_wrong(tmp_path: Path, kind: str) -> None:
    """A stale moment would block a usable account for days."""
    with KINDS[kind](tmp_path) as rig:
        first = rig.bearers[0]
        opening = rig.find_opening(first)
        rig.refusals[first] = USED_UP[kind]()
        rig.send(opening)
        rig.take_used()
        rig.advance_clock(PROBE_AFTER_S + 1)
        for number in range(40):  # some of these fall to the first, and one finds out that it is still used up
            rig.send(f"soon after {number}")
        assert rig.take_used().count(first) == 1
        del rig.refusals[first]
        rig.advance_clock(3 * PROBE_AFTER_S + 2)  # doubts come half as often
        for number in range(40):
            rig.send(f"later {number}")
        assert rig.take_used().count(first) > 1


@kinds
def test_if_all_accounts_are_exhausted_the_client_gets_the_error_of_one(tmp_path: Path, kind: str) -> None:
    with KINDS[kind](tmp_path) as rig:
        rig.refusals |= {bearer: USED_UP[kind]() for bearer in rig.bearers}
        for expected in (2, 1):
            with pytest.raises(openai.APIStatusError) as caught:
                rig.send("Hi")
            assert caught.value.status_code in (402, 429)
            assert len(rig.take_used()) == expected


@pytest.mark.parametrize(
    ("status", "reason", "moves"),
    [
        (429, "USER_REQUEST_RATE_EXCEEDED", True),
        (429, "DAILY_REQUEST_COUNT", True),
        (403, "TEMPORARILY_SUSPENDED", True),
        (400, "INVALID_MODEL_ID", True),
        (429, "INSUFFICIENT_MODEL_CAPACITY", False),
        (400, "CONTENT_LENGTH_EXCEEDS_THRESHOLD", False),
    ],
)
def test_another_account_is_tried_only_for_failures_of_the_first(
    tmp_path: Path, status: int, reason: str, moves: bool
) -> None:
    with kiro_accounts(tmp_path) as rig:
        first, second = rig.bearers
        opening = rig.find_opening(first)
        rig.refusals[first] = kiro.refusal(status, "No.", reason)
        if moves:
            assert rig.send(opening) == "Hello"
            assert rig.take_used() == [first, second]
        else:
            with pytest.raises(openai.APIStatusError):
                rig.send(opening)
            assert set(rig.take_used()) == {first}


def test_a_quota_inside_a_good_stream_goes_to_the_next_account(tmp_path: Path) -> None:
    with codex_accounts(tmp_path) as rig:
        first, second = rig.bearers
        opening = rig.find_opening(first)
        trouble = {"type": "error", "status_code": 429, "error": make_limit_error(600), "headers": {}}
        rig.refusals[first] = stream(*codex.number_events(codex.make_created(), trouble))
        assert rig.streams(opening) == "Hello"
        assert rig.take_used() == [first, second]
        assert rig.send(opening) == "Hello"
        assert rig.take_used() == [second]


def test_a_stream_that_ends_for_lack_of_quota_starts_its_accounts_cooldown(tmp_path: Path) -> None:
    """What was said cannot be taken back; the next request goes elsewhere."""
    with codex_accounts(tmp_path) as rig:
        first, second = rig.bearers
        opening = rig.find_opening(first)
        trouble = {"type": "error", "status_code": 429, "error": make_limit_error(600), "headers": {}}
        rig.refusals[first] = stream(*codex.number_events(codex.make_created(), *codex.text_events("Hel")[:3], trouble))
        with pytest.raises(openai.APIError):
            rig.streams(opening)
        assert rig.take_used() == [first]
        assert rig.send(opening) == "Hello"
        assert rig.take_used() == [second]


def test_full_windows_keep_an_account_in_cooldown_until_they_reset(tmp_path: Path) -> None:
    with codex_accounts(tmp_path) as rig:
        first, second = rig.bearers
        opening = rig.find_opening(first)
        full = (
            ("x-codex-primary-used-percent", "100"),
            ("x-codex-primary-window-minutes", "300"),
            ("x-codex-primary-reset-at", str(int(time.time() + 120))),
        )
        rig.refusals[first] = codex.reply("The last one", headers=full)
        assert rig.send(opening) == "The last one"
        assert rig.send(opening) == "Hello"
        assert rig.take_used() == [first, second]


def test_credits_step_in_for_a_full_window(tmp_path: Path) -> None:
    with codex_accounts(tmp_path) as rig:
        first, _ = rig.bearers
        opening = rig.find_opening(first)
        full = (
            ("x-codex-primary-used-percent", "100"),
            ("x-codex-primary-reset-at", str(int(time.time() + 120))),
            ("x-codex-credits-has-credits", "True"),
        )
        rig.refusals[first] = codex.reply("Paid for", headers=full)
        assert [rig.send(opening), rig.send(opening)] == ["Paid for", "Paid for"]
        assert rig.take_used() == [first] * 2


@kinds
def test_a_revoked_account_is_renewed_once_if_it_can_be_and_then_left(tmp_path: Path, kind: str) -> None:
    refused = {
        "kiro": kiro.INVALID_BEARER,
        "codex": json_answer({"error": {"code": "token_invalidated", "message": "Sign in again."}}, 401),
        "copilot": json_answer({"message": "Bad credentials"}, 401),
    }
    with KINDS[kind](tmp_path) as rig:
        first, second = rig.bearers
        opening = rig.find_opening(first)
        rig.refusals[first] = refused[kind]
        assert rig.send(opening) == "Hello"
        seen = rig.take_used()
        assert seen[0] == first
        if kind == "copilot":  # a GitHub token is not renewed
            assert seen == [first, second]
        else:
            assert seen[1:] != [second]
            assert len(seen) == 2


def test_accounts_are_named_by_their_files(tmp_path: Path) -> None:
    with kiro_accounts(tmp_path) as rig:
        states = pool_of(rig.gateway, "kiro").states(time.time())
        assert [state.label for state in states] == ["1 of 2 (a.json)", "2 of 2 (b.json)"]


@kinds
def test_the_models_of_all_accounts_are_listed_once(tmp_path: Path, kind: str) -> None:
    with KINDS[kind](tmp_path) as rig:
        ids = [model.id for model in rig.sdk.openai.models.list()]
        assert rig.model in ids
        assert len(set(ids)) == len(ids)
