"""What requests refer to, background responses, compactions and replies that are sent again share one memory budget."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from asking import Reply
from dragoman.config.settings import ResponsesSettings
from dragoman.net.errors import BufferBudgetExceeded, ClientDisconnected
from dragoman.net.sink import CollectorSink
from dragoman.proxy.call import Call
from dragoman.proxy.steps.restore_state import RestoredState
from dragoman.state.conversations import Conversations
from dragoman.state.service import ResponseService
from dragoman.state.stored_call import StoredCall
from dragoman.store import open_store
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from fakes.upstream import Gate
from proxy.in_memory import make_call
from raw_http import dial, request_bytes
from rig import ONCE
from scripting import write_reply
from state.state_rig import StateRig, state_rigged
from tables import each_row
from waiting import wait_until

MEBIBYTE = 1 << 20
SMALL = ONCE + "[server]\nmax_buffered_mb = 2\n"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateRig]:
    with state_rigged(tmp_path_factory.mktemp("memory"), SMALL) as shared:
        yield shared


def count_held(rig: StateRig) -> int:
    return rig.gateway.app.server._service.budget.held


def wait_until_free(rig: StateRig) -> None:
    wait_until(lambda: count_held(rig) == 0)


def respond(rig: StateRig, size: int, path: str = "/responses", retry_key: str = "", **fields: object) -> Reply:
    """Ask with an input of this size."""
    headers = {"idempotency-key": retry_key} if retry_key else {}
    return rig.http("POST", path, body={"model": "chat/m", "input": "x" * size, **fields}, headers=headers)


def assert_busy(reply: Reply) -> None:
    assert reply.status == 503, reply.body[:300]
    assert "server.max_buffered_mb" in reply.json["error"]["message"]


@contextmanager
def uploading(rig: StateRig, size: int) -> Iterator[None]:
    """A client that has sent this much of its request."""
    with dial(rig.port) as sock:
        sock.sendall(request_bytes("/v1/chat/completions", b"x" * 2 * MEBIBYTE)[: size + 300])
        wait_until(lambda: count_held(rig) >= size - 2 * 65536)
        yield
    wait_until_free(rig)


def test_what_a_request_refers_to_is_counted(rig: StateRig) -> None:
    rig.play("chat", "Hello.")
    first = respond(rig, MEBIBYTE).json["id"]
    wait_until_free(rig)
    assert_busy(respond(rig, MEBIBYTE + MEBIBYTE // 4, previous_response_id=first))
    assert_busy(respond(rig, MEBIBYTE + MEBIBYTE // 4, "/responses/input_tokens", previous_response_id=first))
    wait_until_free(rig)
    assert respond(rig, 10, previous_response_id=first).status == 200
    wait_until_free(rig)


def test_the_request_for_a_summary_is_counted(rig: StateRig) -> None:
    rig.play("chat", "Hello.")
    assert_busy(respond(rig, MEBIBYTE + MEBIBYTE // 4, "/responses/compact"))
    wait_until_free(rig)
    assert respond(rig, MEBIBYTE // 2, "/responses/compact").status == 200
    wait_until_free(rig)


def test_a_background_response_is_counted_while_it_runs(rig: StateRig) -> None:
    opened = threading.Event()
    rig.play("chat", replace(write_reply("chat", "Hello.", stream=False), gate=Gate(opened, at=-1)))
    queued = respond(rig, MEBIBYTE + MEBIBYTE // 4, background=True).json["id"]
    wait_until(lambda: rig.calls("chat"))
    wait_until(lambda: MEBIBYTE < count_held(rig) < 2 * MEBIBYTE)  # the request that queued it has ended
    assert_busy(respond(rig, MEBIBYTE))
    opened.set()
    assert rig.wait_for_end(queued)["status"] == "completed"
    wait_until_free(rig)


def test_a_background_response_waits_until_there_is_memory(rig: StateRig) -> None:
    rig.play("chat", "Hello.")
    assert rig.gateway.app._responses is not None
    runs = rig.gateway.app._responses.background.runs
    runs.stop_taking()
    queued = respond(rig, MEBIBYTE, background=True).json["id"]
    wait_until_free(rig)
    with uploading(rig, MEBIBYTE + MEBIBYTE // 2):
        runs._is_taking = True
        wait_until(lambda: runs.running == 1)
        wait_until(lambda: all(active.is_waiting and active.state is None for active in runs._active.values()))
        assert rig.calls("chat") == []
    assert rig.wait_for_end(queued)["status"] == "completed"
    wait_until_free(rig)


def test_a_background_response_that_never_fits_into_memory_fails(rig: StateRig) -> None:
    rig.play("chat", "Hello.")
    assert rig.gateway.app._responses is not None
    runs, budget = rig.gateway.app._responses.background.runs, rig.gateway.app._budget
    runs.stop_taking()
    queued = respond(rig, MEBIBYTE, background=True).json["id"]
    wait_until_free(rig)
    budget.limit = MEBIBYTE // 2  # as after an edit of the configuration
    try:
        runs._is_taking = True
        ended = rig.wait_for_end(queued)
    finally:
        budget.limit = 2 * MEBIBYTE
    assert (ended["status"], "server.max_buffered_mb" in str(ended["error"])) == ("failed", True)


def test_a_whole_reply_that_is_sent_again_is_counted(rig: StateRig) -> None:
    rig.play("chat", "x" * MEBIBYTE)
    assert respond(rig, 10, retry_key="again", store=False).status == 200
    with uploading(rig, MEBIBYTE + MEBIBYTE // 2):
        assert_busy(respond(rig, 10, retry_key="again", store=False))
    assert respond(rig, 10, retry_key="again", store=False).status == 200
    assert len(rig.calls("chat")) == 1


FAULTS: list[BaseException | None] = [
    None,
    RequestError(Failure(Kind.UPSTREAM, "The upstream failed.")),
    ValueError("a bug"),
    BufferBudgetExceeded("no room"),
    ClientDisconnected(),
    asyncio.CancelledError(),
]


@each_row("fault", FAULTS)
def test_a_conversation_is_free_however_a_request_ends(fault: BaseException | None, tmp_path: Path) -> None:
    asyncio.run(end_with(fault, tmp_path))


class FoundState:
    """A state that was opened already."""

    def __init__(self, state: StoredCall) -> None:
        self._state = state

    def concerns(self, call: Call) -> bool:
        return True

    async def open(self, call: Call) -> StoredCall:
        return self._state

    def close(self, call: Call, state: StoredCall, *, is_answered: bool) -> None:
        return


async def end_with(fault: BaseException | None, directory: Path) -> None:
    store = await open_store(f"sqlite:///{directory}/store.db")
    service = ResponseService(store, ResponsesSettings)
    id = json.loads(await Conversations(service).create("alice", {}))["id"]
    raw = {"model": "chat/m", "input": "Hi", "conversation": id}
    state = await service.open_call("alice", raw, 100)
    with pytest.raises(BadRequest, match="Another process"):
        await service.open_call("alice", raw, 100)
    call = make_call("responses", b'{"model":"chat/m","input":"Hi"}')
    with suppress(BaseException):
        async with RestoredState(FoundState(state), call, CollectorSink()):
            if fault is not None:
                raise fault
    again = await open_later(service, raw)
    await again.release()
    assert "conversation lock" not in [task.get_name() for task in asyncio.all_tasks() if not task.cancelling()]
    await store.close()


async def open_later(service: ResponseService, raw: dict[str, object]) -> StoredCall:
    """Open a call on a conversation that is released in the background."""
    while True:
        try:
            return await service.open_call("alice", raw, 100)
        except BadRequest:
            await asyncio.sleep(0.005)
