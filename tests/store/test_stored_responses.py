"""Stored responses and conversations, on SQLite and on PostgreSQL."""

import asyncio
from hashlib import blake2b

from msgspec.structs import replace

from dragoman.store import Store
from dragoman.store.response_rows import (
    DIGEST_BYTES,
    RESPONSE_BYTES,
    ConversationRow,
    ItemRow,
    Kept,
    OwnedId,
    ResponseRow,
    Room,
    StorageBounds,
    TimedLock,
)
from store.stories import on_both_stores

NOW = 1_800_000_000
FAR = StorageBounds(per_owner=10**6, owner_bytes=10**12, total_bytes=10**12)


def item(name: str, hidden: bytes | None = None) -> ItemRow:
    body = b'{"id":"%b"}' % name.encode()
    return ItemRow(blake2b(body, digest_size=DIGEST_BYTES).digest(), name, body, hidden)


def response(id: str, context: list[ItemRow], output: list[ItemRow], owner: str = "alice", age: int = 0) -> ResponseRow:
    return ResponseRow(
        owner=owner,
        id=id,
        created_at=NOW - age,
        expires_at=NOW - age + 100,
        status="completed",
        model="m",
        route="up/m",
        head=b'{"id":"%b"}' % id.encode(),
        context=b"".join(one.digest for one in context),
        output=b"".join(one.digest for one in output),
    )


HELLO, REPLY, MORE, END = item("msg_1"), item("rs_1", b"opaque"), item("msg_2"), item("msg_3")


async def list_items(store: Store, owner: str, conversation: str) -> tuple[ItemRow, ...]:
    loaded = await store.responses.load_conversation(owner, conversation)
    return () if loaded is None else loaded[1]


async def save_chain(store: Store) -> None:
    assert await store.responses.save_response(response("resp_1", [HELLO], [REPLY]), [HELLO, REPLY])
    second = response("resp_2", [HELLO, REPLY, MORE], [END])
    assert await store.responses.save_response(second, [HELLO, REPLY, MORE, END])


@on_both_stores
async def test_a_response_is_found_by_its_owner_until_it_expires(store: Store) -> None:
    await save_chain(store)
    saved = response("resp_1", [HELLO], [REPLY])
    assert await store.responses.find_response("alice", "resp_1", NOW) == saved
    assert await store.responses.find_response("bob", "resp_1", NOW) is None
    assert await store.responses.find_response("alice", "resp_1", NOW + 100) is None
    assert not await store.responses.save_response(saved, [HELLO])
    assert [row.id for row in await store.responses.list_responses("alice", 10, NOW)] == ["resp_2", "resp_1"]
    assert await store.responses.list_responses("bob", 10, NOW) == ()


@on_both_stores
async def test_an_item_is_stored_once_and_goes_with_its_last_reference(store: Store) -> None:
    await save_chain(store)
    assert (await store.responses.measure("alice")).items == 4
    assert await store.responses.load_items("alice", [HELLO.digest, REPLY.digest]) == {
        HELLO.digest: HELLO,
        REPLY.digest: REPLY,
    }
    assert await store.responses.find_items("alice", ["rs_1", "rs_9"], NOW) == {"rs_1": REPLY}
    assert await store.responses.find_items("bob", ["rs_1"], NOW) == {}
    assert not await store.responses.delete_response("bob", "resp_1")
    assert await store.responses.delete_response("alice", "resp_1")
    assert (await store.responses.measure()).items == 4  # the second response refers to all of them
    assert await store.responses.delete_response("alice", "resp_2")
    assert await store.responses.measure() == Kept(0, 0, 0, 0)


@on_both_stores
async def test_many_responses_that_end_together_are_saved_whole_and_a_taken_id_harms_none_of_them(store: Store) -> None:
    taken = response("resp_7", [HELLO], [])
    assert await store.responses.save_response(taken, [HELLO])

    async def save(number: int) -> bool:
        own = item(f"msg_own_{number}")
        owner = "alice" if number % 2 else "bob"
        row = response(f"resp_{number}", [HELLO, HELLO], [own], owner)
        return await store.responses.save_response(row, [HELLO, own])

    saved = await asyncio.gather(*map(save, range(100)))
    assert saved == [number != 7 for number in range(100)]
    assert await store.responses.find_response("alice", "resp_7", NOW) == taken
    kept = await store.responses.measure("alice")
    assert (kept.responses, kept.items) == (50, 50)  # one item is shared by all, and one response has no other
    for number in range(100):
        assert await store.responses.delete_response("alice" if number % 2 else "bob", f"resp_{number}")
    assert await store.responses.measure() == Kept(0, 0, 0, 0)


