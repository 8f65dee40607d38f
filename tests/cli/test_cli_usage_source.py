"""`dragoman usage` reads from the running gateway what its key may see, else from the store."""

import urllib.error
import urllib.request
from datetime import date
from pathlib import Path

import msgspec
import pytest

from dragoman.cli.usage import GROUPS
from shell import Done, Served, Shell

OWNERS = "fake-key-of-the-gateways-owner"
ECHO = b'{"model":"echo","messages":[{"role":"user","content":"one two three"}]}'


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Another person's shell: it has nothing of the gateway but its address."""
    return Shell(tmp_path_factory.mktemp("elsewhere"))


def ask(served: Served, key: str, path: str = "/v1/chat/completions", body: bytes | None = ECHO) -> bytes:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(served.url + path, body, headers)
    with urllib.request.urlopen(request, timeout=20) as reply:
        content = reply.read()
    assert isinstance(content, bytes)
    return content


def create_key(shell: Shell, name: str) -> str:
    made = shell.run("keys", "create", name, "--json").json
    assert isinstance(made, dict)
    return str(made["key"])


def count_by_group(done: Done) -> dict[str, int]:
    """Requests by group."""
    assert done.code == 0, done.err
    report = msgspec.json.decode(done.out, type=dict[str, object])
    by, rows = str(report["by"]), report["rows"]
    assert isinstance(rows, list)
    return {row["name" if by == "key" else by]: row["requests"] for row in rows}


def at(served: Served, shell: Shell) -> Path:
    return shell.write("dragoman.toml", f"[server]\nport = {served.port}\n")


def test_the_owners_key_sees_the_usage_of_all_keys(shell: Shell, elsewhere: Shell) -> None:
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        laptop = create_key(shell, "laptop")
        at(served, elsewhere)
        for key in (OWNERS, laptop, laptop):
            ask(served, key)
        known = {"DRAGOMAN_API_KEY": OWNERS}
        assert count_by_group(elsewhere.run("usage", "--json", "--by", "key", **known)) == {
            "environment": 1,
            "laptop": 2,
        }
        assert count_by_group(elsewhere.run("usage", "--json", "--by", "model", **known)) == {"echo/echo": 3}
        rows = elsewhere.run("usage", "--rows", "--json", "--key", OWNERS).json
        assert isinstance(rows, list)
        assert [row["requested_model"] for row in rows] == ["echo"] * 3
    assert not (elsewhere.home / ".local").exists()


def test_any_other_key_sees_its_own_usage(shell: Shell, elsewhere: Shell) -> None:
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        laptop, build = create_key(shell, "laptop"), create_key(shell, "build server")
        at(served, elsewhere)
        for key in (OWNERS, laptop, build, build):
            ask(served, key)
        done = elsewhere.run("usage", "--json", "--by", "key", "--key", build)
        assert count_by_group(done) == {"build server": 2}
        assert "does not show it what other keys used" in done.err
        rows = elsewhere.run("usage", "--rows", "--json", "--key", laptop).json
        assert isinstance(rows, list)
        assert len(rows) == 1


def test_a_user_of_the_gateways_store_sees_everything_whatever_the_key(shell: Shell) -> None:
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        laptop = create_key(shell, "laptop")
        for key in (OWNERS, laptop):
            ask(served, key)
        ask(served, OWNERS, "/api/usage", None)  # now all that has ended is in the store
        for words in (("--key", laptop), ("--key", OWNERS), ()):
            done = shell.run("usage", "--json", "--by", "key", *words)
            assert count_by_group(done) == {"environment": 1, "laptop": 1}
            assert done.err == ""


def test_a_key_that_is_refused_leaves_the_store_and_without_one_it_is_an_error(shell: Shell, elsewhere: Shell) -> None:
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        ask(served, OWNERS)
        ask(served, OWNERS, "/api/usage", None)
        done = shell.run("usage", "--json", "--by", "model", "--key", "fake-wrong-key")
        assert count_by_group(done) == {"echo/echo": 1}
        assert "The store was read instead of the gateway: " in done.err
        assert "rejects the key" in done.err
        at(served, elsewhere)
        lost = elsewhere.run("usage", "--key", "fake-wrong-key")
        assert (lost.code, lost.out) == (1, "")
        assert "rejects the key" in lost.err


def test_the_gateway_reports_at_once_what_has_just_ended(shell: Shell) -> None:
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        for number in range(1, 6):
            ask(served, OWNERS)
            report = msgspec.json.decode(ask(served, OWNERS, "/api/usage?by=provider", None))
            assert report["whole"] is True
            assert sum(part["requests"] for part in report["sums"]) == number


@pytest.mark.parametrize("path", ["/api/usage", "/api/v1/usage"])
def test_the_gateway_adds_up_by_day(shell: Shell, path: str) -> None:
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        before = date.today().isoformat()
        for _ in range(3):
            ask(served, OWNERS)
        report = msgspec.json.decode(ask(served, OWNERS, f"{path}?by=day", None))
        after = date.today().isoformat()
    assert report["by"] == "day"
    assert {part["group"] for part in report["sums"]} <= {before, after}
    assert sum(part["requests"] for part in report["sums"]) == 3
    assert sum(part["output_tokens"] for part in report["sums"]) > 0


def test_every_way_to_add_up_that_the_command_knows_the_gateway_knows(shell: Shell) -> None:
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        ask(served, OWNERS)
        for by in (*GROUPS, "all"):
            report = msgspec.json.decode(ask(served, OWNERS, f"/api/usage?by={by}", None))
            assert [part["requests"] for part in report["sums"]] == [1], by


def test_rows_of_the_gateway_have_the_names_that_the_command_prints(shell: Shell) -> None:
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        ask(served, OWNERS)
        [row] = msgspec.json.decode(ask(served, OWNERS, "/api/usage?by=rows", None))["rows"]
        printed = shell.run("usage", "--rows", "--json", "--key", OWNERS).json
    assert isinstance(printed, list)
    assert printed == [{name: row[name] for name in printed[0]}]
    assert {"time", "route", "cost_usd", "usage_source"} <= row.keys()


@pytest.mark.parametrize("query", ["by=nobody", "since_ms=soon", "until_ms=-1", "since_ms=9999999999999999999"])
def test_a_question_that_cannot_be_read_is_a_bad_request(shell: Shell, query: str) -> None:
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(served, OWNERS, f"/api/usage?{query}", None)
        assert refused.value.code == 400
        with pytest.raises(urllib.error.HTTPError) as shut:
            ask(served, "fake-wrong-key", "/api/usage", None)
        assert shut.value.code == 401
