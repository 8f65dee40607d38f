"""A GitHub account with Copilot: its token is found, exchanged, renewed, and sent only to trusted hosts."""

import asyncio
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.config.secret import SecretSource
from dragoman.config.settings import CopilotProviderConfig
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.upstreams import Surroundings
from dragoman.upstreams.copilot.credential import Session, TokenExchange, find_addresses, find_source, is_trusted
from dragoman.upstreams.copilot.provider import make_copilot
from dragoman.upstreams.credentials.credential import CredentialError, format_timestamp
from dragoman.upstreams.credentials.refresher import CredentialRefresher, RenewalTiming
from fakes.copilot import APP_TOKEN, CLIENT_ID, EDITOR_TOKEN, EXCHANGE, INSTALLATION_TOKEN, TOKEN, FakeCopilot
from fakes.service import json_answer
from fakes.upstream import Answer
from narrowing import present
from outgoing import open_http
from upstreams.account_kit import RefresherRig, as_local, get_once


def section(credentials: str | Path | None = None, **settings: object) -> CopilotProviderConfig:
    secret = None if credentials is None else SecretSource(str(credentials), "providers.copilot.credentials")
    return replace(CopilotProviderConfig(name="copilot", kind="copilot", credentials=secret), **settings)


def write_file(path: Path, table: Mapping[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(table))
    return path


class Rig(RefresherRig[Session]):
    def __init__(self, fake: FakeCopilot, config: CopilotProviderConfig) -> None:
        super().__init__()
        config = replace(config, control_endpoint=fake.root, auth_endpoint=fake.root)
        exchange = TokenExchange(self.service, find_addresses(config))
        self.refresher = CredentialRefresher(
            "copilot", find_source(config, {}), exchange, RenewalTiming(self.clock, 300.0)
        )


async def test_an_editors_token_is_exchanged_once_for_many(copilot: FakeCopilot) -> None:
    async with Rig(copilot, section(EDITOR_TOKEN)) as rig:
        found = await asyncio.gather(*(rig.refresher.get() for _ in range(20)))
        assert len({session.access_token for session in found}) == 1
    assert copilot.counts[EXCHANGE] == 1
    assert copilot.at(EXCHANGE)[0].headers["authorization"] == f"token {EDITOR_TOKEN}"


async def test_a_session_is_renewed_before_it_ends_by_our_own_clock(copilot: FakeCopilot) -> None:
    """GitHub's clock is a day ahead: its moment of expiry is not believed, how long it lives is."""
    copilot.ahead_s = 20  # noise, no skew
    async with Rig(copilot, section(EDITOR_TOKEN)) as rig:
        first = await rig.refresher.get()
        rig.ahead_s = 1500 + 60 - 299  # within the margin: served while it is renewed
        served = threading.Event()
        copilot.before[EXCHANGE] = lambda: print(served.wait(20))
        assert await rig.get_token() == first.access_token
        served.set()
        async with asyncio.timeout(20):
            while await rig.get_token() == first.access_token:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert copilot.counts[EXCHANGE] == 2


async def test_githubs_clock_is_used_if_it_differs(copilot: FakeCopilot) -> None:
    copilot.ahead_s = 86_400
    async with Rig(copilot, section(EDITOR_TOKEN)) as rig:
        found = await rig.refresher.get()
        assert found.expires_at - rig.clock.now() == pytest.approx(1560, abs=60)


@pytest.mark.parametrize("token", [APP_TOKEN, INSTALLATION_TOKEN, "github_pat_FAKE"])
def test_other_tokens_are_used_directly(copilot: FakeCopilot, token: str) -> None:
    assert get_once(Rig(copilot, section(token))).access_token == token
    assert copilot.counts[EXCHANGE] == 0


def test_the_authorization_mode_can_be_configured(copilot: FakeCopilot) -> None:
    assert get_once(Rig(copilot, section(APP_TOKEN, auth="exchange"))).access_token in copilot.sessions
    assert get_once(Rig(copilot, section(EDITOR_TOKEN, auth="direct"))).access_token == EDITOR_TOKEN


def test_an_account_without_copilot_is_forbidden_with_the_reason(copilot: FakeCopilot) -> None:
    details = {"notification_id": "no_copilot_access", "message": "No access to GitHub Copilot found."}
    copilot.script(EXCHANGE, json_answer({"error_details": details}, 403))
    with pytest.raises(RequestError, match="No access to GitHub Copilot") as refused:
        get_once(Rig(copilot, section(EDITOR_TOKEN)))
    assert refused.value.failure.kind is Kind.FORBIDDEN
    assert "ghu_" not in refused.value.failure.message


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"message": "Bad credentials"}, Kind.CREDENTIAL),
        (404, {"message": "Not Found"}, Kind.CREDENTIAL),
        (403, {"message": "API rate limit exceeded"}, Kind.RATE_LIMITED),
        (500, {}, Kind.UPSTREAM),
        (200, {"no": "token"}, Kind.UPSTREAM),
    ],
)
def test_a_rejected_exchange_keeps_its_kind(copilot: FakeCopilot, status: int, body: object, kind: Kind) -> None:
    copilot.script(EXCHANGE, *[json_answer(body, status)] * 3)
    with pytest.raises(RequestError) as refused:
        get_once(Rig(copilot, section(EDITOR_TOKEN)))
    assert refused.value.failure.kind is kind


