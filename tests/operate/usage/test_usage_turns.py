"""Replies of several upstream requests: each row has the attempts, the outcome and the tokens that were billed.

Requests are retried, sent elsewhere, continued, repaired and answered in rounds, and clients leave at every stage; the
rows, the metrics and the log lines agree with what the upstreams saw and reported.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from asking import PATHS
from dragoman.store import open_store
from dragoman.store.usage_rows import UsageRow
from gateway import provider_section
from operate.usage.client_requests import KEY, read_status
from operate.usage.turn_stories import BEGUN, CASES, PAIRS, Bill, Leaves, StoryKiro, StoryRequest, StoryUpstream
from scraping import Scrape, scrape, total
from shell import Served, Shell
from store.rows import EVER
from waiting import wait_until
from wire_json import JsonObject

IN_FLIGHT = 48
SETTINGS = "[retry]\nattempts = 2\nbase_s = 0\ncontinue_streams = true\n"


class Client:
    """Sends requests, many at once, and leaves where their story says so."""

    def __init__(self, port: int, bill: Bill) -> None:
        self._port = port
        self._bill = bill
        self._changed: dict[int, asyncio.Event] = {}
        self.statuses: dict[int, int] = {}

    async def send_all(self, requests: Iterable[StoryRequest]) -> None:
        loop = asyncio.get_running_loop()

        def wake(number: int) -> None:
            loop.call_soon_threadsafe(self._wake, number)

        self._bill.on_change = wake
        left = iter(requests)

        async def send_each() -> None:
            for request in left:
                await asyncio.wait_for(self._send(request), 120)

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(send_each())

    def _wake(self, number: int) -> None:
        if number in self._changed:
            self._changed[number].set()

    async def _send(self, request: StoryRequest) -> None:
        changed = self._changed[request.number] = asyncio.Event()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request.bytes)
        leaves = request.story.leaves
        if leaves is Leaves.NEVER:
            self.statuses[request.number] = await read_status(reader)
        elif leaves is Leaves.READ:
            await reader.readuntil(BEGUN.encode())
        else:
            while not self._bill.is_time_to_leave(request.number):
                changed.clear()
                await changed.wait()
        if request.number % 2:
            writer.transport.abort()
        else:
            writer.close()
        del self._changed[request.number]


def write_config(directory: Path, upstream: StoryUpstream, kiro: StoryKiro, store_url: str) -> str:
    search = f'[tools.web_search]\nbackend = "searxng"\nendpoint = "{upstream.url}"\ntimeout_s = 300\n'
    sections = [
        f'{SETTINGS}[store]\nurl = "{store_url}"\n',
        search,
        kiro.section(kiro.sign_in(directory / "kiro.json")),
    ]
    sections += [provider_section(protocol, upstream.url, protocol) for protocol in PATHS]
    sections.append(provider_section("chat", upstream.url, "tools"))
    sections += [f'[[models]]\nname = "{one}-{two}"\nto = ["{one}/first", "{two}/second"]\n' for one, two in PAIRS]
    return "\n".join(sections)


async def read_rows(url: str) -> dict[str, UsageRow]:
    store = await open_store(url)
    try:
        rows = await store.read_usage_rows(EVER)
    finally:
        await store.close()
    assert len({row.client_request_id for row in rows}) == len(rows)
    return {row.client_request_id: row for row in rows}


def check_row(request: StoryRequest, row: UsageRow, bill: Bill) -> None:
    story, billed = request.story, bill.counts[request.number]
    assert row.outcome == story.outcome
    assert row.attempts == len(bill.requested[request.number]) == len(story.moves)
    assert row.stream is request.stream
    assert row.provider in request.targets
    if story.outcome == "ok" and story.kind == "pair":
        assert row.provider == request.targets[story.first < len(story.moves)]
    searches = bill.searches[request.number] - (story.leaves is Leaves.SEARCHED)
    assert row.web_searches == searches
    if story.is_estimated(request.stream):
        assert row.usage_source == "estimated"
        assert (row.output_tokens or 0) > sum(counts.output for counts in billed)
        assert (row.input_tokens or 0) > sum(counts.input for counts in billed)
        assert (row.input_tokens or 0) <= sum(counts.input for counts in billed) + 400_000
    elif not billed:
        assert (row.usage_source, row.input_tokens, row.output_tokens) == (None, None, None)
    else:
        assert row.usage_source == "reported"
        assert row.input_tokens == sum(counts.input for counts in billed)
        assert row.output_tokens == sum(counts.output for counts in billed)
        assert row.cache_read_tokens == sum(counts.cached for counts in billed)
        assert row.cache_write_tokens == sum(counts.written for counts in billed)
        if story.kind == "kiro":
            assert row.credits == pytest.approx(sum(counts.credits for counts in billed))
        else:
            assert row.reasoning_tokens == sum(counts.reasoning for counts in billed)


def check_all(requests: list[StoryRequest], rows: dict[str, UsageRow], bill: Bill) -> None:
    wrong: dict[str, str] = {}
    for request in requests:
        try:
            check_row(request, rows[request.id], bill)
        except AssertionError as error:
            what = f"{request.client}, stream {request.stream}, {request.targets}"
            moves = [move.name for move in request.story.moves]
            wrong.setdefault(
                f"{moves} {what}", f"{str(error)[:300]}\n{bill.counts[request.number]}\n{rows[request.id]}"
            )
    assert not wrong, "\n\n".join(f"{what}:\n{why}" for what, why in wrong.items())


def read_log_lines(served: Served) -> dict[str, JsonObject]:
    lines = (line for line in (served.out + served.err).splitlines() if line.startswith("{") and '"outcome"' in line)
    parsed = [msgspec.json.decode(line, type=JsonObject) for line in lines]
    return {line["client_request_id"]: line for line in parsed}


def check_log(rows: dict[str, UsageRow], lines: dict[str, JsonObject]) -> None:
    assert lines.keys() == rows.keys()
    for id, row in rows.items():
        line = lines[id]
        assert (line["outcome"], line["attempts"]) == (row.outcome, row.attempts), id
        assert (line.get("input_tokens"), line.get("output_tokens")) == (row.input_tokens, row.output_tokens), id


def check_metrics(rows: Iterable[UsageRow], seen: Scrape) -> None:
    for (client, outcome), count in Counter((row.client_protocol, row.outcome) for row in rows).items():
        assert total(seen, "dragoman_requests_total", client_protocol=client, outcome=outcome) == count


@pytest.mark.parametrize(
    ("store_url", "words", "count"),
    [
        ("sqlite", (), len(CASES)),
        pytest.param("sqlite", (), 4_000, marks=pytest.mark.rest),
        pytest.param("sqlite", ("--workers", "2"), 3_000, marks=pytest.mark.rest),
        pytest.param("postgresql", (), 3_000, marks=pytest.mark.rest),
    ],
    indirect=["store_url"],
)
def test_every_row_has_what_the_upstreams_billed(
    store_url: str, words: tuple[str, ...], count: int, tmp_path: Path
) -> None:
    requests, bill = [StoryRequest(number) for number in range(count)], Bill()
    with StoryUpstream(bill) as upstream, StoryKiro(bill) as kiro:
        shell = Shell(tmp_path)
        path = shell.write("turns.toml", write_config(tmp_path, upstream, kiro, store_url))
        with shell.serve("--config", str(path), "--log-json", *words, DRAGOMAN_API_KEY=KEY) as served:
            client = Client(served.port, bill)
            asyncio.run(client.send_all(requests))
            wait_until(lambda: total(scrape(served.url), "dragoman_requests_total") == count)
            seen = scrape(served.url)
            served.end(signal.SIGINT)
    rows = asyncio.run(read_rows(store_url))
    assert len(rows) == count
    check_all(requests, rows, bill)
    check_metrics(rows.values(), seen)
    check_log(rows, read_log_lines(served))
    for number, status in client.statuses.items():
        story = StoryRequest(number).story
        assert status == 200 or story.outcome != "ok", story
