"""The rooms of the tree: docs/architecture.md lists each with a sentence and its size, and the core loads by itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import dragoman

SRC = Path(dragoman.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
PART = re.compile(r"(<!-- rooms: .* -->\n).*(<!-- end of the rooms -->)", re.DOTALL)
ROW = re.compile(r"\| `(\w+)` \| (.+) \| ([\d,]+) \|")
ROOMS = {
    "cli": "one file per command: arguments in, `operate` called, text out",
    "server": "the route table, its handlers, the admin API, the live feed and the console's files; WebSocket sessions",
    "operate": "what an operator can ask for, without terminal or socket: usage, metrics, captures, diagnosis, keys",
    "proxy": "one call, from its key to the last byte: the story, the loop over upstream turns, replies, capture",
    "upstreams": "one folder per vendor; routing; credentials, their renewal, pools and cooldowns",
    "server_tools": "the tools that the gateway runs itself: web search, web fetch, and the guard of what they fetch",
    "state": "stored responses and conversations, parked and background runs, a WebSocket's memory, lost calls",
    "tenancy": "client keys, teams, limits and what counts them; sessions of the console",
    "store": "SQLite or PostgreSQL: each operation once, drivers under it",
    "net": "HTTP/1.1 and WebSocket, server and client, on asyncio and httptools; sinks",
    "config": "dragoman.toml, environment and flags → one frozen Config",
    "translate": "the pure core: every protocol's requests, replies and streams, through one set of values",
    "console": "the pages of the web console: plain ES modules, no build",
}
TOLERANCE = 0.1  # of the size on the page: it need not be written again for each change


def count_lines(room: str) -> int:
    files = (path for path in (SRC / room).rglob("*") if path.suffix in {".py", ".js", ".css", ".html"})
    return sum(len(path.read_text().splitlines()) for path in files)


def test_the_page_lists_every_room_with_its_size() -> None:
    assert {path.name for path in SRC.iterdir() if path.is_dir() and path.name != "__pycache__"} == ROOMS.keys()
    sizes = {room: count_lines(room) for room in ROOMS}
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        rows = [f"| `{room}` | {what} | {round(sizes[room], -2):,} |\n" for room, what in ROOMS.items()]
        table = "| room, from the top | what it is | lines |\n|---|---|---|\n" + "".join(rows)
        PAGE.write_text(PART.sub(lambda match: match[1] + table + match[2], PAGE.read_text()))
    part = PART.search(PAGE.read_text())
    assert part is not None
    written = {room: (what, int(lines.replace(",", ""))) for room, what, lines in ROW.findall(part[0])}
    assert {room: what for room, (what, _) in written.items()} == ROOMS
    stale = {room for room, (_, lines) in written.items() if abs(lines - sizes[room]) > TOLERANCE * sizes[room] + 50}
    assert stale == set(), "write the page again: DRAGOMAN_WRITE_PAGES=1 pytest tests/test_rooms.py"


def test_the_core_loads_neither_network_nor_configuration_nor_store() -> None:
    load = "import sys, dragoman.translate.protocols as core; [core.PROTOCOLS[name] for name in core.PROTOCOLS]"
    show = "print(*sorted({name.split('.')[1] for name in sys.modules if name.startswith('dragoman.')}))"
    ran = subprocess.run([sys.executable, "-c", f"{load}; {show}"], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["translate"]
