"""What the memories of prompt caches take at most, in a process of their own.

    .venv/bin/python -m bench.prompt_memory

Fills them as far as clients can: with 10,001 sessions, with 17 branches of 10,000 blocks, with names of a megabyte,
with sessions of 2,048 client keys and with 10,000 rejected values. Prints the resident memory after each.
"""

import gc
import os
from collections.abc import Callable, Iterator

from dragoman.translate.caching.memory import MAX_KEYS, NEW_SESSIONS, SessionId, SessionMemories
from dragoman.translate.caching.rejected_reasoning import ReasoningSession, RejectedReasoning
from dragoman.translate.caching.session_names import shorten_name
from dragoman.translate.hub.caching import SentPrompt

SESSIONS, BRANCHES, BLOCKS, VALUES = 10_001, 17, 10_000, 10_000
NAME_BYTES = 1_000_000
DIGEST_BYTES = 8


def read_resident_mb() -> float:
    """Return the resident memory of this process."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def fill_with_sessions(memories: SessionMemories) -> None:
    for number in range(SESSIONS):
        record(memories, f"session {number}", os.urandom(200 * DIGEST_BYTES), number)


def fill_with_branches(memories: SessionMemories) -> None:
    for session in range(60):
        for branch in range(BRANCHES):
            record(memories, f"branched {session}", os.urandom(BLOCKS * DIGEST_BYTES), branch)


def fill_with_names(memories: SessionMemories) -> None:
    for number in range(100):
        record(memories, shorten_name(f"{number}" * NAME_BYTES), os.urandom(DIGEST_BYTES), number)


def fill_with_keys(memories: SessionMemories) -> None:
    for number in range(MAX_KEYS * NEW_SESSIONS):
        record(memories, f"session {number}", os.urandom(DIGEST_BYTES), number, f"tenant {number % MAX_KEYS}")


def record(memories: SessionMemories, session: str, chain: bytes, at: float, tenant: str = "tenant") -> None:
    id = SessionId(tenant, session, "provider", 0, "model")
    memories.recall(id, at)
    memories.record(id, SentPrompt(chain, chain[:DIGEST_BYTES]), at)


def fill_with_values(rejected: RejectedReasoning) -> None:
    for session in range(1200):
        rejected.record(ReasoningSession("tenant", f"{session}", "provider"), os.urandom(VALUES * DIGEST_BYTES))


def measure() -> Iterator[tuple[str, float, float]]:
    """Yield what was filled in, the megabytes that the memory counts, and by how many the process has grown."""
    before = read_resident_mb()
    memories, rejected = SessionMemories(), RejectedReasoning()
    steps: list[tuple[str, Callable[[], None], Callable[[], int]]] = [
        (f"{SESSIONS:,} sessions", lambda: fill_with_sessions(memories), lambda: memories.size),
        (f"{BRANCHES} branches of {BLOCKS:,} blocks", lambda: fill_with_branches(memories), lambda: memories.size),
        (f"names of {NAME_BYTES:,} bytes", lambda: fill_with_names(memories), lambda: memories.size),
        (f"{MAX_KEYS:,} client keys", lambda: fill_with_keys(memories), lambda: memories.size),
        (f"{VALUES:,} rejected values", lambda: fill_with_values(rejected), lambda: rejected.size),
    ]
    for name, fill, count in steps:
        fill()
        gc.collect()
        yield name, count() / 1e6, read_resident_mb() - before


def main() -> None:
    for name, counted, grown in measure():
        print(f"{name}: {counted:.2f} MB counted, {grown:.1f} MB resident")


if __name__ == "__main__":
    main()
