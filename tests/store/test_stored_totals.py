"""What each owner holds is counted beside the rows, and is true after any operations, on SQLite and on PostgreSQL."""

import asyncio
import random
import re
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.store import Store
from dragoman.store.database import Session
from dragoman.store.first_totals import count_conversations, select_totals
from dragoman.store.response_rows import (
    ConversationRow,
    Ending,
    EventChunk,
    FinishedRun,
    ItemRow,
    Kept,
    OwnedId,
    QueuedRun,
    ResponseRow,
    Room,
    RunEvents,
    StorageBounds,
    split_digests,
)
from dragoman.store.runs import ENDED_EVENTS
from dragoman.store.sqlite import connect, rewrite
from dragoman.store.stored_removal import (
    FIND_ABOVE,
    FIND_ENDS,
    FIND_EXPIRED,
    FIND_OLDEST,
    MAX_CASCADE,
    NEEDS_CLEANING,
)
from store.stories import on_both_stores, open_at, run_with_store
from store.test_stored_responses import FAR, NOW, item, list_items, response

Chain = tuple[ItemRow, ...]  # context and output of a response


async def save(
    store: Store, row: ResponseRow, earlier: Chain, new: Chain, output: Chain, settings: ItemRow | None = None
) -> Chain:
    """Save a response as the gateway does: with the whole context, and its base."""
    whole = (*earlier, *new)
    row = replace(
        row,
        context=b"".join(one.digest for one in whole),
        input_start=len(earlier),
        output=b"".join(one.digest for one in output),
        settings=b"" if settings is None else settings.digest,
    )
    appended = [one.digest for one in (*new, *output)] if row.conversation else []
    items = (*whole, *output, *(() if settings is None else (settings,)))
    assert await store.responses.save_response(row, items, appended)
    return (*whole, *output)


async def check_whole(store: Store, id: str, chain: Chain, owner: str = "alice") -> None:
    row = await store.responses.find_response(owner, id, NOW)
    assert row is not None, id
    assert await store.responses.load_chain(row) == chain


async def check_totals(store: Store) -> None:
    """Compare the totals, the sizes of conversations and the references with what the rows say."""

    async def check(session: Session) -> None:
        counted = dict(await session.fetch(make_total, select_totals("dragoman.")))
        totals = await session.fetch(make_total, "SELECT * FROM dragoman.stored_totals")
        assert {owner: kept for owner, kept in totals if kept != Kept()} == counted
        sizes = "SELECT id, bytes FROM dragoman.conversations ORDER BY owner, id"
        before = await session.fetch(make_size, sizes)
        await session.execute(count_conversations("dragoman.").strip().rstrip(";"))
        assert before == await session.fetch(make_size, sizes)
        held = "SELECT owner, settings, input, output FROM dragoman.responses"
        references = Counter(key for keys in await session.fetch(list_held, held) for key in keys)
        references.update(await session.fetch(make_key, "SELECT owner, digest FROM dragoman.conversation_items"))
        known = "SELECT owner, digest, number FROM dragoman.item_references"
        assert dict(await session.fetch(make_number, known)) == references
        items = await session.fetch(make_key, "SELECT owner, digest FROM dragoman.response_items")
        assert {*items} == references.keys()

    await store.database.write(check)


def make_total(owner: str, *sums: int) -> tuple[str, Kept]:
    return owner, Kept(*map(int, sums))


def make_size(id: str, size: int) -> tuple[str, int]:
    return id, size


def make_key(owner: str, digest: bytes) -> tuple[str, bytes]:
    return owner, digest


def make_number(owner: str, digest: bytes, number: int) -> tuple[tuple[str, bytes], int]:
    return (owner, digest), number


def list_held(owner: str, settings: bytes, input: bytes, output: bytes) -> set[tuple[str, bytes]]:
    return {(owner, digest) for joined in (settings, input, output) for digest in split_digests(joined)}


