"""A store with a million responses: `python -m bench.store_rows`.

It fills a SQLite file and, if `--postgres URL` names an empty database, PostgreSQL with chains of ten responses of 100
client keys, each with 300 more than it may have. It prints how long a batch of the cleaning takes, what a chained turn
waits beside it, what clients of a gateway see that cleans after its start, and how large a file is after a restart.
"""

# ruff: noqa: S608 - all names in the statements are our own

import argparse
import asyncio
import http.client
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from hashlib import blake2b
from pathlib import Path

import apsw
import asyncpg

from bench.gateways import KEY
from bench.ports import find_free_port
from bench.rig import wait_healthy
from bench.tree import Child
from dragoman.config.settings import ResponsesSettings
from dragoman.state.service import MB, REMOVE_BATCH, REMOVE_PAUSE_S, find_bounds, remove_old_responses
from dragoman.store import Store, open_store
from dragoman.store.first_totals import select_totals
from dragoman.store.response_rows import DIGEST_BYTES, ConversationRow, ItemRow, ResponseRow, Room

OWNERS, LINKS, SURPLUS = 100, 10, 300
BATCHES = 500  # that are measured; the gateway removes the rest
ASK_S = 30.0
DAY_S = 86_400
GOAL_BATCH_MS, GOAL_TURN_MS = 50.0, 50.0
CONFIG = """
[responses]
max_per_key = {most}
[store]
url = "{url}"
"""


def write_statements(rows: int, schema: str, digest: str, series: str) -> list[str]:
    """Return what fills a store. `digest` is the expression of 16 bytes made from its places first and n."""
    now = int(time.time())
    owner = f"'key_' || (n % {OWNERS})"
    name = "'resp_0123456789abcdef0123456789abcdef' || {}"
    link = f"(n / {OWNERS} % {LINKS})"
    is_last = f"{link} = {LINKS - 1} OR n + {OWNERS} >= {rows}"
    inputs, outputs = digest.format(first=1), digest.format(first=2)
    bodies = f"'{'one two three four five six seven ' * 8}'"
    columns = (
        "owner, id, created_at, expires_at, status, model, route, head, settings, input, input_start, output,"
        " conversation, keeper, account, mode, base, children, removed"
    )
    values = (
        f"{owner}, {name.format('n')}, {now - 20 * DAY_S} + n * {15 * DAY_S} / {rows},"
        f" {now + 10 * DAY_S} + n * {15 * DAY_S} / {rows}, 'completed', 'm', 'up/m', {{head}}, {{empty}}, {inputs},"
        f" 2 * {link}, {outputs}, '', '', '', '',"
        f" CASE WHEN {link} = 0 THEN '' ELSE {name.format(f'(n - {OWNERS})')} END,"
        f" CASE WHEN {is_last} THEN 0 ELSE 1 END, 0"
    )
    blob, empty = ("CAST({} AS BLOB)", "x''") if not schema else ("convert_to({}, 'UTF8')", "''::bytea")
    head = blob.format('\'{"id":"x","object":"response","usage":{"input_tokens":10}}\'')
    values = values.format(head=head, empty=empty)
    item = f"{owner}, {{}}, 'msg_' || {{}} || n, {blob.format(bodies)}, NULL"
    return [
        f"INSERT INTO {schema}responses ({columns}) SELECT {values} FROM {series}",
        *(
            f"INSERT INTO {schema}response_items (owner, digest, id, body, hidden)"
            f" SELECT {item.format(digests, number)} FROM {series}"
            for digests, number in ((inputs, "1"), (outputs, "2"))
        ),
        f"INSERT INTO {schema}item_references (owner, digest, number)"
        f" SELECT owner, digest, 1 FROM {schema}response_items",
        f"INSERT INTO {schema}stored_totals {select_totals(schema)}",
    ]


def fill_sqlite(path: Path, rows: int) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "OFF")
    connection.pragma("cache_size", -500_000)
    digest = "unhex(printf('%08x%023x{first}', n * 2654435761 % 4294967296, n))"
    series = f"(WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {rows - 1}) SELECT n FROM c)"
    for statement in write_statements(rows, "", digest, series):
        connection.execute(statement)
    connection.execute("ANALYZE")
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()


