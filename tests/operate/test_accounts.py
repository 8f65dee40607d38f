"""Credentials in the store without a terminal: what goes in and comes out, with which key, and what is refused."""

import stat
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate import AdminError, Conflict
from dragoman.operate.accounts import Resealed, SharedAccounts
from dragoman.operate.audit import LATEST
from dragoman.store import open_store
from dragoman.store.sealing import VARIABLE
from fakes.codex import FakeCodex
from store.stories import on_sqlite_first
from upstreams.kiro.kiro_kit import database, ide_file, token
from wire_json import JsonObject

OLD, NEW = (b64encode(bytes([number]) * 32).decode() for number in (1, 2))
WITH_OLD, WITH_NEW, WITH_BOTH = {VARIABLE: OLD}, {VARIABLE: NEW}, {VARIABLE: f"{NEW},{OLD}"}


@pytest.fixture
def config(tmp_path: Path, store_url: str) -> Config:
    return make_config(tmp_path, store_url)


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Config:
    return make_config(tmp_path, f"sqlite:///{tmp_path}/data/dragoman.db")


@pytest.fixture
def kiro_file(tmp_path: Path) -> Path:
    return ide_file(tmp_path / "kiro.json")


def make_config(directory: Path, url: str) -> Config:
    section = '[providers.one]\nkind = "kiro"\ncredentials = "store:team"\n'
    (directory / "dragoman.toml").write_text(f'[store]\nurl = "{url}"\n{section}')
    return ConfigSource(None, {}, directory, directory).read()


def read(file: Path) -> JsonObject:
    return msgspec.json.decode(file.read_bytes(), type=dict[str, object])


async def pull(config: Config, environ: Mapping[str, str], name: str = "team") -> JsonObject:
    file = Path(str(config.source)).with_name("pulled.json")
    await SharedAccounts(config, environ).pull(name, file, replaces=True)
    return read(file)


@on_sqlite_first
async def test_a_file_comes_out_as_it_went_in_for_its_owner_alone(config: Config, kiro_file: Path) -> None:
    pushed = await SharedAccounts(config, WITH_OLD).push("team", kiro_file)
    again = await SharedAccounts(config, WITH_OLD).push("team", kiro_file)
    assert (pushed.account.version, again.account.version, again.key_file) == (1, 2, None)
    assert (again.account.kind, again.account.providers) == ("kiro", ("one",))
    out = kiro_file.with_name("out.json")
    await SharedAccounts(config, WITH_OLD).pull("team", out, replaces=False)
    assert read(out) == read(kiro_file)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with pytest.raises(Conflict, match=r"out\.json already exists"):
        await SharedAccounts(config, WITH_OLD).pull("team", out, replaces=False)


@on_sqlite_first
async def test_what_is_done_is_audited_without_content(config: Config, kiro_file: Path) -> None:
    await SharedAccounts(config, WITH_OLD).push("team", kiro_file)
    await pull(config, WITH_OLD)
    await SharedAccounts(config, WITH_BOTH).reseal()
    async with await open_store(config.store.url) as store:
        rows = await store.list_audit_rows(LATEST, 9)
    assert [(row.actor, row.action, row.subject, row.detail) for row in rows] == [
        ("local", "accounts.reseal", "team", ""),
        ("local", "accounts.pull", "team", '{"kind":"kiro","version":1}'),
        ("local", "accounts.push", "team", '{"kind":"kiro"}'),
    ]


@on_sqlite_first
async def test_resealing_turns_to_the_new_key_without_a_sign_in(config: Config, kiro_file: Path) -> None:
    await SharedAccounts(config, WITH_OLD).push("team", kiro_file)
    await SharedAccounts(config, WITH_NEW).push("other", kiro_file)
    resealed = await SharedAccounts(config, WITH_BOTH).reseal()
    assert resealed == [Resealed("other", "unchanged"), Resealed("team", "resealed")]
    assert (await pull(config, WITH_NEW))["refreshToken"] == token("old")


@on_sqlite_first
async def test_a_wrong_key_is_named_and_nothing_is_overwritten(config: Config, kiro_file: Path) -> None:
    await SharedAccounts(config, WITH_NEW).push("team", kiro_file)
    [resealed] = await SharedAccounts(config, WITH_OLD).reseal()
    [listed] = await SharedAccounts(config, WITH_OLD).list()
    why = "store:team is sealed with a key that $DRAGOMAN_SECRET_KEY does not have"
    assert resealed.has_failed
    assert resealed.result == listed.problem
    assert listed.problem.startswith(why)
    with pytest.raises(AdminError, match=r"^Nothing is written: store:team is sealed with a key"):
        await pull(config, WITH_OLD)
    assert (await pull(config, WITH_NEW))["refreshToken"] == token("old")


