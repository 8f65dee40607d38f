"""What users, teams, sessions and tags used: in the admin API, on the command line, and for a token of one team."""

import time
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace

import asking
from dragoman.store.usage_rows import UsageRow
from dragoman.tenancy.keys import Scope
from gateway import KEY, Running, running
from server.api.rig import ECHO, make_team_token
from shell import Shell
from store.rows import row_at
from tables import each_row

NOW_MS = int(time.time() * 1000)
SETTINGS = f'{ECHO}[[teams]]\nname = "core"\n[[teams]]\nname = "ops"\n'


def make_rows() -> list[UsageRow]:
    """Four requests: two of dev in core, one of eve in ops, one that belongs to no team."""
    first = replace(row_at(NOW_MS - 5000, 1), user="dev", team="core", session="s1", tags="job=7,branch=main")
    return [
        first,
        replace(first, id=row_at(NOW_MS - 4000, 2).id, request_id="req_2", agent="a1", tags="job=8"),
        replace(row_at(NOW_MS - 3000, 3), user="eve", team="ops", session="s2", key="key_2", tags="job=7"),
        row_at(NOW_MS - 2000, 4),
    ]


def count_requests(gateway: Running, query: str, key: str = KEY) -> dict[str, int]:
    found = asking.send(gateway, "GET", f"/api/v1/usage?{query}", key=key).json
    return {part["group"]: part["requests"] for part in found["sums"]}


ROWS = [
    ("user", {"dev": 2, "eve": 1, "": 1}),
    ("team", {"core": 2, "ops": 1, "": 1}),
    ("session", {"s1": 2, "s2": 1, "": 1}),
    ("agent", {"a1": 1, "": 3}),
    ("tag:job", {"7": 2, "8": 1, "": 1}),
    ("tag:branch", {"main": 1, "": 3}),
]


def test_usage_is_grouped_by_who_spent_it(tmp_path: Path) -> None:
    with running(SETTINGS, tmp_path, stored=["someone"]) as gateway:
        gateway.store_usage(make_rows())

        @each_row(("by", "expected"), ROWS)
        def check(by: str, expected: dict[str, int]) -> None:
            assert count_requests(gateway, f"by={by}") == expected
            assert count_requests(gateway, f"by={by}&step=all") == expected

        check()
        for by in ("tag:", "tag:a,b", "tag:a=b", f"tag:{'x' * 65}", "users", "tag"):
            refused = asking.send(gateway, "GET", f"/api/v1/usage?by={by}")
            assert (refused.status, refused.json["error"]["field"]) == (400, "by"), by


def test_usage_is_that_of_one_key_user_team_or_provider(tmp_path: Path) -> None:
    with running(SETTINGS, tmp_path, stored=["someone"]) as gateway:
        own = asking.send(gateway, "GET", "/api/v1/keys/someone").json["id"]
        mine = replace(row_at(NOW_MS - 1000, 5), key=own, team="ops", session="own", provider="apart")
        gateway.store_usage([*make_rows(), mine])
        only_team = make_team_token(gateway, "core", Scope.USAGE_READ)
        client = gateway.keys["someone"]

        @each_row(
            ("query", "key", "expected"),
            [
                ("user:dev", KEY, {"s1": 2}),
                ("team:ops", KEY, {"s2": 1, "own": 1}),
                ("key:someone", KEY, {"own": 1}),
                ("team:core user:eve", KEY, {}),
                ("team:ops key:someone", KEY, {"own": 1}),
                ("user:nobody", KEY, {}),
                (f"provider:{mine.provider}", KEY, {"own": 1}),
                (f"provider:{mine.provider} team:core", KEY, {}),
                (f"provider:{mine.provider}", only_team, {}),
                ("", KEY, {"s1": 2, "s2": 1, "": 1, "own": 1}),
                ("before:1d", KEY, {}),
                ("key:environment", KEY, {}),
                ("team:core", only_team, {"s1": 2}),
                ("team:ops", only_team, {}),
                ("user:eve", only_team, {}),
                ("key:someone", only_team, {}),
                ("user:dev", client, {}),
                ("key:someone", client, {"own": 1}),
            ],
        )
        def check(query: str, key: str, expected: dict[str, int]) -> None:
            assert count_requests(gateway, f"by=session&step=all&q={quote(query)}", key) == expected
            assert sum(count_requests(gateway, f"by=all&q={quote(query)}", key).values()) == sum(expected.values())
            rows = asking.send(gateway, "GET", f"/api/v1/usage?by=rows&q={quote(query)}", key=key).json["rows"]
            assert len(rows) == sum(expected.values())

        check()
        for query in ("model:x", "user:!dev", "user:d*", "key:*", "team:core team:*", "cost>1"):
            refused = asking.send(gateway, "GET", f"/api/v1/usage?q={quote(query)}")
            assert (refused.status, refused.json["error"]["field"]) == (400, "q"), query


def test_a_token_of_one_team_sees_the_usage_of_that_team_only(tmp_path: Path) -> None:
    with running(SETTINGS, tmp_path, stored=["someone"]) as gateway:
        gateway.store_usage(make_rows())
        token = make_team_token(gateway, "core", Scope.USAGE_READ)
        for by, expected in (
            ("all", {"": 2}),
            ("team", {"core": 2}),
            ("user", {"dev": 2}),
            ("key", {"key_1": 2}),
            ("model", {"up/claude-fake": 2}),
            ("session", {"s1": 2}),
            ("tag:job", {"7": 1, "8": 1}),
        ):
            assert count_requests(gateway, f"by={by}", token) == expected, by
        report = asking.send(gateway, "GET", "/api/v1/usage?by=rows", key=token).json
        assert (report["whole"], {row["team"] for row in report["rows"]}) == (False, {"core"})
        assert len(report["rows"]) == 2
        assert asking.send(gateway, "GET", "/api/v1/usage?by=key", key=token).json["names"] == {}
        assert asking.send(gateway, "GET", "/api/v1/usage/speed", key=token).status == 403
        assert asking.send(gateway, "GET", "/api/v1/requests", key=token).status == 403


@pytest.mark.rest
def test_the_command_shows_it_too(tmp_path: Path) -> None:
    with running(SETTINGS, tmp_path, stored=["someone"]) as gateway:
        gateway.store_usage(make_rows())
        shell = Shell(tmp_path)
        shell.environ["DRAGOMAN_API_KEY"] = KEY
        run = ("usage", "--url", gateway.url, "--since", "all")
        found = shell.run(*run, "--by", "team", "--json").json
        assert {row["team"]: row["requests"] for row in found["rows"]} == {"core": 2, "(none)": 1, "ops": 1}
        assert shell.run(*run, "--by", "tag:job", "--csv").out.splitlines()[0].startswith("tag:job,requests")
        rows = shell.run(*run, "--rows", "--json").json
        names = ("user", "team", "session", "agent", "parent_agent", "tags", "lease")
        assert [rows[0][name] for name in names] == ["dev", "core", "s1", "", "", "job=7,branch=main", ""]
        wrong = shell.run(*run, "--by", "tags")
        assert (wrong.code, "expected one of day, model" in wrong.err) == (2, True)
