"""A process takes as many background responses as it has room for; the others stay queued for any process."""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec

from dragoman.config.settings import ResponsesSettings
from dragoman.state.background import ActiveRun, BackgroundRuns, RunRequest
from dragoman.state.service import ResponseService
from dragoman.state.stored_call import StoredCall
from dragoman.store import Store, open_store
from dragoman.store.response_rows import QueuedRun
from store.test_runs import make_queued_row
from store.test_stored_responses import HELLO
from waiting import wait_until_async

QUEUED = 6
REQUEST = msgspec.msgpack.encode(RunRequest("key", "req_1", "/v1/responses", "", (), b"{}"))


class Requests:
    """Stands for the requests of a gateway that answers at most so many at the same time."""

    def __init__(self, limit: int) -> None:
        self.room = limit
        self.begun = 0
        self.least_room = limit
        self.may_begin = False
        self.may_end = asyncio.Event()

    async def execute(self, run: ActiveRun, state: StoredCall) -> None:
        self.begun += 1
        self.room -= 1
        self.least_room = min(self.least_room, self.room)
        await self.may_end.wait()
        self.room += 1


async def queue_all(store: Store) -> None:
    for number in range(QUEUED):
        row = make_queued_row(f"resp_{number}")
        assert await store.runs.queue_run(row, QueuedRun(REQUEST, b"a\n\nb\n\n", 1, [HELLO]), QUEUED)


async def count_statuses(store: Store) -> Counter[str]:
    found = [await store.responses.find_response("alice", f"resp_{number}", 0) for number in range(QUEUED)]
    return Counter(row.status for row in found if row is not None)


async def test_only_as_many_are_claimed_as_there_is_room_for(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/d.db")
    await queue_all(store)
    runs = BackgroundRuns(ResponseService(store, ResponsesSettings), store.runs, ResponsesSettings)
    requests = Requests(limit=2)
    runs.start(requests.execute, lambda: requests.room)
    await wait_until_async(lambda: requests.begun == 2)
    assert await count_statuses(store) == {"in_progress": 2, "queued": QUEUED - 2}
    requests.may_end.set()
    await wait_until_async(lambda: requests.begun == QUEUED)
    await runs.drain(30.0, lambda: False)
    assert (requests.room, requests.least_room) == (2, 0)
    await store.close()


async def test_a_claimed_response_waits_while_requests_of_clients_take_its_room(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/d.db")
    await queue_all(store)
    runs = BackgroundRuns(ResponseService(store, ResponsesSettings), store.runs, ResponsesSettings)
    requests = Requests(limit=QUEUED)
    requests.may_end.set()
    rooms = iter([QUEUED])  # when they are claimed; then it is taken
    runs.start(requests.execute, lambda: next(rooms, requests.room if requests.may_begin else 0))
    await wait_until_async(lambda: runs.running == QUEUED)
    assert (requests.begun, await count_statuses(store)) == (0, {"in_progress": QUEUED})
    requests.may_begin = True
    await wait_until_async(lambda: requests.begun == QUEUED)
    await runs.drain(30.0, lambda: False)
    await store.close()