@on_sqlite_first
async def test_a_name_that_is_not_there_is_refused(config: Config) -> None:
    with pytest.raises(AdminError, match="store:team is not in the store"):
        await pull(config, WITH_OLD)


async def test_sqlite_gets_a_key_of_its_own_which_can_move_to_the_environment(
    on_sqlite: Config, kiro_file: Path
) -> None:
    pushed = await SharedAccounts(on_sqlite, {}).push("team", kiro_file)
    file = pushed.key_file
    assert file is not None
    assert file == kiro_file.with_name("data") / "secret.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    both = {VARIABLE: f"{NEW},{file.read_text().strip()}"}
    assert await SharedAccounts(on_sqlite, both).reseal() == [Resealed("team", "resealed")]
    file.unlink()
    assert (await pull(on_sqlite, WITH_NEW))["refreshToken"] == token("old")
    with pytest.raises(AdminError, match=r"secret\.key does not exist: put it back"):
        await pull(on_sqlite, {})
    assert not file.exists()


async def test_no_secret_is_in_the_files_of_the_store(on_sqlite: Config, kiro_file: Path) -> None:
    await SharedAccounts(on_sqlite, WITH_OLD).push("team", kiro_file)
    for path in (kiro_file.with_name("data")).iterdir():
        assert not [secret for secret in (b"aorFAKE", b"aoaFAKE", OLD.encode()) if secret in path.read_bytes()]


async def test_a_registration_beside_the_file_goes_with_it(on_sqlite: Config, tmp_path: Path) -> None:
    client = {"clientId": "fake-client", "clientSecret": "fake-secret"}
    (tmp_path / "abc.json").write_bytes(msgspec.json.encode({**client, "expiresAt": "2030-01-01T00:00:00Z"}))
    file = ide_file(tmp_path / "k.json", authMethod="IdC", clientIdHash="abc")
    await SharedAccounts(on_sqlite, {}).push("team", file)
    whole = {**client, "clientSecretExpiresAt": "2030-01-01T00:00:00Z"}
    assert (await pull(on_sqlite, {})).items() >= whole.items()


async def test_the_database_of_kiro_cli_goes_in_as_the_form_of_a_file(on_sqlite: Config, tmp_path: Path) -> None:
    rows = {
        "kirocli:odic:token": {
            "access_token": "aoaFAKE",
            "refresh_token": token("cli"),
            "expires_at": "2030-01-01T00:00:00Z",
            "region": "eu-central-1",
        },
        "kirocli:odic:device-registration": {"client_id": "fake-client", "client_secret": "fake-secret"},
    }
    await SharedAccounts(on_sqlite, {}).push("team", database(tmp_path / "data.sqlite3", rows))
    assert await pull(on_sqlite, {}) == {
        "authMethod": "IdC",
        "accessToken": "aoaFAKE",
        "refreshToken": token("cli"),
        "expiresAt": "2030-01-01T00:00:00.000Z",
        "region": "eu-central-1",
        "provider": "BuilderId",
        "clientId": "fake-client",
        "clientSecret": "fake-secret",
    }


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("codex", FakeCodex().auth_file()),
        ("copilot", {"acme.ghe.com": {"oauth_token": "ghu_FAKE"}}),
        ("gemini", {"type": "authorized_user", "refresh_token": "fake", "client_id": "i", "client_secret": "s"}),
    ],
)
async def test_files_of_other_vendors_are_recognised(
    on_sqlite: Config, tmp_path: Path, kind: str, table: JsonObject
) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(msgspec.json.encode(table))
    await SharedAccounts(on_sqlite, {}).push("team", file)
    [listed] = await SharedAccounts(on_sqlite, {}).list()
    assert (listed.kind, listed.problem) == (kind, "")
    assert await pull(on_sqlite, {}) == table


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "does not exist"),
        ("not JSON", "is not a JSON object"),
        ('{"some": "thing"}', "is no credential file"),
        ('{"refreshToken": ""}', "holds no token"),
        ('{"auth_mode": "apikey", "OPENAI_API_KEY": "sk-fake"}', "holds an API key"),
        ('{"type": "external_account"}', "which cannot be used here"),
    ],
)
async def test_what_is_no_credential_file_is_not_stored(
    on_sqlite: Config, tmp_path: Path, content: str | None, why: str
) -> None:
    file = tmp_path / "file.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(AdminError, match=f"^Nothing is stored: .*{why}") as refused:
        await SharedAccounts(on_sqlite, {}).push("team", file)
    assert "sk-fake" not in str(refused.value)
    assert await SharedAccounts(on_sqlite, {}).list() == []
    assert not (tmp_path / "data" / "secret.key").exists()
