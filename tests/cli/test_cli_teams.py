"""The commands of docs/teams.md, with and without a gateway that runs, and what they refuse."""

import re
import shlex
from pathlib import Path

import apsw
import pytest

from asking import ask
from shell import Shell
from tables import each_row

PAGE = Path(__file__).parent.parent.parent / "docs" / "teams.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
OWNERS = "fake-key-of-the-gateways-owner"
FILE = """
[server]
port = {port}
[providers.echo]
kind = "echo"
[limits]
tokens_per_day = 1000000
[[prices]]
model = "echo/*"
input = 1
output = 1
[[teams]]
name = "ops"
"""


def list_commands() -> list[list[str]]:
    lines = [line for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]
    assert all(line.startswith("dragoman ") for line in lines)
    return [shlex.split(line)[1:] for line in lines]


def run_page(shell: Shell, **environ: str) -> None:
    for words in list_commands():
        done = shell.run(*words, **environ)
        assert done.code == 0, (words, done.err)


def check_end(shell: Shell, actor: str, **environ: str) -> None:
    """Check what is set after the commands of the page."""
    listed = shell.run("limits", "list", "--json", **environ).json
    assert {(row["scope"], row["name"], row["limit"], row["value"], row["origin"]) for row in listed} == {
        ("all", "all", "tokens_per_day", 1_000_000, "file"),
        ("all", "all", "usd_per_month", 500, "store"),
        ("all", "all", "concurrent", 200, "store"),
        ("team", "core", "usd_per_day", 40, "store"),
        ("each_user", "core", "usd_per_day", 5, "store"),
    }
    teams = {team["name"]: team for team in shell.run("teams", "list", "--json", **environ).json}
    assert (teams["core"]["origin"], teams["ops"]["origin"]) == ("store", "file")
    assert teams["core"]["models"] == ["claude-haiku-*", "echo"]
    actions = [row["action"] for row in shell.run("audit", "--json", "--actor", actor, **environ).json]
    for action in ("teams.create", "keys.create", "keys.change", "keys.revoke", "limits.set", "limits.forgive"):
        assert action in actions
    assert shell.run("audit", "verify", **environ).code == 0


@pytest.mark.rest
def test_the_commands_of_the_page_work_on_the_running_gateway(shell: Shell) -> None:
    shell.write("dragoman.toml", FILE.format(port=0))
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        shell.write("dragoman.toml", FILE.format(port=served.port))
        run_page(shell, DRAGOMAN_API_KEY=OWNERS)
        check_end(shell, "environment", DRAGOMAN_API_KEY=OWNERS)
        made = shell.run("keys", "create", "mine", "--json", DRAGOMAN_API_KEY=OWNERS).json
        assert ask(served, "chat", "echo", key=made["key"]).status == 200


def test_limits_are_shown_with_all_their_digits(shell: Shell) -> None:
    shell.write("dragoman.toml", FILE.format(port=1))
    limits = ("tokens_per_day=1000000", "usd_per_day=1234567.000000001")
    done = shell.run("teams", "create", "wide", *(word for limit in limits for word in ("--limit", limit)))
    assert "usd_per_day=1234567.000000001, tokens_per_day=1000000 " in done.out
    done = shell.run("limits", "set", "user:dev", *limits)
    assert done.out == "user:dev: usd_per_day=1234567.000000001, tokens_per_day=1000000\n"


def test_a_limit_is_raised_until_it_resets_at_most(shell: Shell) -> None:
    shell.write("dragoman.toml", FILE.format(port=1))
    limits = ("limits", "set", "user:dev")
    shell.run(*limits, "usd_per_day=5", "usd_per_total=50")
    today = shell.run("limits", "list", "user:dev", "--json").json
    raised = shell.run(*limits, "usd_per_day=6", "--until", "7d", "--json")
    assert raised.json["until"] == {row["limit"]: row["resets_at"] for row in today}["usd_per_day"]
    assert "resets" in raised.err
    longer = shell.run(*limits, "usd_per_total=60", "--until", "7d", "--json")
    assert longer.json["until"] > raised.json["until"]
    assert "resets" not in longer.err


@pytest.mark.rest
def test_a_value_that_is_no_number_removes_no_limit_of_a_running_gateway(shell: Shell) -> None:
    shell.write("dragoman.toml", FILE.format(port=0))
    with shell.serve(DRAGOMAN_API_KEY=OWNERS) as served:
        shell.write("dragoman.toml", FILE.format(port=served.port))
        set_all = ("limits", "set", "all")
        assert shell.run(*set_all, "usd_per_day=5", DRAGOMAN_API_KEY=OWNERS).code == 0
        for value in ("nan", "inf", "-inf"):
            assert shell.run(*set_all, f"usd_per_day={value}", DRAGOMAN_API_KEY=OWNERS).code == 2
        listed = shell.run("limits", "list", "all", "--json", DRAGOMAN_API_KEY=OWNERS).json
        assert {row["limit"]: row["value"] for row in listed}["usd_per_day"] == 5


