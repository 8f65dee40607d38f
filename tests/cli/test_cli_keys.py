"""`dragoman keys`: what it creates and shows, and how soon a running gateway follows."""

from itertools import cycle

import msgspec
import pytest

from asking import send
from shell import KEY, Served, Shell


class KeyRecord(msgspec.Struct):
    id: str
    name: str
    prefix: str
    last4: str
    created_at: int
    last_used_at: int | None
    revoked_at: int | None
    key: str | None = None
    default_thinking: str | int | None = None


def is_accepted(served: Served, key: str) -> bool:
    return send(served, "GET", "/v1/models", key=None, headers={"x-api-key": key}).status != 401


def create(shell: Shell, *words: str) -> KeyRecord:
    return msgspec.json.decode(shell.run("keys", "create", *words, "--json").out, type=KeyRecord)


def list_keys(shell: Shell) -> list[KeyRecord]:
    return msgspec.json.decode(shell.run("keys", "list", "--json").out, type=list[KeyRecord])


def test_a_running_gateway_follows_at_once_and_the_list_describes_the_key_of_the_environment(shell: Shell) -> None:
    garbage = {"DRAGOMAN_API_KEY": "garbage-that-nobody-made"}
    with shell.serve() as served:
        done = shell.run("keys", "create", "laptop")
        found = KEY.search(done.out)
        assert found is not None
        laptop = {"DRAGOMAN_API_KEY": found[0]}
        assert is_accepted(served, found[0])
        assert f"The gateway at {served.url} accepts it" in done.err
        assert f"not one of these; the gateway at {served.url} rejects it" in shell.run("keys", "list", **garbage).err
        mine = shell.run("keys", "list", **laptop).err
        assert f'$DRAGOMAN_API_KEY holds the key "laptop"; the gateway at {served.url} accepts it' in mine
        assert shell.run("keys", "revoke", "first").code == 0
        assert not is_accepted(served, served.key)
    assert "none is running here now" in shell.run("keys", "list", **garbage).err
    assert 'holds the key "laptop".' in shell.run("keys", "list", **laptop).err
    shell.run("keys", "revoke", "laptop")
    assert "which is revoked" in shell.run("keys", "list", **laptop).err


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
    assert [(key.name, key.revoked_at is None) for key in list_keys(shell)] == [("one", False), ("two", False)]


def test_an_unknown_key_cannot_be_revoked(shell: Shell) -> None:
    done = shell.run("keys", "revoke", "nobody")
    assert (done.code, done.out) == (1, "")
    assert "dragoman keys list" in done.err


def test_an_empty_list_of_keys_explains_how_to_create_one(shell: Shell) -> None:
    done = shell.run("keys", "list")
    assert (done.code, done.out) == (0, "")
    assert "dragoman keys create" in done.err


def test_a_broken_store_is_named(shell: Shell) -> None:
    path = shell.write("store.db", "this is no database")
    shell.write("dragoman.toml", f'[store]\nurl = "sqlite:///{path}"\n')
    done = shell.run("keys", "list")
    assert done.code == 1
    assert str(path) in done.err


def test_a_revoked_key_is_rejected_even_by_a_gateway_that_has_it_in_its_environment(shell: Shell) -> None:
    made = create(shell, "laptop")
    assert made.key is not None
    with shell.serve(DRAGOMAN_API_KEY=made.key) as served:
        assert is_accepted(served, made.key)
        done = shell.run("keys", "revoke", "laptop", DRAGOMAN_API_KEY=made.key)
        assert (done.code, done.out) == (0, f'Key "laptop" ({made.id}) is revoked.\n')
        assert "$DRAGOMAN_API_KEY in this shell holds this key" in done.err
        assert not is_accepted(served, made.key)
        assert served.end() == 0
    assert "the client key in the environment is revoked" in served.err
    with shell.serve(DRAGOMAN_API_KEY=made.key) as again:
        assert not is_accepted(again, made.key)
        assert "the one in $DRAGOMAN_API_KEY" not in again.out


def test_an_open_address_is_refused_if_the_only_key_is_revoked(shell: Shell) -> None:
    made = create(shell, "laptop")
    assert made.key is not None
    shell.run("keys", "revoke", "laptop")
    done = shell.run("serve", "--host", "0.0.0.0", "--port", "0", DRAGOMAN_API_KEY=made.key)
    assert done.code == 1
    assert "no client key to protect it" in done.err


