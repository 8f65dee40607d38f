"""A ChatGPT credential shared with Codex: renewed once, never overwritten, used until it expires."""

import asyncio
import stat
import threading
from pathlib import Path

import pytest

from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.upstreams.credentials import credential, refresher
from fakes.codex import ACCOUNT, TOKEN, FakeCodex, auth, jwt
from fakes.service import json_answer
from fakes.upstream import Answer
from upstreams.account_kit import get_once
from upstreams.codex.codex_kit import Rig, read, tokens, write_file


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests wait for a look at the file as long as a busy machine needs."""
    monkeypatch.setattr(refresher, "READ_TIMEOUT_S", 30.0)


def test_a_valid_token_is_used_and_nothing_is_written(codex: FakeCodex, tmp_path: Path) -> None:
    path = write_file(tmp_path / "auth.json", codex.auth_file())
    before = path.read_bytes()
    credential = get_once(Rig(codex, path))
    assert (credential.account, credential.plan) == (ACCOUNT, "plus")
    assert codex.counts[TOKEN] == 0
    assert path.read_bytes() == before


def test_a_renewal_without_a_new_refresh_token_keeps_the_old_one_and_unknown_fields(
    codex: FakeCodex, tmp_path: Path
) -> None:
    codex.rotates = False
    table = codex.auth_file(-60, agent_identity={"x": 1})
    table["tokens"] = {**tokens(table), "of_tomorrow": "kept"}
    path = write_file(tmp_path / "auth.json", table)
    fresh = get_once(Rig(codex, path))
    after = read(path)
    assert tokens(after)["refresh_token"] == tokens(table)["refresh_token"]
    assert tokens(after)["access_token"] == fresh.access_token != tokens(table)["access_token"]
    assert (after["agent_identity"], tokens(after)["of_tomorrow"]) == ({"x": 1}, "kept")
    assert tokens(after)["account_id"] == ACCOUNT
    assert str(after["last_refresh"]).endswith("Z")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_refresh_token_that_was_used_before_is_not_tried_again_until_the_file_changes(
    codex: FakeCodex, tmp_path: Path
) -> None:
    """Permanent; and while the access token lives, it serves."""
    path = write_file(tmp_path / "auth.json", codex.auth_file(120))  # within the margin, not expired
    codex.used.update(codex.refresh)
    async with Rig(codex, path) as rig:
        for _ in range(3):
            assert await rig.get_token() == tokens(read(path))["access_token"]
            rig.ahead_s += 31
            await asyncio.sleep(0.02)
        rig.ahead_s = 200
        with pytest.raises(RequestError, match="refresh_token_reused"):
            await rig.refresher.get()
        rig.ahead_s += 86_400
        with pytest.raises(RequestError, match="login"):
            await rig.refresher.get()
        assert codex.counts[TOKEN] == 1
        write_file(path, codex.auth_file(-60))
        assert await rig.get_token() in codex.access
    assert codex.counts[TOKEN] == 2


@pytest.mark.parametrize(
    "objection",
    [
        json_answer({"error": {"code": "refresh_token_expired"}}, 400),
        json_answer({"error": "refresh_token_invalidated"}, 403),
        json_answer({"code": "refresh_token_reused"}, 500),
        json_answer({"error": "invalid_grant"}, 400),
        json_answer({}, 401),
    ],
)
async def test_every_spelling_of_a_permanent_rejection_is_recognised(
    codex: FakeCodex, tmp_path: Path, objection: Answer
) -> None:
    path = write_file(tmp_path / "auth.json", codex.auth_file(-60))
    codex.script(TOKEN, objection)
    async with Rig(codex, path) as rig:
        for _ in range(2):
            with pytest.raises(RequestError) as refused:
                await rig.refresher.get()
            assert refused.value.failure.kind is Kind.CREDENTIAL
            rig.ahead_s += 3600
    assert codex.counts[TOKEN] == 1


@pytest.mark.parametrize("status", [500, 503, 429, 400])
async def test_a_temporary_rejection_is_retried(codex: FakeCodex, tmp_path: Path, status: int) -> None:
    """A 500 does not mean that the token is bad."""
    path = write_file(tmp_path / "auth.json", codex.auth_file(-60))
    codex.script(TOKEN, json_answer({"error": {"code": "hiccup"}}, status))
    async with Rig(codex, path) as rig:
        with pytest.raises(RequestError) as refused:
            await rig.refresher.get()
        assert refused.value.failure.kind is not Kind.CREDENTIAL
        assert await rig.get_token() in codex.access
    assert codex.counts[TOKEN] == 2


@pytest.mark.parametrize("ahead_s", [700, 1000], ids=["while the old one is still valid", "when it has expired"])
async def test_a_newer_token_of_the_same_account_is_adopted_without_a_renewal(
    codex: FakeCodex, tmp_path: Path, ahead_s: float
) -> None:
    path = write_file(tmp_path / "auth.json", codex.auth_file(900))
    async with Rig(codex, path) as rig:
        await rig.refresher.get()
        newer = codex.auth_file(7200)
        write_file(path, newer)
        rig.ahead_s = ahead_s
        assert await rig.get_token() == tokens(newer)["access_token"]
    assert codex.counts[TOKEN] == 0


async def test_a_changed_file_is_noticed_at_once_after_a_rejected_renewal(codex: FakeCodex, tmp_path: Path) -> None:
    """No second call until the file changes, and then one at once."""
    path = write_file(tmp_path / "auth.json", codex.auth_file(120))
    codex.used.update(codex.refresh)
    async with Rig(codex, path) as rig:
        for _ in range(3):
            await rig.refresher.get()
        assert codex.counts[TOKEN] == 1
        newer = codex.auth_file(7200)
        write_file(path, newer)
        assert await rig.get_token() == tokens(newer)["access_token"]
    assert codex.counts[TOKEN] == 1


async def test_another_account_in_the_file_is_an_error_and_its_tokens_are_not_used(
    codex: FakeCodex, tmp_path: Path
) -> None:
    path = write_file(tmp_path / "auth.json", codex.auth_file(900))
    async with Rig(codex, path) as rig:
        await rig.refresher.get()
        codex.account = "acct-fake-2"
        other = write_file(path, codex.auth_file(-60)).read_bytes()
        rig.ahead_s = 1000
        with pytest.raises(RequestError, match="another account"):
            await rig.refresher.get()
        assert path.read_bytes() == other
    assert codex.counts[TOKEN] == 0


async def request_until(rig: Rig, token: str) -> None:
    """A request waits for a look at the file only so long; on a busy machine the next one sees what it found."""
    for _ in range(1000):
        if await rig.get_token() == token:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it was requested a thousand times")


async def test_another_account_is_an_error_even_while_the_old_token_is_valid(codex: FakeCodex, tmp_path: Path) -> None:
    """Shortly before expiry the file is read, and the account in it decides; signing in again fixes it."""
    path = write_file(tmp_path / "auth.json", codex.auth_file(900))
    async with Rig(codex, path) as rig:
        await rig.refresher.get()
        codex.account = "acct-fake-2"
        write_file(path, codex.auth_file(7200))
        rig.ahead_s = 700
        with pytest.raises(RequestError, match="another account"):
            await request_until(rig, "nothing that it will ever give")
        codex.account = "acct-fake-1"
        back = codex.auth_file(7200)
        write_file(path, back)
        await request_until(rig, tokens(back)["access_token"])
    assert codex.counts[TOKEN] == 0


def test_a_token_that_codex_renews_at_the_same_time_is_not_overwritten(codex: FakeCodex, tmp_path: Path) -> None:
    path = write_file(tmp_path / "auth.json", codex.auth_file(-60))
    theirs: list[bytes] = []

    def write_as_codex() -> None:
        write_file(path, codex.auth_file(7200))
        theirs.append(path.read_bytes())

    codex.before[TOKEN] = write_as_codex
    assert get_once(Rig(codex, path)).access_token in codex.access
    assert path.read_bytes() == theirs[0]


async def test_many_requests_renew_once(codex: FakeCodex, tmp_path: Path) -> None:
    path = write_file(tmp_path / "auth.json", codex.auth_file(-60))
    async with Rig(codex, path) as rig:
        found = await asyncio.gather(*(rig.refresher.get() for _ in range(50)))
        assert len({credential.access_token for credential in found}) == 1
    assert codex.counts[TOKEN] == 1


async def test_a_wrong_clock_is_corrected_by_responses(codex: FakeCodex, tmp_path: Path) -> None:
    """Ours is two hours behind: the token that seems to live is renewed, once."""
    codex.ahead_s = 7200
    path = write_file(tmp_path / "auth.json", codex.auth_file(-7260))
    async with Rig(codex, path) as rig:
        first = await rig.refresher.get()
        assert abs(rig.clock.now() - first.expires_at + codex.life_s) < 60
        assert await rig.get_token() == first.access_token
    assert codex.counts[TOKEN] == 1


async def test_a_clock_that_is_ahead_costs_one_renewal_at_most(codex: FakeCodex, tmp_path: Path) -> None:
    """Ours is two hours ahead: a valid token seems to have expired, until the service has reported the time."""
    path = write_file(tmp_path / "auth.json", codex.auth_file(3600))
    async with Rig(codex, path) as rig:
        rig.ahead_s = 7200
        assert len({await rig.get_token() for _ in range(3)}) == 1
    assert codex.counts[TOKEN] == 1


@pytest.mark.parametrize("jump_s", [3600, -3600, 90_000, -90_000])
async def test_a_clock_that_jumps_does_not_cause_a_loop_of_renewals(
    codex: FakeCodex, tmp_path: Path, jump_s: float
) -> None:
    path = write_file(tmp_path / "auth.json", codex.auth_file(-60))
    async with Rig(codex, path) as rig:
        await rig.refresher.get()
        rig.ahead_s = jump_s
        living = [await rig.get_token() for _ in range(5)]
        assert set(living) <= codex.access
    assert codex.counts[TOKEN] <= 2


async def test_a_token_that_codex_has_renewed_is_adopted(codex: FakeCodex, tmp_path: Path) -> None:
    """Ours is refused as reused, since Codex was faster; its file holds the successor."""
    table = codex.auth_file(-60)
    path = write_file(tmp_path / "auth.json", table)
    codex.used.add(tokens(table)["refresh_token"])
    newer = codex.auth_file(3600)
    codex.before[TOKEN] = lambda: write_file(path, newer)
    async with Rig(codex, path) as rig:
        assert await rig.get_token() == tokens(newer)["access_token"]
    assert codex.counts[TOKEN] == 1
    assert read(path) == newer


def test_half_a_file_is_read_again(codex: FakeCodex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codex truncates and writes in place."""
    monkeypatch.setattr(credential, "READ_TRIES", 600)  # the other thread may be late on a busy machine
    path = write_file(tmp_path / "auth.json", codex.auth_file())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    threading.Timer(0.05, lambda: path.write_bytes(whole)).start()
    assert get_once(Rig(codex, path)).account == ACCOUNT


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"OPENAI_API_KEY": "sk-fake-key"}, 'kind "openai"'),
        ({"auth_mode": "agentIdentity"}, "agent"),
        ({"tokens": None}, "holds no token"),
        ({"tokens": {"access_token": "a\nb"}}, "characters"),
    ],
)
def test_a_file_without_a_usable_token_is_described(
    codex: FakeCodex, tmp_path: Path, table: dict[str, object], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        get_once(Rig(codex, write_file(tmp_path / "auth.json", table)))
    assert "sk-fake" not in str(refused.value)


async def test_an_unreadable_token_is_valid_eight_days_from_its_last_renewal(codex: FakeCodex, tmp_path: Path) -> None:
    table: dict[str, object] = {"tokens": {"access_token": "opaque", "refresh_token": "rt_FAKE", "account_id": "a"}}
    path = write_file(tmp_path / "auth.json", {**table, "last_refresh": "2026-11-01T00:00:00.123456789Z"})
    async with Rig(codex, path) as rig:
        rig.ahead_s = 1793491200 + 7 * 86_400 - rig.clock.now()
        assert await rig.get_token() == "opaque"
    assert codex.counts[TOKEN] == 0


def test_the_account_is_found_in_any_of_its_claims(codex: FakeCodex, tmp_path: Path) -> None:
    places: list[dict[str, object]] = [
        auth("acct-a"),
        {"chatgpt_account_id": "acct-a"},
        {"organizations": [{"id": "acct-a"}]},
    ]
    for claimed in places:
        table: dict[str, object] = {"tokens": {"access_token": jwt(exp=4_102_444_800), "id_token": jwt(**claimed)}}
        assert get_once(Rig(codex, write_file(tmp_path / "auth.json", table))).account == "acct-a"
