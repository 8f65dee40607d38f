"""A ChatGPT credential shared with Codex: renewed once, never overwritten, used until it expires."""

import asyncio
import stat
import threading
from pathlib import Path

import pytest

from dragoman.accounts import credential, refresher
from dragoman.hub.failure import Kind, RequestError
from dragoman.providers.codex.credential import Credential
from fakes.codex import ACCOUNT, TOKEN, FakeCodex, auth, jwt
from fakes.service import json_answer
from fakes.upstream import Answer
from providers.codex.codex_kit import Rig, make_rig, read, tokens, write_file


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests wait for a look at the file as long as a busy machine needs."""
    monkeypatch.setattr(refresher, "READ_TIMEOUT_S", 30.0)


def get_credential(fake: FakeCodex, path: Path) -> Credential:
    async def work(rig: Rig) -> Credential:
        return await rig.refresher.get()

    return asyncio.run(make_rig(fake, path, work))


def test_a_valid_token_is_used_and_nothing_is_written(tmp_path: Path) -> None:
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file())
        before = path.read_bytes()
        credential = get_credential(fake, path)
    assert (credential.account, credential.plan) == (ACCOUNT, "plus")
    assert fake.counts[TOKEN] == 0
    assert path.read_bytes() == before


def test_a_renewal_without_a_new_refresh_token_keeps_the_old_one_and_unknown_fields(tmp_path: Path) -> None:
    with FakeCodex() as fake:
        fake.rotates = False
        table = fake.auth_file(-60, agent_identity={"x": 1})
        table["tokens"] = {**tokens(table), "of_tomorrow": "kept"}
        path = write_file(tmp_path / "auth.json", table)
        fresh = get_credential(fake, path)
    after = read(path)
    assert tokens(after)["refresh_token"] == tokens(table)["refresh_token"]
    assert tokens(after)["access_token"] == fresh.access_token != tokens(table)["access_token"]
    assert (after["agent_identity"], tokens(after)["of_tomorrow"]) == ({"x": 1}, "kept")
    assert tokens(after)["account_id"] == ACCOUNT
    assert str(after["last_refresh"]).endswith("Z")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_refresh_token_that_was_used_before_is_not_tried_again_until_the_file_changes(tmp_path: Path) -> None:
    """Permanent; and while the access token lives, it serves."""
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(120))  # within the margin, not expired
        fake.used.update(fake.refresh)

        async def work(rig: Rig) -> None:
            for _ in range(3):
                assert (await rig.refresher.get()).access_token == tokens(read(path))["access_token"]
                rig.ahead_s += 31
                await asyncio.sleep(0.02)
            rig.ahead_s = 200
            with pytest.raises(RequestError, match="refresh_token_reused"):
                await rig.refresher.get()
            rig.ahead_s += 86_400
            with pytest.raises(RequestError, match="login"):
                await rig.refresher.get()
            assert fake.counts[TOKEN] == 1
            write_file(path, fake.auth_file(-60))
            assert (await rig.refresher.get()).access_token in fake.access

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 2


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
def test_every_spelling_of_a_permanent_rejection_is_recognised(tmp_path: Path, objection: Answer) -> None:
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(-60))
        fake.script(TOKEN, objection)

        async def work(rig: Rig) -> None:
            for _ in range(2):
                with pytest.raises(RequestError) as refused:
                    await rig.refresher.get()
                assert refused.value.failure.kind is Kind.CREDENTIAL
                rig.ahead_s += 3600

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 1


@pytest.mark.parametrize("status", [500, 503, 429, 400])
def test_a_temporary_rejection_is_retried(tmp_path: Path, status: int) -> None:
    """A 500 does not mean that the token is bad."""
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(-60))
        fake.script(TOKEN, json_answer({"error": {"code": "hiccup"}}, status))

        async def work(rig: Rig) -> None:
            with pytest.raises(RequestError) as refused:
                await rig.refresher.get()
            assert refused.value.failure.kind is not Kind.CREDENTIAL
            assert (await rig.refresher.get()).access_token in fake.access

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 2


def test_a_newer_token_of_the_same_account_is_adopted_without_a_renewal(tmp_path: Path) -> None:
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(900))

        async def work(rig: Rig) -> None:
            await rig.refresher.get()
            newer = fake.auth_file(7200)
            write_file(path, newer)
            rig.ahead_s = 1000
            assert (await rig.refresher.get()).access_token == tokens(newer)["access_token"]

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 0


def test_a_newer_token_is_found_by_the_first_request_for_which_a_renewal_is_due(tmp_path: Path) -> None:
    """The old token is still valid, but is not sent any more."""
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(900))

        async def work(rig: Rig) -> None:
            await rig.refresher.get()
            newer = fake.auth_file(7200)
            write_file(path, newer)
            rig.ahead_s = 700
            assert (await rig.refresher.get()).access_token == tokens(newer)["access_token"]

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 0


def test_a_changed_file_is_noticed_at_once_after_a_rejected_renewal(tmp_path: Path) -> None:
    """No second call until the file changes, and then one at once."""
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(120))
        fake.used.update(fake.refresh)

        async def work(rig: Rig) -> None:
            for _ in range(3):
                await rig.refresher.get()
            assert fake.counts[TOKEN] == 1
            newer = fake.auth_file(7200)
            write_file(path, newer)
            assert (await rig.refresher.get()).access_token == tokens(newer)["access_token"]

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 1


def test_another_account_in_the_file_is_an_error_and_its_tokens_are_not_used(tmp_path: Path) -> None:
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(900))

        async def work(rig: Rig) -> None:
            await rig.refresher.get()
            fake.account = "acct-fake-2"
            other = write_file(path, fake.auth_file(-60)).read_bytes()
            rig.ahead_s = 1000
            with pytest.raises(RequestError, match="another account"):
                await rig.refresher.get()
            assert path.read_bytes() == other

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 0


async def request_until(rig: Rig, token: str) -> None:
    """A request waits for a look at the file only so long; on a busy machine the next one sees what it found."""
    for _ in range(1000):
        if (await rig.refresher.get()).access_token == token:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it was requested a thousand times")


def test_another_account_is_an_error_even_while_the_old_token_is_valid(tmp_path: Path) -> None:
    """Shortly before expiry the file is read, and the account in it decides; signing in again fixes it."""
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(900))

        async def work(rig: Rig) -> None:
            await rig.refresher.get()
            fake.account = "acct-fake-2"
            write_file(path, fake.auth_file(7200))
            rig.ahead_s = 700
            with pytest.raises(RequestError, match="another account"):
                await request_until(rig, "nothing that it will ever give")
            fake.account = "acct-fake-1"
            back = fake.auth_file(7200)
            write_file(path, back)
            await request_until(rig, tokens(back)["access_token"])

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 0


def test_a_token_that_codex_renews_at_the_same_time_is_not_overwritten(tmp_path: Path) -> None:
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(-60))
        theirs: list[bytes] = []

        def write_as_codex() -> None:
            write_file(path, fake.auth_file(7200))
            theirs.append(path.read_bytes())

        fake.before[TOKEN] = write_as_codex
        assert get_credential(fake, path).access_token in fake.access
    assert path.read_bytes() == theirs[0]


def test_many_requests_renew_once(tmp_path: Path) -> None:
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(-60))

        async def work(rig: Rig) -> set[str]:
            found = await asyncio.gather(*(rig.refresher.get() for _ in range(50)))
            return {credential.access_token for credential in found}

        assert len(asyncio.run(make_rig(fake, path, work))) == 1
    assert fake.counts[TOKEN] == 1


def test_a_wrong_clock_is_corrected_by_responses(tmp_path: Path) -> None:
    """Ours is two hours behind: the token that seems to live is renewed, once."""
    with FakeCodex() as fake:
        fake.ahead_s = 7200
        path = write_file(tmp_path / "auth.json", fake.auth_file(-7260))

        async def work(rig: Rig) -> None:
            first = await rig.refresher.get()
            assert abs(rig.clock.now() - first.expires_at + fake.life_s) < 60
            assert (await rig.refresher.get()).access_token == first.access_token

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 1


def test_a_clock_that_is_ahead_costs_one_renewal_at_most(tmp_path: Path) -> None:
    """Ours is two hours ahead: a valid token seems to have expired, until the service has reported the time."""
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(3600))

        async def work(rig: Rig) -> set[str]:
            rig.ahead_s = 7200
            return {(await rig.refresher.get()).access_token for _ in range(3)}

        assert len(asyncio.run(make_rig(fake, path, work))) == 1
    assert fake.counts[TOKEN] == 1


@pytest.mark.parametrize("jump_s", [3600, -3600, 90_000, -90_000])
def test_a_clock_that_jumps_does_not_cause_a_loop_of_renewals(tmp_path: Path, jump_s: float) -> None:
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file(-60))

        async def work(rig: Rig) -> None:
            await rig.refresher.get()
            rig.ahead_s = jump_s
            living = [(await rig.refresher.get()).access_token for _ in range(5)]
            assert set(living) <= fake.access

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] <= 2


def test_a_token_that_codex_has_renewed_is_adopted(tmp_path: Path) -> None:
    """Ours is refused as reused, since Codex was faster; its file holds the successor."""
    with FakeCodex() as fake:
        table = fake.auth_file(-60)
        path = write_file(tmp_path / "auth.json", table)
        fake.used.add(tokens(table)["refresh_token"])
        newer = fake.auth_file(3600)
        fake.before[TOKEN] = lambda: write_file(path, newer)

        async def work(rig: Rig) -> str:
            return (await rig.refresher.get()).access_token

        assert asyncio.run(make_rig(fake, path, work)) == tokens(newer)["access_token"]
    assert fake.counts[TOKEN] == 1
    assert read(path) == newer


def test_half_a_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codex truncates and writes in place."""
    monkeypatch.setattr(credential, "READ_TRIES", 600)  # the other thread may be late on a busy machine
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", fake.auth_file())
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        threading.Timer(0.05, lambda: path.write_bytes(whole)).start()
        assert get_credential(fake, path).account == ACCOUNT


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"OPENAI_API_KEY": "sk-fake-key"}, 'kind "openai"'),
        ({"auth_mode": "agentIdentity"}, "agent"),
        ({"tokens": None}, "holds no token"),
        ({"tokens": {"access_token": "a\nb"}}, "characters"),
    ],
)
def test_a_file_without_a_usable_token_is_described(tmp_path: Path, table: dict[str, object], message: str) -> None:
    with FakeCodex() as fake, pytest.raises(RequestError, match=message) as refused:
        get_credential(fake, write_file(tmp_path / "auth.json", table))
    assert "sk-fake" not in str(refused.value)


