"""`dragoman accounts`: credentials in the store, from the command line to gateways that renew them."""

import time
from base64 import b64encode
from pathlib import Path

import msgspec
import pytest

from asking import ask
from dragoman.store.sealing import VARIABLE
from dragoman.upstreams.credentials.credential import format_timestamp
from fakes.kiro import FakeKiro
from gateway import KEY
from shell import Done, Served, Shell
from upstreams.kiro.kiro_kit import ide_file, token

OLD, NEW = (b64encode(bytes([number]) * 32).decode() for number in (1, 2))
SECRETS = (OLD, NEW, "aorFAKE", "aoaFAKE")


def list_shown(*shown: Done | Served) -> list[str]:
    """Return the secrets that were printed."""
    return [secret for secret in SECRETS for one in shown if secret in one.out + one.err]


@pytest.mark.rest
@pytest.mark.parametrize("words", ["push a/b kiro.json", "push .hidden kiro.json", "pull ä kiro.json", "push team"])
def test_a_bad_name_or_none_is_wrong_usage(shell: Shell, words: str) -> None:
    assert shell.run("accounts", *words.split()).code == 2


@pytest.mark.parametrize("command", ["serve --port 0", pytest.param("accounts list", marks=pytest.mark.rest)])
def test_a_key_of_another_form_is_wrong_usage_and_not_shown(shell: Shell, command: str) -> None:
    done = shell.run(*command.split(), **{VARIABLE: OLD[:-5]})
    assert (done.code, f"${VARIABLE} must be the base64 of 32 bytes" in done.err) == (2, True)
    assert OLD[:-5] not in done.err + done.out


@pytest.mark.rest
def test_what_is_in_the_store_is_listed_without_content(shell: Shell, tmp_path: Path) -> None:
    assert "There are no credentials" in shell.run("accounts", "list").err
    pushed = shell.run("accounts", "push", "team", str(ide_file(tmp_path / "kiro.json")))
    assert (pushed.code, "secret.key" in pushed.err, 'credentials = "store:team"' in pushed.err) == (0, True, True)
    listed, as_json = shell.run("accounts", "list"), shell.run("accounts", "list", "--json")
    assert [line.split()[:3] for line in listed.out.splitlines()[1:]] == [["team", "kiro", "1"]]
    assert as_json.json[0].items() >= {"name": "team", "kind": "kiro", "version": 1, "problem": ""}.items()
    resealed = shell.run("accounts", "reseal")
    assert (resealed.code, resealed.out.split()) == (0, ["NAME", "RESULT", "team", "unchanged"])
    assert not list_shown(pushed, listed, as_json, resealed)


@pytest.mark.rest
def test_gateways_share_what_one_of_them_renews(shell: Shell, store_url: str) -> None:
    with FakeKiro() as fake:
        tokens = fake.issue()
        fake.access.clear()
        table = {**tokens, "expiresAt": format_timestamp(time.time() - 60), "authMethod": "social"}
        shell.write("login.json", msgspec.json.encode(table).decode())
        config = shell.write("g.toml", f'[store]\nurl = "{store_url}"\n{fake.section("store:team")}')
        chosen = ("--config", str(config))
        shell.environ[VARIABLE] = OLD
        assert shell.run("accounts", "push", "team", "login.json", *chosen).code == 0
        with (
            shell.serve(*chosen, "--workers", "2", DRAGOMAN_API_KEY=KEY) as one,
            shell.serve(*chosen, DRAGOMAN_API_KEY=KEY) as two,
        ):
            assert [ask(one, "chat", "kiro/auto").status, ask(two, "chat", "kiro/auto").status] == [200, 200]
            doctor = shell.run("doctor", *chosen)
            assert [one.end(), two.end()] == [0, 0]
        assert "BROKEN" not in doctor.out
        assert "ok      provider kiro" in doctor.out
        assert fake.counts["/refreshToken"] == 1
        assert shell.run("accounts", "pull", "team", "pulled.json", *chosen).code == 0
        assert msgspec.json.decode(shell.read("pulled.json"))["refreshToken"] in fake.refresh
        assert not list_shown(one, two, doctor)


def test_a_wrong_key_is_named_at_the_start_and_the_right_one_opens_what_is_there(shell: Shell, tmp_path: Path) -> None:
    file = ide_file(tmp_path / "kiro.json")
    with FakeKiro() as fake:
        config = shell.write("g.toml", fake.section("store:team") + fake.section("store:gone", "second"))
        chosen = ("--config", str(config))
        pushed = shell.run("accounts", "push", "team", str(file), *chosen, **{VARIABLE: OLD})
        assert (pushed.code, pushed.out) == (0, 'Credential "team" (kiro) is in the store, version 1.\n')
        with shell.serve(*chosen, DRAGOMAN_API_KEY=KEY, **{VARIABLE: NEW}) as served:
            refused = ask(served, "chat", "kiro/auto")
            assert served.end() == 0
        assert refused.status == 502
        assert b"store:team is sealed with a key that $DRAGOMAN_SECRET_KEY does not have" in refused.body
        assert "provider kiro: store:team is sealed with a key that" in served.err
        assert "provider second: store:gone is not in the store" in served.err
        assert fake.counts["/refreshToken"] == 0
    failed = shell.run("accounts", "reseal", *chosen, **{VARIABLE: NEW})
    assert (failed.code, "is sealed with a key that $DRAGOMAN_SECRET_KEY does not have" in failed.out) == (1, True)
    pulled = shell.run("accounts", "pull", "team", "out.json", *chosen, **{VARIABLE: OLD})
    assert pulled.code == 0
    assert msgspec.json.decode(shell.read("out.json"))["refreshToken"] == token("old")
    assert not list_shown(pushed, served, failed, pulled)
