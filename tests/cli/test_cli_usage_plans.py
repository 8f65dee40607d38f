"""`dragoman usage --plans`: how much of an account's plan is gone, as the provider tells it."""

from pathlib import Path

import msgspec
from shell import Shell

from fakes.kiro import ARN, FakeKiro


def signed_in(fake: FakeKiro, directory: Path, access: str | None = None) -> str:
    tokens = fake.issue()
    file = directory / "kiro-auth-token.json"
    table = {
        "accessToken": access or tokens["accessToken"],
        "refreshToken": tokens["refreshToken"],
        "expiresAt": "2099-01-01T00:00:00Z",
        "authMethod": "social",
        "profileArn": ARN,
    }
    file.write_bytes(msgspec.json.encode(table))
    return fake.stanza(str(file))


def test_a_plan_is_shown_with_what_is_used_of_it(shell: Shell, tmp_path: Path) -> None:
    with FakeKiro() as fake:
        shell.write("dragoman.toml", signed_in(fake, tmp_path))
        done = shell.run("usage", "--plans")
    assert done.code == 0, done.err
    assert "KIRO FAKE" in done.out
    assert "12.5" in done.out
    assert "50 [#####...............]" in done.out
    assert "2030-01-01" in done.out


def test_the_same_as_json(shell: Shell, tmp_path: Path) -> None:
    with FakeKiro() as fake:
        shell.write("dragoman.toml", signed_in(fake, tmp_path))
        (quota,) = msgspec.json.decode(shell.run("usage", "--plans", "--json").out)
    assert quota == {
        "provider": "kiro",
        "plan": "KIRO FAKE",
        "what": "credit",
        "used": 12.5,
        "limit": 50.0,
        "resets_on": "2030-01-01",
    }


def test_an_account_that_cannot_be_asked_is_told_and_fails(shell: Shell, tmp_path: Path) -> None:
    with FakeKiro() as fake:
        stanza = signed_in(fake, tmp_path, access="aoaFAKE-revoked")
        fake.refresh.clear()
        shell.write("dragoman.toml", stanza)
        done = shell.run("usage", "--plans")
    assert done.code == 1
    assert "dragoman doctor" in done.err


def test_providers_without_a_plan_are_no_failure(shell: Shell) -> None:
    done = shell.run("usage", "--plans")
    assert (done.code, done.out) == (0, "")
    assert "No configured provider" in done.err
