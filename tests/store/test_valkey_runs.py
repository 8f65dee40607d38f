"""Runs in Valkey: opened in one step, added to once, bounded over all replicas, and removed when their time is over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dragoman.store.shared_runs import Absence, JoinedId, Opening, RunBounds, RunCard, RunEnd, RunHead, RunPart
from dragoman.store.valkey import Script, Valkey, parse_address
from dragoman.store.valkey_runs import PIECE_BYTES, READ_PIECES, RUN_BYTES, ValkeyRuns
from valkey_server import ValkeyServer

HEAD = RunHead(200, [("content-type", "text/event-stream")])
USAGE = Script("return redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')")
MEGABYTE = 1024 * 1024
WIDE = RunBounds(32 * MEGABYTE, 128 * MEGABYTE, 256 * MEGABYTE)


@asynccontextmanager
async def connect(valkey: ValkeyServer) -> AsyncIterator[Valkey]:
    shared = Valkey(parse_address(valkey.url), deadline_s=5.0)  # the tests are of what is asked, not of how fast
    try:
        yield shared
    finally:
        await shared.stop()


def make_card(id: str, key: bytes | None = None, owner: str = "alice", digest: bytes = b"\0same") -> RunCard:
    return RunCard(id=id, owner=owner, path="/p\udcff", digest=digest, key=key, model="m", wants_array=False)


async def open_run(runs: ValkeyRuns, id: str, owner: str = "alice") -> None:
    assert await runs.open(make_card(id, owner=owner), is_retry=False) is Opening.OPENED


async def end_run(runs: ValkeyRuns, id: str, size: int, keep_s: float = 60.0) -> None:
    end = RunEnd(is_whole=True, failure=None, keep_s=keep_s)
    assert await runs.add(id, RunPart(start=0, pieces=[b"x" * size], head=HEAD, end=end)) == size


async def read_size(shared: Valkey) -> int:
    """Return how many bytes all runs occupy, and see that all counters agree."""
    total = await shared.execute("GET", "runs:total")
    sizes = await shared.execute("HVALS", "runs:sizes")
    owned = await shared.execute("HVALS", "runs:owned")
    assert isinstance(sizes, list)
    assert isinstance(owned, list)
    size = int(total) if isinstance(total, bytes) else 0
    assert sum(map(int, sizes)) == sum(map(int, owned)) == size
    return size


async def test_a_key_is_claimed_once_however_many_ask(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        cards = [make_card(f"run_{number}", b"k\0\xff") for number in range(50)]
        answers = await asyncio.gather(*(runs.open(card, is_retry=False) for card in cards))
        assert answers == [Opening.OPENED, *[JoinedId("run_0")] * 49]
        assert await runs.open(cards[0], is_retry=False) is Opening.OPENED  # its answer may have been lost
        assert await runs.open(make_card("run_x", b"k\0\xff", digest=b"other"), is_retry=False) is Opening.CONFLICT
        assert await runs.open(make_card("run_y", b"k\0\xff", owner="bob"), is_retry=False) is Opening.OPENED
        await runs.remove("run_0")
        assert await runs.open(cards[1], is_retry=False) is Opening.OPENED


async def test_what_was_added_is_read_once_and_in_its_order(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        await open_run(runs, "run_1")
        assert await runs.add("run_1", RunPart(start=0, pieces=[b"ab", b"c"], head=HEAD)) == 3
        assert await runs.add("run_1", RunPart(start=0, pieces=[b"ab", b"c", b"d"])) == 3  # its answer was lost
        pieces = [b"%d" % number for number in range(READ_PIECES)]
        size = 3 + sum(map(len, pieces))
        assert await runs.add("run_1", RunPart(start=3, pieces=pieces, signs=2, sign=b":\n\n")) == size
        end = RunEnd(is_whole=True, failure=None, keep_s=60.0)
        assert await runs.add("run_1", RunPart(start=size, pieces=[b"z"], end=end, signs=2, sign=b":\n\n")) == size + 1
        found = await runs.read("run_1", 0)
        assert found is not None
        assert not isinstance(found, Absence)
        assert (found.card, found.head) == (make_card("run_1"), HEAD)
        assert (found.pieces, found.is_read, found.end) == ([b"ab", b"c", *pieces[:-2]], False, None)
        rest = await runs.read("run_1", len(found.pieces))
        assert rest is not None
        assert not isinstance(rest, Absence)
        assert (rest.pieces, rest.is_read, rest.end) == ([*pieces[-2:], b"z"], True, end)
        assert (rest.signs, rest.sign, rest.made) == (2, b":\n\n", found.made)


async def test_what_was_added_already_still_ends_the_run(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        await open_run(runs, "run_1")
        assert await runs.add("run_1", RunPart(start=0, pieces=[b"abc"])) == 3
        end = RunEnd(is_whole=True, failure=None, keep_s=60.0)
        assert await runs.add("run_1", RunPart(start=0, pieces=[b"abc"], head=HEAD, end=end)) == 3
        found = await runs.read("run_1", 0)
        assert found is not None
        assert not isinstance(found, Absence)
        assert (found.head, found.pieces, found.end) == (HEAD, [b"abc"], end)


async def test_an_unknown_run_is_neither_added_to_nor_read(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        assert await runs.add("run_1", RunPart(start=0, pieces=[b"a"])) is Absence.UNKNOWN
        assert await runs.read("run_1", 0) is Absence.UNKNOWN
        assert await runs.release("run_1") is True


async def test_a_lost_run_is_taken_by_one_retry(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        await open_run(runs, "run_1")
        await runs.add("run_1", RunPart(start=0, head=HEAD, is_lost=True))
        first, second = [await runs.open(make_card(f"run_{name}"), is_retry=True) for name in "ab"]
        assert (first, second) == (JoinedId("run_1"), Opening.OPENED)
        await runs.add("run_1", RunPart(start=0, is_lost=True))
        assert await runs.open(make_card("run_c"), is_retry=True) is Opening.OPENED
        assert await runs.take("run_1") is False
        assert [await runs.take("run_b"), await runs.take("run_b")] == [True, False]


async def test_a_run_that_is_read_counts_as_followed_and_is_no_retrys(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        await open_run(runs, "run_1")
        await runs.add("run_1", RunPart(start=0, head=HEAD, is_lost=True))
        await runs.read("run_1", 0)
        assert await runs.release("run_1") is False
        assert await runs.open(make_card("run_a"), is_retry=True) is Opening.OPENED


@pytest.mark.parametrize(("key", "is_retry"), [(b"key", False), (None, True)])
async def test_a_request_whose_run_is_to_be_cancelled_gets_it_or_makes_one_of_its_own(
    valkey: ValkeyServer, key: bytes | None, is_retry: bool
) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        for owner, is_joined in (("alice", True), ("bob", False)):
            first, second = (make_card(f"{owner}_{number}", key, owner) for number in range(2))
            assert await runs.open(first, is_retry=False) is Opening.OPENED
            await runs.add(first.id, RunPart(start=0, head=HEAD, is_lost=True))
            if is_joined:
                assert await runs.open(second, is_retry=is_retry) == JoinedId(first.id)
            assert await runs.release(first.id) is not is_joined  # though it was not read yet
            if not is_joined:
                assert await runs.open(second, is_retry=is_retry) is Opening.OPENED


async def test_a_run_larger_than_its_bound_is_removed(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, RunBounds(5000, 10_000, 10_000))
        await open_run(runs, "run_1")
        assert await runs.add("run_1", RunPart(start=0, pieces=[b"x" * 2500])) == 2500
        assert await read_size(shared) == RUN_BYTES + PIECE_BYTES + 2500
        assert await runs.add("run_1", RunPart(start=2500, pieces=[b"x" * 2500])) is Absence.FULL
        assert await runs.read("run_1", 0) is Absence.FULL
        assert await read_size(shared) == 0


@pytest.mark.parametrize(("bounds", "is_of_owner"), [((9000, 90_000), True), ((90_000, 9000), False)])
async def test_the_oldest_that_have_ended_make_room_but_none_that_is_read(
    valkey: ValkeyServer, bounds: tuple[int, int], is_of_owner: bool
) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, RunBounds(9000, *bounds))
        for name in ("others", "read", "old"):
            await open_run(runs, name, "bob" if name == "others" else "alice")
            await end_run(runs, name, 100)
        await runs.read("read", 0)
        await open_run(runs, "new")
        for start in range(0, 2000, 500):
            assert await runs.add("new", RunPart(start=start, pieces=[b"x" * 500])) == start + 500
        left = [name for name in ("others", "read", "old", "new") if await runs.read(name, 0) is not Absence.UNKNOWN]
        assert left == (["others", "read", "new"] if is_of_owner else ["read", "new"])
        assert await runs.open(make_card("one more"), is_retry=False) is Opening.FULL
        assert await read_size(shared) <= 9000 + (RUN_BYTES + PIECE_BYTES + 200 if is_of_owner else 0)


async def test_runs_are_removed_when_their_time_is_over_and_nothing_is_left(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        assert await runs.open(make_card("ended", b"k"), is_retry=False) is Opening.OPENED
        await end_run(runs, "ended", 1000, keep_s=0.05)
        await open_run(runs, "made")
        await runs.renew(["made"])
        await asyncio.sleep(0.06)
        assert await runs.read("ended", 0) is Absence.UNKNOWN
        await runs.remove("made")
        keys = await shared.execute("KEYS", "runs*")
        assert isinstance(keys, list)
        assert sorted(keys) == [b"{dragoman:1}:runs:" + name for name in (b"epoch", b"renewed", b"total")]
        assert await read_size(shared) == 0


async def test_what_is_not_renewed_is_gone_but_not_while_the_server_stood_still(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        for name in ("silent", "alive"):
            await open_run(runs, name)
        await shared.execute("ZADD", "runs:all", "1", "silent", "1", "alive")  # as if their time were over
        await shared.execute("SET", "runs:renewed", "1")  # and nothing had been renewed since
        assert await runs.read("silent", 0) is not Absence.UNKNOWN
        renewed = await runs.renew(["alive", "unknown"])
        assert renewed is not None
        assert renewed.missing == {"unknown"}
        await shared.execute("DEL", "runs:grace")
        assert await runs.read("silent", 0) is Absence.UNKNOWN
        assert await runs.read("alive", 0) is not Absence.UNKNOWN


async def test_a_server_that_has_lost_all_has_another_epoch(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        first, second = ValkeyRuns(shared, WIDE), ValkeyRuns(shared, WIDE)
        before = [await runs.renew([]) for runs in (first, second)]
        assert before[0] == before[1]
        valkey.flush()
        assert await second.renew([]) != before[0]


async def test_the_server_takes_about_the_bytes_that_are_counted(valkey: ValkeyServer) -> None:
    async with connect(valkey) as shared:
        runs = ValkeyRuns(shared, WIDE)
        await open_run(runs, "run_1")
        start = 0
        for size in (10, 200, 8192) * 100:
            start += size
            assert await runs.add("run_1", RunPart(start=start - size, pieces=[b"x" * size])) == start
        taken = await shared.run(USAGE, ["runs:data:run_1"])
        assert isinstance(taken, int)
        assert start <= taken <= 1.2 * await read_size(shared)
