"""`dragoman usage` reads from the running gateway what its key may see, else from the store."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import msgspec
import pytest

from asking import Listening, ask, send
from dragoman.cli.usage import OFFERED
from gateway import KEY, Running, running
from shell import Done, Served, Shell
from wire_json import JsonObject

OWNERS = "fake-key-of-the-gateways-owner"
ECHO = '[providers.echo]\nkind = "echo"\n'


class Household:
    """A gateway with keys, each of which was used: the owner's once, laptop's twice, build server's three times."""

    def __init__(self, shell: Shell, served: Served, elsewhere: Shell) -> None:
        self.shell, self.served = shell, served
        self.elsewhere = elsewhere  # another person's shell: it has nothing of the gateway but its address
        self.laptop, self.build = create_key(shell, "laptop"), create_key(shell, "build server")
        for key in (OWNERS, *[self.laptop] * 2, *[self.build] * 3):
            assert ask(served, "chat", "echo", "one two three", key=key).status == 200
        assert read_report(served, key=OWNERS)["whole"] is True  # now all that has ended is in the store


@pytest.fixture(scope="module")
def household(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Household]:
    shell, elsewhere = Shell(tmp_path_factory.mktemp("home")), Shell(tmp_path_factory.mktemp("elsewhere"))
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        elsewhere.write("dragoman.toml", f"[server]\nport = {served.port}\n")
        yield Household(shell, served, elsewhere)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    with running(ECHO, tmp_path, stored=["laptop"]) as gateway:
        yield gateway


def create_key(shell: Shell, name: str) -> str:
    made = shell.run("keys", "create", name, "--json").json
    assert isinstance(made, dict)
    return str(made["key"])


def read_report(server: Listening, query: str = "", path: str = "/api/usage", key: str = KEY) -> JsonObject:
    reply = send(server, "GET", f"{path}?{query}", key=key)
    assert reply.status == 200, reply
    return msgspec.json.decode(reply.body, type=JsonObject)


def count_requests(report: JsonObject) -> int:
    return sum(part["requests"] for part in report["sums"])


def count_by_group(done: Done) -> dict[str, int]:
    """Requests by group."""
    assert done.code == 0, done.err
    report = msgspec.json.decode(done.out, type=JsonObject)
    return {row["name" if report["by"] == "key" else report["by"]]: row["requests"] for row in report["rows"]}


@pytest.mark.rest
def test_the_owners_key_sees_the_usage_of_all_keys(household: Household) -> None:
    elsewhere, known = household.elsewhere, {"DRAGOMAN_API_KEY": OWNERS}
    by_key = count_by_group(elsewhere.run("usage", "--json", "--by", "key", **known))
    assert by_key == {"environment": 1, "laptop": 2, "build server": 3}
    assert count_by_group(elsewhere.run("usage", "--json", "--by", "model", **known)) == {"echo/echo": 6}
    rows = elsewhere.run("usage", "--rows", "--json", "--key", OWNERS).json
    assert isinstance(rows, list)
    assert [row["requested_model"] for row in rows] == ["echo"] * 6
    assert not (elsewhere.home / ".local").exists()


def test_any_other_key_sees_its_own_usage(household: Household) -> None:
    done = household.elsewhere.run("usage", "--json", "--by", "key", "--key", household.build)
    assert count_by_group(done) == {"build server": 3}
    assert "does not show it what other keys used" in done.err
    rows = household.elsewhere.run("usage", "--rows", "--json", "--key", household.laptop).json
    assert isinstance(rows, list)
    assert len(rows) == 2


def test_a_user_of_the_gateways_store_sees_everything_whatever_the_key(household: Household) -> None:
    for words in (("--key", household.laptop), ("--key", OWNERS), ()):
        done = household.shell.run("usage", "--json", "--by", "key", *words)
        assert count_by_group(done) == {"environment": 1, "laptop": 2, "build server": 3}
        assert done.err == ""


@pytest.mark.rest
def test_a_key_that_is_refused_leaves_the_store_and_without_one_it_is_an_error(household: Household) -> None:
    done = household.shell.run("usage", "--json", "--by", "model", "--key", "fake-wrong-key")
    assert count_by_group(done) == {"echo/echo": 6}
    assert "The store was read instead of the gateway: " in done.err
    assert "rejects the key" in done.err
    lost = household.elsewhere.run("usage", "--key", "fake-wrong-key")
    assert (lost.code, lost.out) == (1, "")
    assert "rejects the key" in lost.err


def test_rows_of_the_gateway_have_the_names_that_the_command_prints(household: Household) -> None:
    rows = read_report(household.served, "by=rows", key=OWNERS)["rows"]
    printed = household.shell.run("usage", "--rows", "--json", "--key", OWNERS).json
    assert isinstance(printed, list)
    assert printed == [{name: row[name] for name in printed[0]} for row in rows]
    assert {"time", "route", "cost_usd", "usage_source"} <= rows[0].keys()


def test_the_gateway_reports_at_once_what_has_just_ended(gateway: Running) -> None:
    for number in range(1, 6):
        ask(gateway, "chat", "echo")
        report = read_report(gateway, "by=provider")
        assert (report["whole"], count_requests(report)) == (True, number)


def test_the_gateway_adds_up_by_day(gateway: Running) -> None:
    before = date.today().isoformat()
    for _ in range(3):
        ask(gateway, "chat", "echo")
    reports = [read_report(gateway, "by=day", path) for path in ("/api/usage", "/api/v1/usage")]
    after = date.today().isoformat()
    for report in reports:
        assert (report["by"], count_requests(report)) == ("day", 3)
        assert {part["group"] for part in report["sums"]} <= {before, after}
        assert sum(part["output_tokens"] for part in report["sums"]) > 0


def test_every_way_to_add_up_that_the_command_knows_the_gateway_knows(gateway: Running) -> None:
    ask(gateway, "chat", "echo")
    for by in (*OFFERED, "all"):
        assert [part["requests"] for part in read_report(gateway, f"by={by}")["sums"]] == [1], by


def test_a_question_that_cannot_be_read_is_a_bad_request(gateway: Running) -> None:
    for query in ("by=nobody", "since_ms=soon", "until_ms=-1", "since_ms=9999999999999999999"):
        assert send(gateway, "GET", f"/api/usage?{query}").status == 400, query
    assert send(gateway, "GET", "/api/usage", key="fake-wrong-key").status == 401