async def test_a_person_who_signs_in_again_is_found_without_a_restart(copilot: FakeCopilot, tmp_path: Path) -> None:
    path = write_file(tmp_path / "apps.json", {"github.com:Iv1.fake": {"oauth_token": "ghu_FAKErevoked"}})
    async with Rig(copilot, section(path)) as rig:
        with pytest.raises(RequestError):
            await rig.refresher.get()
        write_file(path, {"github.com:Iv1.fake": {"oauth_token": EDITOR_TOKEN}})
        assert await rig.get_token() in copilot.sessions


def test_a_classic_personal_token_is_rejected_with_the_reason(copilot: FakeCopilot) -> None:
    with pytest.raises(RequestError, match="classic") as refused:
        get_once(Rig(copilot, section("ghp_FAKEclassic")))
    assert "ghp_FAKE" not in refused.value.failure.message


@pytest.mark.parametrize(
    "table",
    [
        {"github.com": {"oauth_token": APP_TOKEN}},
        {"github.com:Iv1.fake": {"user": "me", "oauth_token": APP_TOKEN}},
        {"acme.ghe.com": {"oauth_token": "gho_FAKEother"}, "github.com:x": {"oauth_token": APP_TOKEN}},
        {"github-copilot": {"type": "oauth", "refresh": APP_TOKEN, "access": APP_TOKEN, "expires": 0}},
    ],
)
def test_every_tools_file_is_read_and_none_is_written(
    copilot: FakeCopilot, tmp_path: Path, table: dict[str, object]
) -> None:
    path = write_file(tmp_path / "tokens.json", table)
    before = path.read_bytes()
    assert get_once(Rig(copilot, section(path))).access_token == APP_TOKEN
    assert path.read_bytes() == before


def test_a_token_of_another_host_is_never_used(tmp_path: Path) -> None:
    path = write_file(tmp_path / "hosts.json", {"github.com": {"oauth_token": APP_TOKEN}})
    source = as_local(find_source(section(path, domain="acme.ghe.com"), {})())
    with pytest.raises(CredentialError, match=r"acme\.ghe\.com"):
        source.read()


def test_files_are_tried_in_order(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}

    def read_token() -> str:
        return as_local(find_source(section(), environ)()).read().access_token

    write_file(tmp_path / ".config/github-copilot/hosts.json", {"github.com": {"oauth_token": "gho_FAKEhosts"}})
    assert read_token() == "gho_FAKEhosts"
    write_file(tmp_path / ".config/github-copilot/apps.json", {"github.com:x": {"oauth_token": "gho_FAKEapps"}})
    assert read_token() == "gho_FAKEapps"
    environ["COPILOT_GITHUB_TOKEN"] = "gho_FAKEvariable"
    assert read_token() == "gho_FAKEvariable"
    write_file(tmp_path / ".local/share/dragoman/copilot.json", {"github.com": {"oauth_token": "gho_FAKEown"}})
    assert read_token() == "gho_FAKEown"


def test_other_tokens_in_the_environment_are_not_used(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "GH_TOKEN": APP_TOKEN, "GITHUB_TOKEN": APP_TOKEN}
    with pytest.raises(CredentialError, match="dragoman login copilot"):
        as_local(find_source(section(), environ)()).read()
    assert as_local(find_source(section("env:GH_TOKEN"), environ)()).read().access_token == APP_TOKEN


def test_an_enterprise_domain_uses_only_its_own_addresses() -> None:
    tenant = find_addresses(section(domain="acme.ghe.com"))
    assert (tenant.login, tenant.exchange) == ("https://acme.ghe.com", "https://api.acme.ghe.com")
    assert tenant.api == "https://copilot-api.acme.ghe.com"
    assert not is_trusted("https://api.individual.githubcopilot.com", tenant.trusted)


@pytest.mark.parametrize(
    ("url", "trusted"),
    [
        ("https://api.business.githubcopilot.com", True),
        ("https://githubcopilot.com", True),
        ("http://api.githubcopilot.com", False),
        ("https://evilgithubcopilot.com", False),
        ("https://api.githubcopilot.com.evil.example", False),
        ("https://[broken", False),
        ("", False),
    ],
)
def test_a_token_is_sent_only_to_github(url: str, trusted: bool) -> None:
    assert is_trusted(url, "githubcopilot.com") is trusted


def test_the_host_that_the_exchange_names_is_kept_if_it_is_trusted(copilot: FakeCopilot) -> None:
    assert get_once(Rig(copilot, section(EDITOR_TOKEN))).api == "https://api.individual.githubcopilot.com"
    copilot.named_api = "https://evil.example"
    assert get_once(Rig(copilot, section(EDITOR_TOKEN))).api == ""


