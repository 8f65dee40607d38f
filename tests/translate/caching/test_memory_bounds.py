"""What clients can make large in the memories of prompt caches stays within 32 MB, measured in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINE = re.compile(r"(.+): ([\d.]+) MB counted, (-?[\d.]+) MB resident")


@pytest.mark.rest
def test_the_memories_take_what_they_count_and_no_more_than_they_may() -> None:
    command = [sys.executable, "-m", "bench.prompt_memory"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    rows = [
        (found[1], float(found[2]), float(found[3])) for found in map(LINE.fullmatch, done.stdout.splitlines()) if found
    ]
    assert [name.split(" ")[0] for name, _, _ in rows] == ["10,001", "17", "names", "2,048", "10,000"], done.stderr
    for name, counted, _ in rows:
        assert counted <= 32 * 1024 * 1024 / 1e6, name
    assert rows[0][2] <= 32, "10,001 sessions"
    assert rows[2][2] <= 48, "all that one memory may have; the allocator keeps some of what was freed"