@on_both_stores
async def test_responses_beyond_time_count_and_bytes_are_removed_oldest_first(store: Store) -> None:
    for number in range(6):
        one = item(f"msg_{number}")
        await store.responses.save_response(response(f"resp_{number}", [one], [], age=number), [one])
    other = item("msg_other")
    await store.responses.save_response(response("resp_0", [other], [], "bob", age=99), [other])
    assert await store.responses.remove_responses(NOW, FAR, 10) == 0
    assert await store.responses.remove_responses(NOW, replace(FAR, per_owner=4), 1) == 1
    assert await store.responses.remove_responses(NOW, replace(FAR, per_owner=4), 10) == 1
    left = [row.id for row in await store.responses.list_responses("alice", 10, NOW)]
    assert left == ["resp_0", "resp_1", "resp_2", "resp_3"]
    assert await store.responses.remove_responses(NOW + 1, FAR, 10) == 1  # bob's has expired
    size = RESPONSE_BYTES + 15 + DIGEST_BYTES + item("msg_0").stored_size
    assert await store.responses.remove_responses(NOW, replace(FAR, owner_bytes=2 * size), 10) == 2
    assert await store.responses.remove_responses(NOW, replace(FAR, total_bytes=size), 10) == 1
    assert (await store.responses.measure()).items == 1


@on_both_stores
async def test_a_conversation_keeps_the_order_of_its_items_and_outlives_responses(store: Store) -> None:
    await store.responses.add_conversation(ConversationRow("alice", "conv_1", NOW, b"{}"), [HELLO], FAR)
    row = replace(response("resp_1", [HELLO, MORE], [REPLY]), conversation="conv_1")
    await store.responses.save_response(row, [HELLO, MORE, REPLY], appended=[MORE.digest, REPLY.digest])
    assert await list_items(store, "alice", "conv_1") == (HELLO, MORE, REPLY)
    assert await list_items(store, "bob", "conv_1") == ()
    assert await store.responses.append_items(OwnedId("bob", "conv_1"), [END], FAR) is None
    assert await store.responses.append_items(OwnedId("alice", "conv_1"), [END], FAR) == Room.FREE
    assert await store.responses.delete_response("alice", "resp_1")
    assert await list_items(store, "alice", "conv_1") == (HELLO, MORE, REPLY, END)
    assert not await store.responses.delete_item("bob", "conv_1", "msg_2")
    assert await store.responses.delete_item("alice", "conv_1", "msg_2")
    assert not await store.responses.delete_item("alice", "conv_1", "msg_2")
    assert await list_items(store, "alice", "conv_1") == (HELLO, REPLY, END)
    assert not await store.responses.set_metadata("bob", "conv_1", b"{}")
    assert await store.responses.set_metadata("alice", "conv_1", b'{"a":"b"}')
    found = await store.responses.find_conversation("alice", "conv_1")
    assert found is not None
    assert found.metadata == b'{"a":"b"}'
    assert not await store.responses.delete_conversation("bob", "conv_1")
    assert await store.responses.delete_conversation("alice", "conv_1")
    assert await store.responses.measure() == Kept(0, 0, 0, 0)
    late = replace(row, id="resp_2")  # its conversation is gone by now
    assert await store.responses.save_response(late, [HELLO, MORE, REPLY], appended=[MORE.digest])
    assert await list_items(store, "alice", "conv_1") == ()


@on_both_stores
async def test_one_run_at_a_time_holds_the_lock_of_a_conversation(store: Store) -> None:
    await store.responses.add_conversation(ConversationRow("alice", "conv_1", NOW, b"{}"), [], FAR)
    first, second = TimedLock("one", NOW + 60), TimedLock("two", NOW + 60)
    assert not await store.responses.lock_conversation(OwnedId("bob", "conv_1"), first, NOW)
    assert await store.responses.lock_conversation(OwnedId("alice", "conv_1"), first, NOW)
    assert await store.responses.lock_conversation(OwnedId("alice", "conv_1"), first, NOW)
    assert not await store.responses.lock_conversation(OwnedId("alice", "conv_1"), second, NOW)
    await store.responses.unlock_conversation(OwnedId("alice", "conv_1"), "two")
    assert not await store.responses.lock_conversation(OwnedId("alice", "conv_1"), second, NOW)
    assert await store.responses.lock_conversation(OwnedId("alice", "conv_1"), second, NOW + 61)  # the lease is over
    await store.responses.unlock_conversation(OwnedId("alice", "conv_1"), "two")
    assert await store.responses.lock_conversation(OwnedId("alice", "conv_1"), first, NOW)


@on_both_stores
async def test_parallel_saves_and_deletes_leave_no_item_behind_and_lose_none(store: Store) -> None:
    async def keep(number: int) -> None:
        row = response(f"resp_{number}", [HELLO, MORE], [REPLY])
        await store.responses.save_response(row, [HELLO, MORE, REPLY])
        if number % 2:
            await store.responses.delete_response("alice", row.id)

    await asyncio.gather(*(keep(number) for number in range(20)))
    assert (await store.responses.measure()).items == 3
    for number in range(0, 20, 2):
        await store.responses.delete_response("alice", f"resp_{number}")
    assert await store.responses.measure() == Kept(0, 0, 0, 0)