@pytest.mark.rest
def test_the_commands_of_the_page_work_on_the_store(shell: Shell) -> None:
    shell.write("dragoman.toml", FILE.format(port=1))
    run_page(shell)
    check_end(shell, "local")
    # Whoever changes a row is found out.
    with apsw.Connection(str(shell.home / ".local/share/dragoman/dragoman.db")) as store:
        store.execute("UPDATE audit SET actor = 'key_7' WHERE number = 3")
    store.close()
    broken = shell.run("audit", "verify")
    assert (broken.code, "row 3 was changed" in broken.out) == (1, True)
    assert shell.run("audit", "verify", "--json").json["broken"] == 3


@pytest.mark.rest
@each_row(
    ("words", "code", "message"),
    [
        ("limits set all tokens_per_day=5", 1, "is set in dragoman.toml: change it there"),
        ("limits remove all", 1, "are set in dragoman.toml: remove them there"),
        ("limits remove user:eve", 1, "There are no limits"),
        ("limits set usr:dev usd_per_day=5", 1, 'did you mean "user"?'),
        ("limits set team:cor usd_per_day=5", 1, 'There is no team "cor"'),
        ("limits set user:dev usd_per_dy=5", 2, 'did you mean "usd_per_day"?'),
        ("limits set user:dev usd_per_day=-5", 1, "usd_per_day: Expected"),
        ("limits set user:dev usd_per_day=nan", 2, "usd_per_day: expected a number or \"none\", got 'nan'"),
        ("limits set user:dev usd_per_day=-inf", 2, "usd_per_day: expected a number"),
        ("limits set user:dev usd_per_day=1 usd_per_day=2", 2, "usd_per_day is given twice"),
        ("limits set user: usd_per_day=5", 2, "expected user:NAME, got 'user:'"),
        ("limits set user usd_per_day=5", 2, "expected user:NAME, got 'user'"),
        ("limits remove team:", 2, "expected team:NAME"),
        ("limits set nowhere:dev usd_per_day=5", 1, "known scopes: all, team, each_user, user, key, provider"),
        ("teams create new --limit usd_per_day=nan", 2, "usd_per_day: expected a number"),
        ("teams create new --each-user concurrent=1 --each-user concurrent=2", 2, "concurrent is given twice"),
        ("keys create k --limit usd_per_day=nan", 2, "usd_per_day: expected a number"),
        ("limits set user:dev usd_per_day=0.0000000001", 1, "usd_per_day: "),
        ("limits set user:dev concurrent=1.5", 1, "concurrent: Expected"),
        ("limits set user:dev usd_per_day=five", 2, "expected a number"),
        ("limits set user:dev usd_per_day", 2, "expected NAME=VALUE"),
        ("limits set user:dev usd_per_day=5 --until soon", 2, "use a duration"),
        ("limits set user:dev usd_per_day=5 --until 8h", 1, "nothing to raise"),
        ("limits set user:dev concurrent=5 --until 8h", 1, "name a limit of dollars"),
        ("teams set ops --members dev", 1, "is set in dragoman.toml"),
        ("teams create ops", 1, 'There is already a team "ops"'),
        ("teams create a/b", 1, "without /"),
        ("teams remove nope", 1, 'There is no team "nope"'),
        ("teams set ops", 2, "Nothing to change"),
        ("keys create k --team nope", 1, 'There is no team "nope"'),
        ("keys create k --scope usage:read --models x", 1, "makes no model requests"),
        ("keys create k --max-output-tokens -1", 2, "not in the range"),
        ("keys create k --capture some", 2, "'off', 'errors', 'all'"),
        ("keys set nope --strict", 1, "There is no valid key"),
        ("keys forgive nope --usd 1", 1, 'There is no valid key "nope"'),
        ("keys forgive nope", 2, "How much?"),
        ("limits forgive user:* --usd 1", 1, "name one"),
    ],
)
def test_what_is_wrong_is_refused_with_advice(shell: Shell, words: str, code: int, message: str) -> None:
    shell.write("dragoman.toml", FILE.format(port=1))
    done = shell.run(*shlex.split(words))
    assert (done.code, message in done.err) == (code, True), done.err
