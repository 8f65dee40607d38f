"""`dragoman keys`: what it makes, what it shows, and how soon a running gateway follows."""

import urllib.error
import urllib.request

import msgspec

from cli.shell import KEY, Served, Shell


class Told(msgspec.Struct):
    id: str
    name: str
    prefix: str
    last4: str
    created_at: int
    last_used_at: int | None
    revoked_at: int | None
    key: str | None = None


def opens(served: Served, key: str) -> bool:
    request = urllib.request.Request(f"{served.url}/v1/models", headers={"x-api-key": key})
    try:
        urllib.request.urlopen(request, timeout=20).close()
    except urllib.error.HTTPError as error:
        return error.code != 401
    return True


def create(shell: Shell, *words: str) -> Told:
    return msgspec.json.decode(shell.run("keys", "create", *words, "--json").out, type=Told)


def listed(shell: Shell) -> list[Told]:
    return msgspec.json.decode(shell.run("keys", "list", "--json").out, type=list[Told])


def test_a_key_made_while_the_gateway_runs_opens_at_once(shell: Shell) -> None:
    with shell.serve() as served:
        done = shell.run("keys", "create", "laptop")
        key = KEY.search(done.out)
        assert key is not None
        assert opens(served, key[0])
        assert f"The gateway at {served.url} takes it" in done.err


def test_a_revoked_key_closes_at_once(shell: Shell) -> None:
    with shell.serve() as served:
        assert opens(served, served.key)
        assert shell.run("keys", "revoke", "first").code == 0
        assert not opens(served, served.key)


def test_the_key_is_shown_only_when_it_is_made(shell: Shell) -> None:
    made = create(shell, "laptop")
    assert made.key is not None
    assert KEY.fullmatch(made.key)
    shown = shell.run("keys", "list").out + shell.run("keys", "list", "--json").out
    assert made.key not in shown
    assert f"{made.prefix}…{made.last4}" in shown


def test_keys_without_a_name_get_one_each(shell: Shell) -> None:
    assert [create(shell).name, create(shell).name] == ["key-1", "key-2"]


def test_a_taken_name_is_refused_until_it_is_free(shell: Shell) -> None:
    create(shell, "laptop")
    refused = shell.run("keys", "create", "laptop")
    assert refused.code == 1
    assert 'named "laptop"' in refused.err
    assert shell.run("keys", "revoke", "laptop").code == 0
    assert create(shell, "laptop").name == "laptop"


def test_a_key_is_revoked_by_id_or_name_and_stays_on_the_list(shell: Shell) -> None:
    by_id, by_name = create(shell, "one"), create(shell, "two")
    assert shell.run("keys", "revoke", by_id.id).code == 0
    assert shell.run("keys", "revoke", by_name.name).code == 0
    assert [(key.name, key.revoked_at is None) for key in listed(shell)] == [("one", False), ("two", False)]


def test_an_unknown_key_cannot_be_revoked(shell: Shell) -> None:
    done = shell.run("keys", "revoke", "nobody")
    assert (done.code, done.out) == (1, "")
    assert "dragoman keys list" in done.err


def test_no_keys_yet_is_said_in_words(shell: Shell) -> None:
    done = shell.run("keys", "list")
    assert (done.code, done.out) == (0, "")
    assert "dragoman keys create" in done.err


def test_a_broken_store_is_named(shell: Shell) -> None:
    path = shell.write("store.db", "this is no database")
    shell.write("dragoman.toml", f'[store]\nurl = "sqlite:///{path}"\n')
    done = shell.run("keys", "list")
    assert done.code == 1
    assert str(path) in done.err
