"""What rules learnt by very many tenants take: `python -m bench.learned_rules`.

It lets 10,001 tenants meet a rejection at each of 1,000 invented models, and prints how many rules are kept, in memory
and in a SQLite store, and the memory of the process before and after. `--stored` is how many tenants also go to the
store, whose writes take most of the time.
"""

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from dragoman.store import open_store
from dragoman.store.learned_rules import MAX_RULES, RuleRow
from dragoman.upstreams.learned_quirks import LearnedQuirks
from dragoman.upstreams.rejections.rules import Found

TENANTS, MODELS = 10_001, 1_000
FIELD = Found("extra_field", "/tools/*/new")
PAGE = os.sysconf("SC_PAGE_SIZE")


def read_rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * PAGE / 1e6


def fill_memory(memory: LearnedQuirks) -> None:
    for tenant in range(TENANTS):
        for model in range(MODELS):
            memory.add(f"tenant-{tenant}", "up", f"invented-{model}", FIELD)


async def fill_store(directory: str, tenants: int) -> int:
    """Return how many rules the store keeps."""
    store = await open_store(f"sqlite:///{directory}/store.db")
    now = int(time.time())
    for tenant in range(tenants):
        row = RuleRow(f"tenant-{tenant}", "up", FIELD.rule, FIELD.path, "m", "", now)
        await store.add_rule(row, now)
    kept = len(await store.list_rules(now))
    await store.close()
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stored", type=int, default=TENANTS)
    stored = parser.parse_args().stored
    memory, before, began = LearnedQuirks(), read_rss_mb(), time.perf_counter()
    fill_memory(memory)
    took, after, kept = time.perf_counter() - began, read_rss_mb(), len(memory.list_all())
    print(f"{TENANTS:,} tenants x {MODELS:,} models, in {took:.0f} s")
    print(f"memory: {kept:,} rules kept, RSS {before:.0f} MB before, {after:.0f} MB after")
    with tempfile.TemporaryDirectory() as directory:
        in_store = asyncio.run(fill_store(directory, stored))
    print(f"store: {in_store:,} rules kept of {stored:,} tenants")
    assert kept <= MAX_RULES
    assert in_store <= MAX_RULES


if __name__ == "__main__":
    main()
