"""What was learned from rejections over the admin API: listed in pages, forgotten by provider or all, each by scope."""

import asyncio
from pathlib import Path

import asking
from dragoman.tenancy.keys import KeyRole, Scope
from dragoman.upstreams.learned_quirks import Learned, LearnedQuirks
from gateway import Running, running
from narrowing import expect
from waiting import wait_until

ECHO = '[providers.echo]\nkind = "echo"\n'
NOW = 4_000_000_000.0


def learn(gateway: Running, provider: str, *paths: str) -> None:
    """Let the gateway learn rules, and wait until they are stored."""
    memory, usage = expect(LearnedQuirks, gateway.app.gateway.runtime.learned_quirks), gateway.app.usage
    assert usage is not None
    store = usage.store
    for number, path in enumerate(paths):
        rule = Learned("someone", provider, "extra_field", path, "m", NOW + number)
        gateway.loop.call_soon_threadsafe(memory.keep, rule)

    def is_stored() -> bool:
        rows = asyncio.run_coroutine_threadsafe(store.list_rules(int(NOW)), gateway.loop).result(timeout=30)
        return set(paths) <= {row.path for row in rows}

    wait_until(is_stored)


def test_rules_are_listed_in_pages_and_forgotten_by_provider_and_all(tmp_path: Path) -> None:
    with running(ECHO, tmp_path, stored=["alice"]) as gateway:
        assert asking.send(gateway, "GET", "/api/v1/quirks").json == {"rules": [], "next": None}
        learn(gateway, "up", "/a", "/b", "/c")
        learn(gateway, "zoo", "/d")
        first = asking.send(gateway, "GET", "/api/v1/quirks?limit=3").json
        assert [rule["path"] for rule in first["rules"]] == ["/a", "/d", "/b"]
        rest = asking.send(gateway, "GET", f"/api/v1/quirks?cursor={first['next']}").json
        assert ([rule["path"] for rule in rest["rules"]], rest["next"]) == (["/c"], None)
        assert rest["rules"][0] == {
            "rule": "extra_field",
            "path": "/c",
            "provider": "up",
            "model": "m",
            "key": "someone",
            "learnt": "2096-10-02T07:06:42+00:00",
            "until": "2096-10-03T07:06:42+00:00",
        }
        wrong = asking.send(gateway, "GET", "/api/v1/quirks?cursor=AAAA")
        assert (wrong.status, wrong.json["error"]["field"]) == (400, "cursor")
        assert asking.send(gateway, "DELETE", "/api/v1/quirks/up").json == {"forgotten": 3}
        assert [rule["path"] for rule in asking.send(gateway, "GET", "/api/v1/quirks").json["rules"]] == ["/d"]
        assert asking.send(gateway, "DELETE", "/api/v1/quirks").json == {"forgotten": 1}
        assert asking.send(gateway, "GET", "/api/v1/quirks").json["rules"] == []
        audit = asking.send(gateway, "GET", "/api/v1/audit").json["audit"]
        assert [(one["action"], one["subject"]) for one in audit[:2]] == [
            ("quirks.forget", "all providers"),
            ("quirks.forget", "up"),
        ]


def test_each_path_needs_its_scope_and_a_client_key_gets_neither(tmp_path: Path) -> None:
    with running(ECHO, tmp_path, stored=["alice"]) as gateway:
        body = {"name": "reader", "role": KeyRole.ADMIN, "scopes": [Scope.ACCOUNTS_READ]}
        reader = asking.send(gateway, "POST", "/api/v1/keys", body).json["secret"]
        assert asking.send(gateway, "GET", "/api/v1/quirks", key=reader).status == 200
        assert asking.send(gateway, "DELETE", "/api/v1/quirks", key=reader).status == 403
        assert asking.send(gateway, "DELETE", "/api/v1/quirks/up", key=reader).status == 403
        assert asking.send(gateway, "GET", "/api/v1/quirks", key=gateway.keys["alice"]).status == 403
