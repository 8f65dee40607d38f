"""Credentials in JSON files and in kiro-cli's database: what is read, what is rejected, and what a write keeps."""

import os
import random
import stat
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from dragoman.upstreams.credentials.credential import CredentialError
from dragoman.upstreams.kiro.credential import Credential, Method
from dragoman.upstreams.kiro.credential_sources import Database, JsonFile, RefreshToken, find_source
from narrowing import expect
from upstreams.account_kit import as_local
from upstreams.kiro.kiro_kit import database, ide_file, read, row, section, token


def renew_token(old: Credential) -> Credential:
    return replace(old, access_token="aoaFAKE-new", refresh_token=token("new"), expires_at=4_102_444_800.0)


def test_a_social_file_is_read(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", profileArn="arn:fake", refresh=token("r"))
    found = JsonFile(path).read()
    assert (found.method, found.refresh_token, found.profile_arn) == (Method.DESKTOP, token("r"), "arn:fake")
    assert found.region == "us-east-1"


@pytest.mark.parametrize("spelling", ["IdC", "idc", "IDC"])
def test_an_idc_token_takes_its_registration_from_the_file_of_its_hash(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "abc123.json").write_text(
        '{"clientId": "fake-client", "clientSecret": "fake-client-secret", "expiresAt": "2099-01-01T00:00:00Z"}'
    )
    (tmp_path / "other.json").write_text('{"clientId": "not-this-one", "clientSecret": "nor-this"}')
    path = ide_file(tmp_path / "kiro-auth-token.json", authMethod=spelling, provider="BuilderId", clientIdHash="abc123")
    found = JsonFile(path).read()
    assert (found.method, found.client_id, found.client_secret) == (Method.OIDC, "fake-client", "fake-client-secret")
    assert found.client_expires_at == 4070908800.0
    assert found.builder_id


def test_a_hash_with_a_path_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"clientId": "x", "clientSecret": "y"}')
    cache = tmp_path / "cache"
    cache.mkdir()
    path = ide_file(cache / "kiro-auth-token.json", authMethod="IdC", clientIdHash="../secret")
    with pytest.raises(CredentialError, match="clientIdHash"):
        JsonFile(path).read()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"accessToken": "a", "refr', "not a JSON object"),
        ("{}", "holds no token"),
        ('{"refreshToken": "aor\\nFAKE"}', "characters that no token has"),
        ('{"refreshToken": "aorFAKE", "region": "evil.example/x"}', "region"),
    ],
)
def test_an_unusable_file_is_reported_without_its_tokens(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "kiro-auth-token.json"
    path.write_text(content)
    with pytest.raises(CredentialError, match=words) as unusable:
        JsonFile(path).read()
    assert "aorFAKE" not in str(unusable.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match="does not exist"):
        JsonFile(tmp_path / "gone.json").read()


def test_a_write_changes_three_keys_and_keeps_the_rest(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", future={"kept": [1, None]}, provider="Github")
    path.chmod(0o644)
    file = JsonFile(path)
    old = file.read()
    assert file.write(old, renew_token(old))
    table = read(path)
    assert (table["accessToken"], table["refreshToken"]) == ("aoaFAKE-new", token("new"))
    assert table["expiresAt"] == "2100-01-01T00:00:00.000Z"
    assert (table["future"], table["provider"], table["region"]) == ({"kept": [1, None]}, "Github", "us-east-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [path.name]


def test_a_file_that_another_program_renewed_is_not_overwritten(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json")
    file = JsonFile(path)
    old = file.read()
    ide_file(path, refresh=token("by the IDE"))
    before = path.read_bytes()
    assert not file.write(old, renew_token(old))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    real = ide_file(tmp_path / "real.json")
    link = tmp_path / "link.json"
    link.symlink_to(real)
    file = JsonFile(link)
    assert file.write(file.read(), renew_token(file.read()))
    assert link.is_symlink()
    assert read(real)["accessToken"] == "aoaFAKE-new"


def test_a_credential_never_prints_itself(tmp_path: Path) -> None:
    found = JsonFile(ide_file(tmp_path / "kiro-auth-token.json")).read()
    assert "FAKE" not in f"{found!r} {found}"


def test_a_key_that_begins_with_ksk_is_an_api_key() -> None:
    source = as_local(find_source(section("env:KIRO_API_KEY"), {"KIRO_API_KEY": "ksk_fake-key"})())
    assert source.read().method is Method.API_KEY
    assert source.location == "env:KIRO_API_KEY"


def test_any_other_string_is_a_refresh_token() -> None:
    source = as_local(find_source(section("env:REFRESH_TOKEN"), {"REFRESH_TOKEN": "fake/refresh+token"})())
    assert expect(RefreshToken, source).read().refresh_token == "fake/refresh+token"
    assert "FAKE" not in expect(RefreshToken, find_source(section(token("literal")), {})()).location


def test_the_successor_of_a_token_from_the_environment_is_kept_for_the_next_start(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "REFRESH_TOKEN": token("seed")}
    source = as_local(find_source(section("env:REFRESH_TOKEN"), environ)())
    old = source.read()
    assert source.write(old, renew_token(old))
    again = as_local(find_source(section("env:REFRESH_TOKEN"), environ)()).read()
    assert (again.access_token, again.refresh_token) == ("aoaFAKE-new", token("new"))
    another = as_local(find_source(section("env:REFRESH_TOKEN"), {**environ, "REFRESH_TOKEN": token("other")})()).read()
    assert another.refresh_token == token("other")


def test_without_a_setting_the_first_existing_file_is_used(tmp_path: Path) -> None:
    find = find_source(section(None), {"HOME": str(tmp_path)})
    with pytest.raises(CredentialError, match="dragoman login kiro"):
        as_local(find()).read()
    cache = tmp_path / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    ide_file(cache / "kiro-auth-token.json", refresh=token("ide"))
    assert as_local(find()).read().refresh_token == token("ide")
    own = tmp_path / ".local" / "share" / "dragoman"
    own.mkdir(parents=True)
    ide_file(own / "kiro.json", refresh=token("own"))
    assert as_local(find()).read().refresh_token == token("own")


# A writer that is killed at any time leaves a complete file

KILLS = 8

WRITER = """
import itertools, sys
from pathlib import Path
from msgspec.structs import replace
from dragoman.upstreams.kiro.credential_sources import JsonFile

file = JsonFile(Path(sys.argv[1]))
for number in itertools.count():
    old = file.read()
    fresh = replace(old, access_token=f"aoaFAKE-{number}" * 2000, refresh_token=f"aorFAKE-{number}-" + "0" * 120)
    file.write(old, fresh)
    if number == 0:
        print("writing", flush=True)
"""


@pytest.mark.rest
def test_kill_9_in_the_middle_of_writing_leaves_a_parseable_file(tmp_path: Path) -> None:
    path = ide_file(tmp_path / "kiro-auth-token.json", refresh=token("r0"), kept="by others")
    chance = random.Random(7)
    for _ in range(KILLS):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        until = time.monotonic() + chance.uniform(0.005, 0.06)
        while time.monotonic() < until:
            assert read(path)["kept"] == "by others"  # readers never see half a file either
        writer.kill()
        writer.wait()
        writer.stdout.close()
        table = read(path)
        assert table["kept"] == "by others"
        assert str(table["refreshToken"]).startswith("aorFAKE-")
        assert table["refreshToken"] != token("r0")  # it was killed while it wrote


# kiro-cli's database: which row is read, and that a row is replaced only if it is unchanged

EXPIRY = "2026-01-02T03:04:05.123456789Z"


def entry(name: str, **more: object) -> dict[str, object]:
    return {
        "access_token": f"aoaFAKE-{name}",
        "refresh_token": token(name),
        "expires_at": EXPIRY,
        "region": "eu-west-1",
        **more,
    }


REGISTRATION = {
    "client_id": "fake-client",
    "client_secret": "fake-client-secret",
    "client_secret_expires_at": "2099-01-01T00:00:00.000000000Z",
    "region": "eu-west-1",
}


@pytest.mark.parametrize("prefix", ["kirocli", "codewhisperer"])
def test_an_oidc_token_is_read_with_the_registration_of_its_own_prefix(tmp_path: Path, prefix: str) -> None:
    other = {"kirocli": "codewhisperer", "codewhisperer": "kirocli"}[prefix]
    rows = {
        f"{prefix}:odic:token": entry("oidc", start_url="https://fake.awsapps.com/start"),
        f"{prefix}:odic:device-registration": REGISTRATION,
        f"{other}:odic:device-registration": {"client_id": "wrong", "client_secret": "wrong"},
    }
    found = Database(database(tmp_path / "data.sqlite3", rows)).read()
    assert (found.method, found.client_id, found.region) == (Method.OIDC, "fake-client", "eu-west-1")
    assert found.expires_at == pytest.approx(1767323045.123456, abs=1e-5)
    assert not found.builder_id


@pytest.mark.parametrize("scopes", [["openid", "profile"], "openid profile"], ids=["listed", "one string"])
def test_scopes_are_read_in_either_form(tmp_path: Path, scopes: object) -> None:
    rows: dict[str, object] = {"kirocli:external-idp:token": entry("external", scopes=scopes)}
    assert Database(database(tmp_path / "data.sqlite3", rows)).read().scopes == ("openid", "profile")


def test_token_kinds_are_tried_in_order(tmp_path: Path) -> None:
    rows: dict[str, object] = {"codewhisperer:odic:token": entry("old"), "kirocli:social:token": entry("social")}
    found = Database(database(tmp_path / "a.sqlite3", rows)).read()
    assert (found.method, found.access_token) == (Method.DESKTOP, "aoaFAKE-social")
    external = entry(
        "external", issuer_url="https://idp.example", token_endpoint="https://idp.example/t", client_id="c"
    )
    found = Database(database(tmp_path / "b.sqlite3", {**rows, "kirocli:external-idp:token": external})).read()
    assert (found.method, found.token_endpoint, found.client_id) == (Method.EXTERNAL, "https://idp.example/t", "c")


def test_the_profile_is_the_one_that_the_tool_stored(tmp_path: Path) -> None:
    state = {"api.codewhisperer.profile": {"arn": "arn:fake", "profile_name": "p"}}
    path = database(tmp_path / "data.sqlite3", {"kirocli:odic:token": entry("oidc")}, state)
    assert Database(path).read().profile_arn == "arn:fake"


def test_a_database_is_recognised_by_its_content(tmp_path: Path) -> None:
    path = database(tmp_path / "store", {"kirocli:social:token": entry("social")})
    assert isinstance(find_source(section(path), {})(), Database)


def test_an_empty_database_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match="kiro-cli login"):
        Database(database(tmp_path / "data.sqlite3", {})).read()


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(CredentialError):
        Database(tmp_path / "data.sqlite3").read()
    assert not (tmp_path / "data.sqlite3").exists()


def test_a_write_changes_three_keys_of_a_row_and_keeps_the_rest(tmp_path: Path) -> None:
    path = database(tmp_path / "data.sqlite3", {"kirocli:social:token": entry("social", future=[1, None])})
    source = Database(path)
    old = source.read()
    assert source.write(old, replace(old, access_token="aoaFAKE-new", refresh_token=token("new"), expires_at=0.5))
    written = row(path, "kirocli:social:token")
    assert (written["access_token"], written["refresh_token"]) == ("aoaFAKE-new", token("new"))
    assert written["expires_at"] == "1970-01-01T00:00:00.500Z"
    assert (written["future"], written["region"]) == ([1, None], "eu-west-1")


def test_a_row_that_another_program_renewed_is_not_overwritten(tmp_path: Path) -> None:
    path = database(tmp_path / "data.sqlite3", {"kirocli:social:token": entry("social")})
    source = Database(path)
    old = source.read()
    theirs = '{"access_token": "theirs", "refresh_token": "theirs"}'
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE auth_kv SET value = ?", (theirs,))
    connection.close()
    assert not source.write(old, replace(old, access_token="aoaFAKE-new"))
    assert row(path, "kirocli:social:token")["access_token"] == "theirs"