def test_an_unreadable_token_is_valid_eight_days_from_its_last_renewal(tmp_path: Path) -> None:
    table: dict[str, object] = {"tokens": {"access_token": "opaque", "refresh_token": "rt_FAKE", "account_id": "a"}}
    with FakeCodex() as fake:
        path = write_file(tmp_path / "auth.json", {**table, "last_refresh": "2026-11-01T00:00:00.123456789Z"})

        async def work(rig: Rig) -> None:
            rig.ahead_s = 1793491200 + 7 * 86_400 - rig.clock.now()
            assert (await rig.refresher.get()).access_token == "opaque"

        asyncio.run(make_rig(fake, path, work))
    assert fake.counts[TOKEN] == 0


def test_the_account_is_found_in_any_of_its_claims(tmp_path: Path) -> None:
    places: list[dict[str, object]] = [
        auth("acct-a"),
        {"chatgpt_account_id": "acct-a"},
        {"organizations": [{"id": "acct-a"}]},
    ]
    with FakeCodex() as fake:
        for claimed in places:
            table: dict[str, object] = {"tokens": {"access_token": jwt(exp=4_102_444_800), "id_token": jwt(**claimed)}}
            assert get_credential(fake, write_file(tmp_path / "auth.json", table)).account == "acct-a"