@pytest.mark.rest
def test_a_short_key_is_refused_where_others_can_reach_the_gateway(shell: Shell) -> None:
    shell.write("dragoman.toml", '[server]\nhost = "0.0.0.0"\nport = 0\n')
    for variable, key, length in (
        ("DRAGOMAN_API_KEY", "x", "1 character,"),
        ("PROXY_API_KEY", "fifteen-letters", "15 characters,"),
    ):
        done = shell.run("serve", **{variable: key})
        assert (done.code, done.out) == (1, ""), key
        assert f"the client key in ${variable} has {length} and others can reach 0.0.0.0" in done.err
        assert "at least 16" in done.err
        assert "dragoman keys create" in done.err
        assert key not in done.err or key == "x"
        assert "at least 16" in shell.run("doctor", **{variable: key}).out


def test_a_long_enough_key_is_accepted_there_and_a_short_one_on_this_machine(shell: Shell) -> None:
    with shell.serve("--host", "0.0.0.0", DRAGOMAN_API_KEY="sixteen-letters!") as served:
        assert is_accepted(served, "sixteen-letters!")
    with shell.serve(DRAGOMAN_API_KEY="x") as served:
        assert is_accepted(served, "x")


def test_a_sample_value_is_no_key(shell: Shell) -> None:
    samples = ("changeme", "changeme_proxy_secret", "changeme-0123456789abcdef", "your_proxy_secret_key")
    for key, host in zip(samples, cycle(("127.0.0.1", "0.0.0.0")), strict=False):
        done = shell.run("serve", "--host", host, "--port", "0", DRAGOMAN_API_KEY=key)
        assert (done.code, "sample value" in done.err) == (1, True), key


@pytest.mark.rest
def test_a_running_gateway_makes_the_keys_that_its_owner_requests(shell: Shell) -> None:
    owner = "a-long-enough-owner-key-0123456789"
    with shell.serve(DRAGOMAN_API_KEY=owner) as served:
        shell.environ["DRAGOMAN_API_KEY"] = owner
        made = create(shell, "ci", "--expires", "30d")
        assert made.key is not None
        assert is_accepted(served, made.key)
        rotated = shell.run("keys", "rotate", "ci", "--grace", "0s")
        new = KEY.search(rotated.out)
        assert new is not None
        assert "The old one is accepted until" in rotated.err
        assert (is_accepted(served, made.key), is_accepted(served, new[0])) == (False, True)
        token = shell.run("keys", "create", "reader", "--scope", "usage:read", "--scope", "audit:read")
        assert "Admin token" in token.err
        assert "dga_" in token.out
        assert "admin" in shell.run("keys", "list").out
        not_listed = shell.run("keys", "list").err
        assert f"not one of these; the gateway at {served.url} accepts it" in not_listed
        audit = msgspec.json.decode(send(served, "GET", "/api/v1/audit", key=owner).body)["audit"]
    assert [row["action"] for row in audit] == ["keys.create", "keys.rotate", "keys.create"]


@pytest.mark.rest
def test_a_key_has_the_thinking_that_its_requests_ask_for_by_default(shell: Shell) -> None:
    assert create(shell, "thinker", "--default-thinking", "medium").default_thinking == "medium"
    assert create(shell, "budgeted", "--default-thinking", "8192").default_thinking == 8192
    assert [key.default_thinking for key in list_keys(shell)] == ["medium", 8192]
    heading, first, second = shell.run("keys", "list").out.splitlines()
    assert "THINKING" in heading
    assert ("medium" in first, "8192" in second) == (True, True)
    wrong = shell.run("keys", "create", "--default-thinking", "meduim")
    assert (wrong.code, 'did you mean "medium"?' in wrong.err) == (2, True)
    assert shell.run("keys", "create", "--default-thinking", "low", "--scope", "usage:read").code == 2


@pytest.mark.rest
def test_a_duration_that_cannot_be_read_is_wrong_usage(shell: Shell) -> None:
    create(shell, "laptop")
    assert shell.run("keys", "rotate", "laptop", "--grace", "soon").code == 2
    assert shell.run("keys", "create", "--scope", "everything").code == 2
    refused = shell.run("keys", "rotate", "laptop", "--grace", "8d")
    assert (refused.code, "7 days" in refused.err) == (1, True)
