"""`python -m bench.cluster` in small: replicas on one PostgreSQL under load, faults, and a rolling restart."""

import asyncio
from pathlib import Path

import pytest
from bench.budget.scene import Setting
from bench.cluster.balancer import start_balancer
from bench.cluster.faults import Fault, Finding, find_fault, run_fault
from bench.cluster.ledger import Left
from bench.cluster.limits import measure_rate, measure_slots
from bench.cluster.restart import Restarted, restart_all
from bench.cluster.scene import Plan, run_cluster
from bench.cluster.waits import Waits
from msgspec.structs import replace

from postgres import Postgres
from valkey_server import ValkeyServer

AGENTS = 5
SMALL_S = (0.1, 0.5)  # how long streams take


async def find_problems(plan: Plan, *faults: Fault) -> list[str]:
    async with run_cluster(plan, SMALL_S) as cluster:
        findings = [await run_fault(cluster, fault, plan.agents, calm_s=1.0) for fault in faults]
    assert all(finding.requests > plan.agents for finding in findings)
    return [problem for finding in findings for problem in finding.list_problems()]


def test_a_restart_of_postgresql_and_an_empty_valkey_harm_no_stream_and_lose_no_row() -> None:
    faults = (replace(find_fault("PostgreSQL restarted"), seconds=1.0), find_fault("Valkey flushed"))
    assert asyncio.run(find_problems(Plan(2, AGENTS, has_valkey=True), *faults)) == []


@pytest.mark.rest
@pytest.mark.parametrize("has_valkey", [True, False])
def test_a_killed_replica_leaves_nothing_behind(has_valkey: bool) -> None:
    assert asyncio.run(find_problems(Plan(2, AGENTS, has_valkey), find_fault("replica killed"))) == []


@pytest.mark.rest
def test_a_rolling_restart_fails_no_request_and_leaks_no_lease(tmp_path: Path) -> None:
    async def restart() -> Restarted:
        async with run_cluster(Plan(2, AGENTS), SMALL_S) as cluster:
            with start_balancer("haproxy", tmp_path / "haproxy", cluster.addresses) as port:
                return await restart_all(cluster, port, AGENTS)

    found = asyncio.run(restart())
    assert [*found.list_problems()] == []
    assert found.requests > AGENTS


@pytest.mark.alone  # Valkey has 50 ms to answer
@pytest.mark.rest
@pytest.mark.parametrize("has_valkey", [True, False])
def test_rates_and_slots_of_two_replicas_are_exact(has_valkey: bool, postgres: Postgres, valkey: ValkeyServer) -> None:
    setting = Setting(
        store="PostgreSQL",
        url=postgres.database(),
        gateways=2,
        workers=1,
        protocol="messages",
        dollars=1,
        runs=1,
        agents=4 * AGENTS,
        shared=f'shared = "{valkey.url}"\n' if has_valkey else "",
    )
    for measuring, limit in ((measure_rate, 30), (measure_slots, 3)):
        taken = asyncio.run(measuring(setting, limit, 5.0))
        assert taken.is_exact, taken
        assert taken.requests > taken.taken


def test_what_is_wrong_is_named() -> None:
    left = Left(leases=1, reserved=2, running=3, spent=4, of_rows=5, rows=6, second_rows=7)
    finding = Finding(
        find_fault("replica killed"), refused=1, broken=2, held_s=37, recovered_s=11, lost_rows=3, left=left
    )
    assert len([*finding.list_problems()]) == 9
    waits = Waits(usual_ms=5, longest_ms=120, longest_open_ms=20, requests=9, is_valkey=True)
    assert waits.is_allowed
    assert not replace(waits, longest_ms=130).is_allowed
    assert not replace(waits, longest_open_ms=60).is_allowed
    assert [*replace(left, leases=0, reserved=0, running=0, spent=5, second_rows=0).list_problems()] == []