async def fill_postgres(url: str, rows: int) -> None:
    connection = await asyncpg.connect(url)
    digest = "decode(lpad(to_hex(n * 2654435761 % 4294967296), 8, '0') || lpad(to_hex(n), 23, '0') || '{first}', 'hex')"
    series = f"generate_series(0, {rows - 1}::bigint) AS n"
    for statement in write_statements(rows, "dragoman.", digest, series):
        await connection.execute(statement)
    await connection.execute("VACUUM ANALYZE dragoman.responses, dragoman.response_items, dragoman.item_references")
    await connection.close()


def find_percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


def show(name: str, times: list[float]) -> None:
    figures = (find_percentile(times, share) for share in (0.5, 0.99, 1.0))
    print(f"| {name} | {len(times)} | {' | '.join(f'{figure:.1f}' for figure in figures)} |", flush=True)


class Turns:
    """Chained turns, one after the other, as a client's requests make them."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._number = 0
        self._last = ""
        self.times: list[float] = []

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.005)
            began = time.perf_counter()
            await self._turn()
            self.times.append(time.perf_counter() - began)

    async def _turn(self) -> None:
        responses, now = self._store.responses, int(time.time())
        self._number += 1
        earlier = None if not self._last else await responses.find_response("key_0", self._last, now)
        held = () if earlier is None else tuple(item for item in await responses.load_chain(earlier) if item)
        if len(held) > 200:
            held, self._last = (), ""
        new = tuple(make_item(f"{self._name} {self._number} {part}", 300) for part in ("input", "output"))
        row = make_row("key_0", f"resp_{self._name}_{self._number}", held, new[:1], new[1:], self._last)
        assert await responses.save_response(row, (*held, *new))
        self._last = row.id


def make_item(name: str, size: int) -> ItemRow:
    digest = blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()
    return ItemRow(digest, f"msg_{name}", name.encode().ljust(size, b"."))


def make_row(
    owner: str, id: str, held: tuple[ItemRow, ...], new: tuple[ItemRow, ...], output: tuple[ItemRow, ...], base: str
) -> ResponseRow:
    now = int(time.time())
    return ResponseRow(
        owner=owner,
        id=id,
        created_at=now,
        expires_at=now + 30 * DAY_S,
        status="completed",
        model="m",
        route="up/m",
        context=b"".join(item.digest for item in (*held, *new)),
        input_start=len(held),
        output=b"".join(item.digest for item in output),
        base=base,
    )


async def measure_batches(store: Store, rows: int) -> bool:
    """Measure batches of the cleaning with turns beside them; return whether both are quick."""
    bounds = find_bounds(ResponsesSettings(max_per_key=rows // OWNERS - SURPLUS))
    alone, beside = Turns(store, "alone"), Turns(store, "beside")
    await run_for(alone, 3.0)
    turning = asyncio.create_task(beside.run())
    batches: list[float] = []
    removed = 0
    for _ in range(BATCHES):
        began = time.perf_counter()
        count = await store.responses.remove_responses(int(time.time()), bounds, REMOVE_BATCH)
        batches.append(time.perf_counter() - began)
        removed += count
        if not count:
            break
        await asyncio.sleep(REMOVE_PAUSE_S)
    turning.cancel()
    with suppress(asyncio.CancelledError):
        await turning
    show("turn, no cleaning", alone.times)
    show("turn beside the cleaning", beside.times)
    show(f"batch ({removed} rows in all)", batches)
    slow_batch, slow_turn = find_percentile(batches, 0.99), find_percentile(beside.times, 0.99)
    return slow_batch <= GOAL_BATCH_MS and slow_turn <= GOAL_TURN_MS


async def run_for(turns: Turns, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await turns.run()


def ask_gateway(url: str, rows: int) -> bool:
    """Alternate chained and plain requests to a gateway that cleans; return whether all replies were stored."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-store-rows-")))
        config, port = directory / "dragoman.toml", find_free_port()
        config.write_text(CONFIG.format(most=rows // OWNERS - SURPLUS, url=url))
        command = [sys.executable, "-m", "dragoman", "serve", "--config", str(config), "--port", str(port)]
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        environ = kept | {"HOME": str(directory), "DRAGOMAN_API_KEY": KEY}
        child = stack.enter_context(Child(command, os.sched_getaffinity(0), directory / "log", environ))
        wait_healthy(child, port, "/health", 60.0)
        seen: Counter[str] = Counter()
        times: list[float] = []
        last: str | None = None
        until = time.monotonic() + ASK_S
        while time.monotonic() < until:
            previous = last if seen.total() % 2 else None
            began = time.perf_counter()
            status, body = ask(port, previous)
            times.append(time.perf_counter() - began)
            kind = "chained" if previous else "plain"
            outcome = str(status) if status != 200 else "stored" if body.get("store") else "not stored"
            seen[f"{kind} {outcome}"] += 1
            last = str(body["id"]) if status == 200 else None
    show("request of the gateway while it cleans", times)
    print(f"\n{', '.join(f'{count} {outcome}' for outcome, count in sorted(seen.items()))}\n", flush=True)
    return all(outcome.endswith(" stored") and "not" not in outcome for outcome in seen)


def ask(port: int, previous: str | None) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    request = {"model": "echo", "input": "Hello Ada.", "previous_response_id": previous}
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connection.request("POST", "/v1/responses", json.dumps(request), headers)
    response = connection.getresponse()
    body: dict[str, object] = json.loads(response.read())
    connection.close()
    return response.status, body


async def measure_disk(directory: Path) -> bool:
    """Store far more than the bound of one key, open the file again, clean it, and compare the sizes."""
    file, settings = directory / "disk.db", ResponsesSettings(max_mb_per_key=2)
    store = await open_store(f"sqlite:///{file}")
    chains: dict[int, tuple[ItemRow, ...]] = dict.fromkeys(range(40), ())
    for turn in range(12):
        for number, held in chains.items():
            new = (make_item(f"chain {number} turn {turn}", 20_000),)
            base = f"resp_{number}_{turn - 1}" if turn else ""
            await store.responses.save_response(
                make_row("key_0", f"resp_{number}_{turn}", held, new, (), base), (*held, *new)
            )
            chains[number] = (*held, *new)
    for number in range(400):
        new = (make_item(f"lone {number}", 20_000),)
        await store.responses.save_response(make_row("key_1", f"resp_{number}", (), new, (), ""), new)
    refused = 0
    for number in range(8):
        row = ConversationRow("key_2", f"conv_{number}", int(time.time()), b"{}")
        items = [make_item(f"conversation {number} item {place}", 200_000) for place in range(20)]
        refused += await store.responses.add_conversation(row, items, find_bounds(settings)) != Room.FREE
    await store.close()
    before = measure_files(file)
    store = await open_store(f"sqlite:///{file}")
    await remove_old_responses(store.responses, settings)
    await store.database.tidy()
    live = {owner: (await store.responses.measure(owner)).bytes / MB for owner in ("key_0", "key_1", "key_2")}
    after = measure_files(file)
    most = 2 * 2 * 2 + 5  # twice the bound of each of two keys, and 5 MB
    shown = ", ".join(f"{owner} {size:.2f} MB" for owner, size in live.items())
    print(f"bound 2 MB for each key: {shown}; files {before:.1f} MB before, {after:.1f} MB after a restart;")
    print(f"{refused} of 8 conversations of 4 MB refused\n", flush=True)
    await store.close()
    return after <= most and max(live.values()) <= 2


def measure_files(file: Path) -> float:
    return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*")) / MB


async def measure(url: str, rows: int) -> bool:
    store = await open_store(url)
    print(f"{store.name}: {(await store.responses.measure()).responses:,} responses\n")
    print("| what | count | median ms | p99 ms | worst ms |\n|---|---:|---:|---:|---:|", flush=True)
    is_quick = await measure_batches(store, rows)
    await store.close()
    return await asyncio.to_thread(ask_gateway, url, rows) and is_quick


async def run(rows: int, postgres_url: str | None, directory: Path) -> bool:
    good = await measure_disk(directory)
    file = directory / "rows.db"
    await (await open_store(f"sqlite:///{file}")).close()
    await asyncio.to_thread(fill_sqlite, file, rows)
    good = await measure(f"sqlite:///{file}", rows) and good
    if postgres_url is not None:
        await (await open_store(postgres_url)).close()
        await fill_postgres(postgres_url, rows)
        good = await measure(postgres_url, rows) and good
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", metavar="URL")
    parser.add_argument("--rows", metavar="N", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dragoman-store-rows-") as directory:
        raise SystemExit(0 if asyncio.run(run(options.rows, options.postgres, Path(directory))) else 1)
