"""Background responses and their events, on SQLite and on PostgreSQL."""

import asyncio

from msgspec.structs import replace

from dragoman.store import Store
from dragoman.store.response_rows import (
    BACKGROUND_STREAM,
    ConversationRow,
    Ending,
    EventChunk,
    FinishedRun,
    Kept,
    OwnedId,
    QueuedRun,
    ResponseRow,
    RunEvents,
    RunRow,
    TimedLock,
)
from store.stories import on_both_stores, open_at, run_with_store
from store.test_stored_responses import FAR, HELLO, NOW, REPLY, list_items, response

MOST = 100


def make_queued_row(id: str, owner: str = "alice") -> ResponseRow:
    return replace(response(id, [HELLO], [], owner), status="queued", mode=BACKGROUND_STREAM)


async def queue(store: Store, id: str, owner: str = "alice", most: int = MOST) -> bool:
    run = QueuedRun(b"request of " + id.encode(), b"first\n\nsecond\n\n", 1)
    return await store.runs.queue_run(make_queued_row(id, owner), replace(run, items=[HELLO]), most)


async def claim(store: Store, token: str, per_owner: int = MOST) -> RunRow | None:
    return next(iter(await store.runs.claim_runs([token], NOW + 10, per_owner)), None)


async def status(store: Store, id: str, owner: str = "alice") -> str:
    row = await store.responses.find_response(owner, id, NOW)
    assert row is not None
    return row.status


@on_both_stores
async def test_a_queued_response_is_claimed_once_and_ends_once(store: Store) -> None:
    assert await queue(store, "resp_1")
    run = await claim(store, "token")
    assert run is not None
    assert (run.row.id, run.row.status, run.request) == ("resp_1", "in_progress", b"request of resp_1")
    assert await claim(store, "other") is None
    done = replace(run.row, status="completed", route="up/n", head=b'{"done":1}', output=REPLY.digest)
    last = EventChunk(2, 2, b"last\n\n")
    assert not await store.runs.finish_run(FinishedRun("other", done, [REPLY], (), [last]), NOW)
    assert await store.runs.finish_run(FinishedRun("token", done, [REPLY], (), [last]), NOW)
    assert not await store.runs.finish_run(FinishedRun("token", done, [REPLY], (), [last]), NOW)
    assert not await store.runs.end_run(OwnedId("alice", "resp_1"), Ending("cancelled", b"{}"), NOW)
    assert await store.responses.find_response("alice", "resp_1", NOW) == done
    events = await store.runs.load_events(OwnedId("alice", "resp_1"), 0, 10)
    assert (events.chunks, events.is_running) == ((EventChunk(0, 1, b"first\n\nsecond\n\n"), last), False)
    assert (await store.runs.load_events(OwnedId("bob", "resp_1"), -1, 10)).chunks == ()
    assert await store.responses.delete_response("alice", "resp_1")
    assert await store.responses.measure() == Kept(0, 0, 0, 0)
    assert (await store.runs.load_events(OwnedId("alice", "resp_1"), -1, 10)).chunks == ()


@on_both_stores
async def test_cancelling_adds_the_last_event_after_those_that_are_stored_and_stops_further_ones(store: Store) -> None:
    await queue(store, "resp_1")
    await claim(store, "token")
    await store.runs.add_events([RunEvents("token", EventChunk(2, 4, b"2-4"))], NOW)
    ending = Ending("cancelled", b"{}", lambda number: b"event %d" % number)
    assert not await store.runs.end_run(OwnedId("bob", "resp_1"), ending, NOW)
    assert await store.runs.find_claims(["token", "other"]) == {"token"}
    assert await store.runs.end_run(OwnedId("alice", "resp_1"), ending, NOW)
    assert await store.runs.find_claims(["token"]) == frozenset()
    assert await store.runs.extend_claims(["token"], NOW + 20) == frozenset()
    await store.runs.add_events([RunEvents("token", EventChunk(5, 5, b"late"))], NOW)
    events = await store.runs.load_events(OwnedId("alice", "resp_1"), 1, 10)
    assert [chunk.body for chunk in events.chunks] == [b"2-4", b"event 5"]
    assert await status(store, "resp_1") == "cancelled"