class Client:
    """Does something at random, and remembers what it may still find."""

    def __init__(self, store: Store, owner: str, seed: int) -> None:
        self.store, self.owner = store, owner
        self.random = random.Random(f"{owner}{seed}")
        self.chains: dict[str, Chain] = {}
        self.conversations: list[str] = []
        self.number = 0

    def make_items(self, count: int) -> Chain:
        """Return items, some of which are the same as earlier ones."""
        names = (f"msg_{self.random.choice((self.number % 5, self.number))}_{place}" for place in range(count))
        return tuple(item(name, b"opaque" if name.endswith("1") else None) for name in names)

    async def act(self) -> None:
        self.number += 1
        actions = (
            self.save,
            self.save,
            self.go_on,
            self.go_on,
            self.go_on,
            self.delete,
            self.talk,
            self.edit,
            self.run,
        )
        await self.random.choice(actions)()

    async def act_beside_others(self) -> None:
        """Do what does not depend on who else removes responses or claims runs."""
        self.number += 1
        await self.random.choice((self.save, self.go_on, self.go_on, self.delete_any))()

    async def save(self, base: str = "", conversation: str = "", earlier: Chain = ()) -> None:
        id = f"resp_{self.number}"
        settings = self.make_items(1)[0]
        age = self.random.randrange(90)
        row = replace(response(id, [], [], self.owner, age), base=base, conversation=conversation)
        chain = await save(self.store, row, earlier, self.make_items(2), self.make_items(1), settings)
        self.chains[id] = chain

    async def go_on(self) -> None:
        if self.chains:
            base = self.random.choice([*self.chains])
            await self.save(self.random.choice((base, base, base, "resp_gone")), earlier=self.chains[base])

    async def delete(self) -> None:
        if self.chains:
            id = self.random.choice([*self.chains])
            del self.chains[id]
            assert await self.store.responses.delete_response(self.owner, id)

    async def delete_any(self) -> None:
        """Delete a response that may have been removed already."""
        if self.chains:
            await self.store.responses.delete_response(self.owner, self.random.choice([*self.chains]))

    async def talk(self) -> None:
        if not self.conversations or self.random.random() < 0.2:
            id = f"conv_{self.number}"
            self.conversations.append(id)
            row = ConversationRow(self.owner, id, NOW, b'{"a":"b"}')
            assert await self.store.responses.add_conversation(row, self.make_items(2), FAR) == Room.FREE
        id = self.random.choice(self.conversations)
        loaded = await self.store.responses.load_conversation(self.owner, id)
        assert loaded is not None
        await self.save(loaded[0].newest, id, loaded[1])
        assert await list_items(self.store, self.owner, id) == self.chains[f"resp_{self.number}"]

    async def edit(self) -> None:
        if not self.conversations:
            return
        responses, id = self.store.responses, self.random.choice(self.conversations)
        match self.random.randrange(4):
            case 0:
                assert await responses.append_items(OwnedId(self.owner, id), self.make_items(3), FAR) == Room.FREE
            case 1:
                held = await list_items(self.store, self.owner, id)
                if held:
                    assert await responses.delete_item(self.owner, id, self.random.choice(held).id)
            case 2:
                assert await responses.set_metadata(self.owner, id, b"{}" * self.random.randrange(9))
            case 3:
                self.conversations.remove(id)
                assert await responses.delete_conversation(self.owner, id)

    async def run(self) -> None:
        """Queue a background response, which continues another one; it ends, or is deleted, or waits."""
        runs, id = self.store.runs, f"resp_{self.number}"
        base = self.random.choice([*self.chains, ""])
        earlier, new, output = self.chains.get(base, ()), self.make_items(1), self.make_items(2)
        row = replace(
            response(id, [*earlier, *new], [], self.owner),
            status="queued",
            mode="background stream",
            base=base,
            input_start=len(earlier),
        )
        assert await runs.queue_run(row, QueuedRun(b"request", b"first", 0, (*earlier, *new)), 100)
        if self.random.random() < 0.2:
            assert await self.store.responses.delete_response(self.owner, id)
            return
        [claimed] = await runs.claim_runs([id + self.owner], NOW + 10, 100)
        await runs.add_events([RunEvents(claimed.token, EventChunk(1, 3, b"more" * 9))], NOW)
        if self.random.random() < 0.3:
            assert await runs.end_run(OwnedId(self.owner, id), Ending("failed", b"{}" * 9, lambda number: b"end"), NOW)
            self.chains[id] = (*earlier, *new)
            return
        ended = replace(row, status="completed", head=b'{"done":1}', output=b"".join(one.digest for one in output))
        finished = FinishedRun(claimed.token, ended, (*earlier, *new, *output), (), [EventChunk(4, 4, b"last")])
        assert await runs.finish_run(finished, NOW)
        self.chains[id] = (*earlier, *new, *output)

    async def check(self) -> None:
        for id, chain in self.chains.items():
            await check_whole(self.store, id, chain, self.owner)

    async def find_left(self) -> None:
        """Forget what was removed as too old or too much."""
        left = {row.id for row in await self.store.responses.list_responses(self.owner, 10**6, NOW)}
        assert left <= self.chains.keys()
        self.chains = {id: chain for id, chain in self.chains.items() if id in left}