@pytest.mark.parametrize("endpoint", [None, "https://copilot.example"])
async def test_requests_go_to_the_accounts_own_host_unless_another_is_configured(
    copilot: FakeCopilot, endpoint: str | None
) -> None:
    config = section(EDITOR_TOKEN, endpoint=endpoint, control_endpoint=copilot.root, auth_endpoint=copilot.root)
    async with open_http() as http:
        provider = make_copilot(config, Surroundings(http.send, {}))
        found = await present(provider.endpoint.find_address)("/responses")
    assert found.url == f"{endpoint or 'https://api.individual.githubcopilot.com'}/responses"


def own(life_s: float) -> dict[str, dict[str, object]]:
    """What a login with an app of one's own leaves, if the app's tokens expire."""
    expires_at = format_timestamp(time.time() + life_s)
    entry = {"oauth_token": "ghu_FAKE1", "auth": "direct", "refresh_token": "ghr_FAKE1", "expires_at": expires_at}
    return {"github.com": {**entry, "client_id": CLIENT_ID, "of_tomorrow": 1}, "other": {"kept": True}}


def test_a_token_of_an_own_app_is_renewed_and_written_back(copilot: FakeCopilot, tmp_path: Path) -> None:
    path = write_file(tmp_path / "copilot.json", own(-60))
    assert get_once(Rig(copilot, section(path))).access_token == "ghu_FAKE1x"
    assert copilot.counts[EXCHANGE] == 0
    table = msgspec.json.decode(path.read_bytes())
    entry = table["github.com"]
    assert (entry["oauth_token"], entry["refresh_token"], entry["of_tomorrow"]) == ("ghu_FAKE1x", "ghr_FAKE1x", 1)
    assert table["other"] == {"kept": True}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_valid_token_of_an_own_app_is_used_unchanged(copilot: FakeCopilot, tmp_path: Path) -> None:
    path = write_file(tmp_path / "copilot.json", own(7200))
    before = path.read_bytes()
    assert get_once(Rig(copilot, section(path))).access_token == "ghu_FAKE1"
    assert copilot.requests == []
    assert path.read_bytes() == before


def test_a_refresh_token_that_another_program_has_renewed_is_adopted(copilot: FakeCopilot, tmp_path: Path) -> None:
    path = write_file(tmp_path / "copilot.json", own(-60))
    copilot.used.add("ghr_FAKE1")
    newer = own(7200)
    newer["github.com"] = {**newer["github.com"], "oauth_token": "ghu_FAKE2", "refresh_token": "ghr_FAKE2"}
    copilot.before[TOKEN] = lambda: write_file(path, newer)
    assert get_once(Rig(copilot, section(path))).access_token == "ghu_FAKE2"
    assert copilot.counts[TOKEN] == 1


def test_a_permanently_rejected_refresh_token_is_reported(copilot: FakeCopilot, tmp_path: Path) -> None:
    path = write_file(tmp_path / "copilot.json", own(-60))
    copilot.used.add("ghr_FAKE1")
    with pytest.raises(RequestError, match=r"bad_refresh_token.*dragoman login copilot") as refused:
        get_once(Rig(copilot, section(path)))
    assert refused.value.failure.kind is Kind.CREDENTIAL
    assert "ghr_" not in refused.value.failure.message


def test_a_token_that_rotates_during_renewal_is_not_overwritten(copilot: FakeCopilot, tmp_path: Path) -> None:
    path = write_file(tmp_path / "copilot.json", own(-60))
    newer = own(7200)
    newer["github.com"] = {**newer["github.com"], "oauth_token": "ghu_FAKE2", "refresh_token": "ghr_FAKE2"}
    copilot.before[TOKEN] = lambda: write_file(path, newer)
    assert get_once(Rig(copilot, section(path))).access_token == "ghu_FAKE1x"
    assert msgspec.json.decode(path.read_bytes()) == newer


@pytest.mark.parametrize("ahead_s", [86_400, -86_400])
async def test_a_clock_that_is_a_day_off_costs_one_renewal_at_most(
    copilot: FakeCopilot, tmp_path: Path, ahead_s: float
) -> None:
    path = write_file(tmp_path / "copilot.json", own(7200 if ahead_s > 0 else -100_000))
    async with Rig(copilot, section(path)) as rig:
        rig.ahead_s = ahead_s
        found = [await rig.refresher.get() for _ in range(3)]
        assert {session.access_token for session in found} == {"ghu_FAKE1x"}
        assert found[0].expires_at - rig.clock.now() == pytest.approx(28_800, abs=30)
    assert copilot.counts[TOKEN] == 1


@pytest.mark.parametrize("answer", [json_answer({"message": "later"}, 502), json_answer({"message": "slow"}, 429)])
async def test_a_server_error_does_not_reject_the_token(copilot: FakeCopilot, tmp_path: Path, answer: Answer) -> None:
    path = write_file(tmp_path / "copilot.json", own(-60))
    copilot.script(TOKEN, answer)
    async with Rig(copilot, section(path)) as rig:
        with pytest.raises(RequestError) as refused:
            await rig.refresher.get()
        assert refused.value.failure.kind is not Kind.CREDENTIAL
        assert await rig.get_token() == "ghu_FAKE1x"
    assert copilot.counts[TOKEN] == 2
