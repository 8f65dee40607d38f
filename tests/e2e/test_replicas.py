"""Two replicas on one database agree within a second: on cooldowns, learned rules, moved conversations and prompts.

With Valkey they tell each other; with PostgreSQL alone each of them reads what all have stored.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import PATHS, send
from dragoman.proxy.shared_prompts import find_holder
from dragoman.tenancy.keys import ENVIRONMENT_KEY
from e2e.test_moved_sessions import DOWN, NEW, YES, Targets, ask
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import Running, provider_section, running_replicas
from narrowing import present
from postgres import Postgres
from rig import ONCE
from scripting import write_error, write_reply
from state.state_rig import endless
from translate.caching.test_worker_caches import BY_MEMORY, ONE, STATELESS, THREE, read_marked
from translate.caching.test_worker_caches import ask as ask_cached
from valkey_server import ValkeyServer
from waiting import wait_until

AGREED_S = 1.5  # a second, and what a busy machine adds
LIMITED = write_error(429, "Too many requests.", retry_after="600")
BOTH = [pytest.param(True, id="valkey"), pytest.param(False, id="postgresql alone", marks=pytest.mark.rest)]


@pytest.fixture
def targets() -> Iterator[Targets]:
    with FakeUpstream(answers=[YES]) as first, FakeUpstream(answers=[YES]) as second:
        yield Targets(first, second)


def wait_until_known(*replicas: Running) -> None:
    wait_until(lambda: all(len(present(one.app.processes).names) == len(replicas) for one in replicas))


@pytest.mark.parametrize("shared", BOTH)
def test_a_cooldown_of_one_replica_is_one_of_the_other_and_ends_there_too(
    shared: bool, tmp_path: Path, postgres: Postgres, valkey: ValkeyServer
) -> None:
    with FakeUpstream(choose=lambda one: LIMITED if has_limited_key(one) else YES) as fake:
        toml = ONCE + provider_section("chat", fake.url).replace('"sk-fake-upstream"', '["sk-limited", "sk-free"]')
        with running_replicas(toml, tmp_path, postgres.empty_database(), valkey.url if shared else "") as both:
            numbers = iter(range(1000))

            def uses_limited(gateway: Running) -> bool:
                """Send some conversations; return whether the limited key is used for one of them."""
                before = len(fake.calls)
                for _ in range(10):
                    message = {"role": "user", "content": f"conversation {next(numbers)}"}
                    reply = send(gateway, "POST", PATHS["chat"], {"model": "up/m", "messages": [message]})
                    assert reply.status == 200, reply.body
                return any(has_limited_key(call) for call in fake.calls[before:])

            wait_until(lambda: uses_limited(both[0]))
            wait_until(lambda: list_cooldowns(both[1]) == ["rate_limited"], patience_s=AGREED_S)
            assert not uses_limited(both[1])
            ended = send(both[1], "DELETE", "/api/v1/accounts/up/cooldowns")
            assert (ended.status, ended.json["ended"]) == (200, 1)
            wait_until(lambda: list_cooldowns(both[0]) == [], patience_s=AGREED_S)
            wait_until(lambda: uses_limited(both[0]))


def has_limited_key(request: ReceivedRequest) -> bool:
    return request.headers.get("authorization") == "Bearer sk-limited"


def list_cooldowns(gateway: Running) -> list[str]:
    """Return the reasons of all cooldowns that a gateway knows."""
    [account] = send(gateway, "GET", "/api/v1/accounts").json["accounts"]
    return [str(one["reason"]) for credential in account["credentials"] for one in credential["cooldowns"]]


def test_what_an_upstream_rejected_at_one_replica_the_other_leaves_out(tmp_path: Path, postgres: Postgres) -> None:
    refusal = write_error(400, "Unknown parameter: 'user'.", "unknown_parameter")

    def choose(request: ReceivedRequest) -> Answer:
        return refusal if "user" in request.json else YES

    with FakeUpstream(choose=choose) as fake:
        toml = provider_section("chat", fake.url)
        with running_replicas(toml, tmp_path, postgres.empty_database()) as both:
            tenant = both[0].app.keyring.tenant(ENVIRONMENT_KEY)

            def count_calls(gateway: Running) -> int:
                before = len(fake.calls)
                body = {"model": "up/m", "user": "someone", "messages": NEW}
                assert send(gateway, "POST", PATHS["chat"], body).status == 200
                return len(fake.calls) - before

            assert count_calls(both[0]) == 2
            wait_until(lambda: both[1].app._rules.find(tenant, "up", "m"), patience_s=AGREED_S)
            assert count_calls(both[1]) == 1


@pytest.mark.rest
def test_a_conversation_stays_where_it_moved_at_every_replica(
    targets: Targets, tmp_path: Path, postgres: Postgres, valkey: ValkeyServer
) -> None:
    with running_replicas(targets.toml, tmp_path, postgres.empty_database(), valkey.url) as both:
        wait_until_known(*both)
        targets.answer(first=DOWN)
        ask(both[0], targets)
        targets.answer()
        wait_until(lambda: both[1].app.gateway.moved_sessions.count)
        assert ask(both[1], targets) == ["second"]


@pytest.mark.rest
def test_what_one_replica_sent_is_known_to_the_other_until_valkey_is_frozen(
    tmp_path: Path, postgres: Postgres, valkey: ValkeyServer
) -> None:
    with FakeUpstream(choose=lambda request: write_reply("messages", "Yes.", stream=False)) as fake:
        toml = ONCE + provider_section("messages", fake.url)
        with running_replicas(toml, tmp_path, postgres.empty_database(), valkey.url) as both:
            wait_until_known(*both)
            tries = iter(range(1000))

            def find_session() -> str:
                """Return the name of a session that the second one holds."""
                processes = present(both[0].app.processes).names
                tenant, own = both[0].app.keyring.tenant(ENVIRONMENT_KEY), present(both[1].app.processes).own
                names = (f"try {next(tries)}" for _ in range(1000))
                return next(name for name in names if find_holder(tenant, name, processes) == own)

            def marked(session: str) -> list[str]:
                ask_cached(both[0], session, ONE)
                ask_cached(both[0], session, THREE)
                return read_marked(fake.calls[-1].json)

            wait_until(lambda: marked(find_session()) == BY_MEMORY)  # a busy machine may answer too late
            session = find_session()
            valkey.freeze()
            try:
                assert marked(session) == STATELESS
            finally:
                valkey.thaw()
            wait_until_known(*both)
            wait_until(lambda: marked(find_session()) == BY_MEMORY)


@pytest.mark.rest
def test_a_background_response_is_followed_and_cancelled_through_the_other_replica(
    tmp_path: Path, postgres: Postgres
) -> None:
    with FakeUpstream(keep_alive=False) as fake:
        toml = f"[retry]\nattempts = 1\n[responses]\nmax_background = 1\n{provider_section('chat', fake.url)}"
        with running_replicas(toml, tmp_path, postgres.empty_database()) as both:
            fake.answers = [write_reply("chat", "one two three")]
            body = {"model": "up/m", "background": True, "stream": True, "input": "Hi"}
            first = send(both[0], "POST", PATHS["responses"], body)
            id = first.events[0]["response"]["id"]
            for replica in both:
                assert send(replica, "GET", f"/v1/responses/{id}?stream=true").body == first.body
            fake.answers = [endless()]
            running = send(both[0], "POST", PATHS["responses"], body | {"stream": False}).json["id"]
            wait_until(lambda: len(fake.calls) == 2)
            cancelled = [send(replica, "POST", f"/v1/responses/{running}/cancel") for replica in both[::-1]]
            assert [reply.json["status"] for reply in cancelled] == ["cancelled"] * 2
            wait_until(lambda: fake.closed)