@on_both_stores
async def test_totals_and_references_are_true_after_any_operations_and_no_item_is_lost(store: Store) -> None:
    for seed in range(2):
        clients = [Client(store, f"owner_{seed}_{number}", seed) for number in range(2)]
        for _ in range(60):
            for client in clients:
                await client.act()
        await check_totals(store)
        for client in clients:
            await client.check()
        held = await store.responses.measure(clients[0].owner)
        tight = StorageBounds(len(clients[0].chains) - 3, held.bytes * 2 // 3, 10**12)
        while await store.responses.remove_responses(NOW, tight, 5):
            pass
        await store.runs.remove_events(NOW + 1, 3)
        await check_totals(store)
        for client in clients:
            await client.find_left()
            await client.check()
            for id in client.chains:
                assert await store.responses.delete_response(client.owner, id)
            for id in client.conversations:
                assert await store.responses.delete_conversation(client.owner, id)
    assert await store.responses.measure() == Kept()
    await check_totals(store)


def test_totals_are_true_after_two_gateways_stored_deleted_and_cleaned_at_the_same_time(store_url: str) -> None:
    async def use(store: Store) -> None:
        async with open_at(store_url) as other:
            clients = [Client(one, f"owner_{number}", number) for number in range(2) for one in (store, other)]
            for client in clients[1::2]:
                client.number = 1000  # so that two of one owner never choose the same id

            async def work(client: Client) -> None:
                for _ in range(25):
                    await client.act_beside_others()

            async def clean(one: Store) -> None:
                for _ in range(15):
                    await one.responses.remove_responses(NOW, StorageBounds(15, 10**9, 10**5), 3)
                    await one.runs.remove_events(NOW + 1, 3)

            await asyncio.gather(*map(work, clients), clean(store), clean(other))
        await check_totals(store)

    run_with_store(store_url, use)


A, B, C, D, E, F = (tuple(item(f"msg_{letter}{number}") for number in range(2)) for letter in "abcdef")


@pytest.mark.rest
@on_both_stores
async def test_a_chain_with_a_fork_can_be_deleted_in_any_order_and_what_is_left_stays_whole(store: Store) -> None:
    for order in permutations(("one", "two", "three", "fork")):
        chains = {"one": await save(store, response("one", [], []), (), A, B)}
        chains["two"] = await save(store, replace(response("two", [], []), base="one"), chains["one"], C, D)
        chains["three"] = await save(store, replace(response("three", [], []), base="two"), chains["two"], E, F)
        chains["fork"] = await save(store, replace(response("fork", [], []), base="one"), chains["one"], E, D)
        for id in order:
            assert await store.responses.delete_response("alice", id)
            assert await store.responses.find_response("alice", id, NOW) is None
            assert not await store.responses.delete_response("alice", id)
            del chains[id]
            for left, chain in chains.items():
                await check_whole(store, left, chain)
            await check_totals(store)
        assert await store.responses.measure() == Kept()


@pytest.mark.rest
@on_both_stores
async def test_a_long_chain_whose_last_response_is_deleted_goes_in_several_steps(store: Store) -> None:
    chain: Chain = ()
    for number in range(MAX_CASCADE * 2 + 5):
        row = replace(response(f"resp_{number}", [], []), base=f"resp_{number - 1}" if number else "")
        chain = await save(store, row, chain, (item(f"msg_{number}"),), ())
    for number in range(MAX_CASCADE * 2 + 5):
        assert await store.responses.delete_response("alice", f"resp_{number}")
    await check_totals(store)
    assert (await store.responses.measure()).items == MAX_CASCADE + 4
    assert await store.responses.find_items("alice", [one.id for one in chain], NOW) == {}
    assert await store.responses.measure() == Kept()
    await check_totals(store)


@on_both_stores
async def test_a_turn_of_a_long_chain_or_conversation_refers_to_its_own_items_only(store: Store) -> None:
    async def count(session: Session) -> int:
        [number] = await session.fetch(int, "SELECT sum(number)::bigint FROM dragoman.item_references")
        return number

    await store.responses.add_conversation(ConversationRow("alice", "conv_1", NOW, b"{}"), A, FAR)
    chain: Chain = ()
    last = ""
    counts = []
    for number in range(60):
        new, output = (item(f"msg_{number}"),), (item(f"msg_{number}_out"),)
        chain = await save(store, replace(response(f"resp_{number}", [], []), base=last), chain, new, output)
        last = f"resp_{number}"
        counts.append(await store.database.read(count))
    assert counts[-1] - counts[-2] == 2
    await check_whole(store, last, chain)
    items = A
    for number in range(30):
        loaded = await store.responses.load_conversation("alice", "conv_1")
        assert loaded is not None
        row = replace(response(f"resp_c{number}", [], []), base=loaded[0].newest, conversation="conv_1")
        items = await save(store, row, loaded[1], (item(f"msg_c{number}"),), (item(f"msg_c{number}_out"),))
        counts.append(await store.database.read(count))
    assert counts[-1] - counts[-2] == 4  # of the response, and of the conversation
    await check_whole(store, "resp_c29", items)
    await check_totals(store)


@on_both_stores
async def test_deleting_the_first_of_a_chain_frees_nothing_that_the_others_need(store: Store) -> None:
    large = replace(item("msg_large"), body=b"x" * 100_000)
    chain = await save(store, response("one", [], []), (), (large,), ())
    await save(store, replace(response("two", [], []), base="one"), chain, B, ())
    held = await store.responses.measure("alice")
    assert await store.responses.delete_response("alice", "one")
    left = await store.responses.measure("alice")
    assert (left.responses, left.items) == (1, held.items)
    assert left.bytes > 100_000
    while await store.responses.remove_responses(NOW, replace(FAR, owner_bytes=50_000), 10):
        pass
    assert await store.responses.measure("alice") == Kept()


@on_both_stores
async def test_beyond_the_bytes_the_chains_that_were_left_longest_go_first_and_the_others_stay_whole(
    store: Store,
) -> None:
    chains: dict[str, Chain] = {}
    for turn in range(6):
        for number in range(10):
            name, base = f"{number}-{turn}", f"{number}-{turn - 1}" if turn else ""
            row = replace(response(name, [], [], age=60 - turn * 10 - number), base=base)
            new = replace(item(f"msg_{name}"), body=b"x" * 5_000)
            chains[name] = await save(store, row, chains.get(base, ()), (new,), ())
    held = await store.responses.measure("alice")
    while await store.responses.remove_responses(NOW, replace(FAR, owner_bytes=held.bytes * 2 // 5), 7):
        pass
    left = [row.id for row in await store.responses.list_responses("alice", 100, NOW)]
    assert sorted(left) == sorted(f"{number}-{turn}" for number in (6, 7, 8, 9) for turn in range(6))
    for id in left:
        await check_whole(store, id, chains[id])
    await check_totals(store)


@on_both_stores
async def test_if_all_owners_have_too_much_the_one_with_the_most_loses_some(store: Store) -> None:
    for owner, count in (("alice", 3), ("bob", 8)):
        for number in range(count):
            row = response(f"resp_{number}", [], [], owner, age=50 if owner == "alice" else number)
            await save(store, row, (), (replace(item(f"msg_{number}"), body=b"x" * 1_000),), ())
    held = await store.responses.measure()
    assert await store.responses.remove_responses(NOW, replace(FAR, total_bytes=held.bytes - 2_000), 10) == 1
    assert (await store.responses.measure("alice")).responses == 3
    left = [row.id for row in await store.responses.list_responses("bob", 10, NOW)]
    assert left == [f"resp_{number}" for number in range(7)]


@on_both_stores
async def test_items_of_an_expired_response_are_not_found_by_their_id(store: Store) -> None:
    chain = await save(store, response("one", [], []), (), A, B)
    await save(store, replace(response("two", [], [], age=-50), base="one"), chain, C, ())
    await save(store, response("three", [], []), (), D, E)
    ids = [one.id for one in (*A, *B, *C, *D, *E)]
    assert [*await store.responses.find_items("alice", ids, NOW + 99)] == ids
    found = await store.responses.find_items("alice", ids, NOW + 100)  # only the second is left, with what it continues
    assert sorted(found) == sorted(one.id for one in (*A, *B, *C))
    assert await store.responses.find_items("alice", ids, NOW + 150) == {}
    assert await store.responses.measure() == Kept()


@on_both_stores
async def test_conversations_are_refused_beyond_number_and_bytes_and_say_which(store: Store) -> None:
    large = tuple(replace(item(f"msg_{number}"), body=b"x" * 10_000) for number in range(3))
    bounds = StorageBounds(per_owner=2, owner_bytes=30_000, total_bytes=45_000)

    async def add(owner: str, id: str, items: Chain) -> Room:
        return await store.responses.add_conversation(ConversationRow(owner, id, NOW, b"{}"), items, bounds)

    assert await add("alice", "conv_1", large[:1]) == Room.FREE
    assert await add("alice", "conv_2", large) == Room.TOO_LARGE
    assert await add("alice", "conv_2", ()) == Room.FREE
    assert await add("alice", "conv_3", ()) == Room.TOO_MANY
    assert await store.responses.append_items(OwnedId("alice", "conv_2"), large[1:2], bounds) == Room.FREE
    assert await store.responses.append_items(OwnedId("alice", "conv_2"), large[2:], bounds) == Room.TOO_LARGE
    assert await add("bob", "conv_1", large[:2]) == Room.FREE
    assert await store.responses.find_room("bob", bounds) == Room.FREE
    full = replace(bounds, total_bytes=41_000)
    assert await store.responses.append_items(OwnedId("bob", "conv_1"), A, full) == Room.FULL
    assert await list_items(store, "alice", "conv_2") == large[1:2]
    assert await store.responses.delete_conversation("alice", "conv_1")
    assert await store.responses.append_items(OwnedId("alice", "conv_2"), large[2:], bounds) == Room.FREE
    await check_totals(store)


def test_what_is_to_be_removed_is_found_by_index(tmp_path: Path) -> None:
    connection = connect(tmp_path / "dragoman.db")
    for statement in (FIND_EXPIRED, FIND_OLDEST, FIND_ENDS, FIND_ABOVE, NEEDS_CLEANING, ENDED_EVENTS):
        places = len({*re.findall(r"\$\d", statement)})
        steps = [str(step[3]) for step in connection.execute(f"EXPLAIN QUERY PLAN {rewrite(statement)}", (1,) * places)]
        scanned = [step for step in steps if step.startswith("SCAN") and step not in ("SCAN held", "SCAN above")]
        assert scanned == [], statement
        if "ORDER BY expires_at" in statement:
            assert not any("TEMP B-TREE" in step for step in steps), statement
    connection.close()
