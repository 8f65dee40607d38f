"""Fifty agents on a small budget: by how much they overspend it, in units of the most expensive request."""

from pathlib import Path

import pytest
from bench.budget.agents import Crowd, run_agents
from bench.budget.upstream import PRICE_LINES, Bill, BillingUpstream

from gateway import provider_section, running

NANO = 10**9
AGENTS = 50


async def spend(directory: Path, protocol: str, dollars: float, more: str = "") -> tuple[Bill, Crowd]:
    upstream = BillingUpstream(seed=7)
    await upstream.start()
    limits = f"[limits]\nusd_per_month = {dollars}\n{more}"
    section = provider_section(protocol, f"http://127.0.0.1:{upstream.port}/v1", "up")
    with running(limits + PRICE_LINES + section, directory, stored=["agents"]) as gateway:
        crowd = await run_agents([gateway.port], gateway.keys["agents"], protocol, AGENTS, seed=3)
    await upstream.stop()
    return upstream.bill, crowd


@pytest.mark.parametrize(("protocol", "most"), [("messages", 1.0), ("chat", 2.0), ("responses", 2.0)])
async def test_the_whole_budget_is_spent_and_hardly_more(protocol: str, most: float, tmp_path: Path) -> None:
    bill, crowd = await spend(tmp_path, protocol, 6.0)
    assert crowd.spent == AGENTS
    assert 0 <= (bill.total - 6 * NANO) / bill.dearest <= most


async def test_a_strict_budget_is_never_overspent(tmp_path: Path) -> None:
    bill, crowd = await spend(tmp_path, "messages", 6.0, 'budget = "strict"\n')
    assert crowd.spent == AGENTS
    assert 3 * NANO < bill.total <= 6 * NANO