@on_both_stores
async def test_a_claim_is_lost_when_it_is_not_extended(store: Store) -> None:
    for id in ("resp_1", "resp_2", "resp_3"):
        await queue(store, id)
    for token in ("kept", "lost"):
        await claim(store, token)
    assert await store.runs.extend_claims(["kept"], NOW + 20) == {"kept"}
    assert await store.runs.list_lost_runs(NOW + 9, 10) == ()
    [lost] = await store.runs.list_lost_runs(NOW + 10, 10)
    assert (lost.row.id, lost.token) == ("resp_2", "lost")
    assert not await store.runs.end_run(OwnedId("alice", "resp_1"), Ending("failed", b"{}", None, NOW + 10), NOW)
    assert not await store.runs.end_run(OwnedId("alice", "resp_3"), Ending("failed", b"{}", None, NOW + 10), NOW)
    assert await store.runs.end_run(OwnedId("alice", "resp_2"), Ending("failed", b"{}", None, NOW + 10), NOW)
    assert [await status(store, f"resp_{number}") for number in (1, 2, 3)] == ["in_progress", "failed", "queued"]


@on_both_stores
async def test_one_owner_can_neither_fill_the_queue_nor_keep_others_waiting(store: Store) -> None:
    assert [await queue(store, f"resp_{number}", most=3) for number in range(4)] == [True, True, True, False]
    assert await queue(store, "resp_b", "bob", most=3)
    claimed = [await claim(store, str(number), 2) for number in range(5)]
    assert [run and run.row.id for run in claimed] == ["resp_0", "resp_1", "resp_b", None, None]


def test_claims_of_many_processes_never_meet(store_url: str) -> None:
    async def use(store: Store) -> None:
        for number in range(20):
            await queue(store, f"resp_{number}", owner="alice" if number % 2 else "bob")

        async def take(name: str) -> list[str]:
            async with open_at(store_url) as own:
                taken: list[str] = []
                while runs := await own.runs.claim_runs([f"{name}{len(taken)}{n}" for n in range(3)], NOW + 10, MOST):
                    taken += [run.row.id for run in runs]
                return taken

        taken = await asyncio.gather(*map(take, ("a", "b", "c")))
        assert sorted(id for ids in taken for id in ids) == sorted(f"resp_{number}" for number in range(20))

    run_with_store(store_url, use)


@on_both_stores
async def test_a_conversation_is_locked_until_its_background_response_ends(store: Store) -> None:
    await store.responses.add_conversation(ConversationRow("alice", "conv_1", NOW, b"{}"), [], FAR)
    row = replace(make_queued_row("resp_1"), conversation="conv_1")
    await store.runs.queue_run(row, QueuedRun(b"", items=[HELLO]), MOST)
    lock = TimedLock("x", NOW + 60)
    assert not await store.responses.lock_conversation(OwnedId("alice", "conv_1"), lock, NOW)
    await claim(store, "token")
    done = replace(row, status="completed", output=REPLY.digest)
    await store.runs.finish_run(FinishedRun("token", done, [REPLY], [HELLO.digest, REPLY.digest], ()), NOW)
    assert await list_items(store, "alice", "conv_1") == (HELLO, REPLY)
    assert await store.responses.lock_conversation(OwnedId("alice", "conv_1"), lock, NOW)


@on_both_stores
async def test_events_are_removed_some_time_after_the_end_or_when_they_are_too_many(store: Store) -> None:
    for id in ("resp_1", "resp_2"):
        await queue(store, id)
    await claim(store, "token")
    await store.runs.add_events([RunEvents("token", EventChunk(2, 9, b""))], NOW)
    assert (await store.runs.load_events(OwnedId("alice", "resp_1"), -1, 10)).chunks == ()
    await store.runs.end_run(OwnedId("alice", "resp_1"), Ending("failed", b"{}", lambda number: b"%d" % number), NOW)
    assert (await store.runs.load_events(OwnedId("alice", "resp_1"), -1, 10)).chunks == (EventChunk(10, 10, b"10"),)
    assert await store.runs.remove_events(NOW, 10) == 0
    assert await store.runs.remove_events(NOW + 1, 10) == 1  # the other response has not ended
    assert (await store.runs.load_events(OwnedId("alice", "resp_2"), -1, 10)).is_running
    assert await store.responses.remove_responses(NOW, replace(FAR, per_owner=0), 10) == 1
    assert await status(store, "resp_2") == "queued"
