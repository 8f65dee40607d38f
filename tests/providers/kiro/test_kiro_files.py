"""Credentials in JSON files: what is read, what is rejected, and what a write keeps."""

import os
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.accounts.credential import CredentialError
from dragoman.providers.kiro.credential import Credential, Method
from dragoman.providers.kiro.credential_sources import ApiKey, JsonFile, RefreshToken, find_source
from narrowing import expect
from providers.kiro.kiro_kit import ide_file, read, section, token


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
    source = find_source(section("env:KIRO_API_KEY"), {"KIRO_API_KEY": "ksk_fake-key"})()
    assert isinstance(source, ApiKey)
    assert source.read().method is Method.API_KEY
    assert source.location == "env:KIRO_API_KEY"


def test_any_other_string_is_a_refresh_token() -> None:
    source = find_source(section("env:REFRESH_TOKEN"), {"REFRESH_TOKEN": "fake/refresh+token"})()
    assert expect(RefreshToken, source).read().refresh_token == "fake/refresh+token"
    assert "FAKE" not in expect(RefreshToken, find_source(section(token("literal")), {})()).location


def test_the_successor_of_a_token_from_the_environment_is_kept_for_the_next_start(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "REFRESH_TOKEN": token("seed")}
    source = find_source(section("env:REFRESH_TOKEN"), environ)()
    old = source.read()
    assert source.write(old, renew_token(old))
    again = find_source(section("env:REFRESH_TOKEN"), environ)().read()
    assert (again.access_token, again.refresh_token) == ("aoaFAKE-new", token("new"))
    another = find_source(section("env:REFRESH_TOKEN"), {**environ, "REFRESH_TOKEN": token("other")})().read()
    assert another.refresh_token == token("other")


def test_without_a_setting_the_first_existing_file_is_used(tmp_path: Path) -> None:
    find = find_source(section(None), {"HOME": str(tmp_path)})
    with pytest.raises(CredentialError, match="dragoman login kiro"):
        find().read()
    cache = tmp_path / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    ide_file(cache / "kiro-auth-token.json", refresh=token("ide"))
    assert find().read().refresh_token == token("ide")
    own = tmp_path / ".local" / "share" / "dragoman"
    own.mkdir(parents=True)
    ide_file(own / "kiro.json", refresh=token("own"))
    assert find().read().refresh_token == token("own")
