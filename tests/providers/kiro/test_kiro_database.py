"""kiro-cli's database: which row is read, and that a row is replaced only if it is unchanged."""

from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from dragoman.accounts.credential import CredentialError
from dragoman.providers.kiro.credential import Method
from dragoman.providers.kiro.credential_sources import Database, find_source
from providers.kiro.kiro_kit import database, row, section, token

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


def test_a_write_changes_three_keys_and_keeps_the_rest(tmp_path: Path) -> None:
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
