"""A request that names a run or repeats one gets its reply; a run outlives its client and never waits for it."""

import asyncio
from collections.abc import Sequence

import pytest

from dragoman.net.headers import Header
from dragoman.net.sink import CollectorSink, SinkPhase
from dragoman.proxy.run_headers import choose_policy
from dragoman.proxy.serve import serve
from dragoman.proxy.steps.find_run import find_same
from dragoman.proxy.steps.parked_runs import ParkedRuns, open_run
from dragoman.proxy.steps.read_body import read_body
from dragoman.state.parked_sink import ParkedSink
from dragoman.translate.hub.failure import Kind, RequestError
from proxy.in_memory import CHAT, make_world
from proxy.steps.story_rig import StoryRig, new_call
from waiting import wait_until_async

KEY = [(b"idempotency-key", b"k")]
OTHER = CHAT.replace(b"{", b'{"top_p":0.5,', 1)


async def open_tee(parked: ParkedRuns, headers: Sequence[Header] = KEY) -> tuple[ParkedSink, CollectorSink]:
    call, client = new_call(headers=headers), CollectorSink()
    await read_body(call, make_world())
    assert await find_same(parked, call, "park") is None
    tee = open_run(parked, call, client).__enter__()
    assert isinstance(tee, ParkedSink)
    return tee, client


async def test_a_call_that_ends_with_its_client_has_no_run() -> None:
    rig, call, client = StoryRig(), new_call(), CollectorSink()
    await read_body(call, rig.gateway.runtime)
    assert choose_policy(call.headers, rig.parked.settings()) is None
    with open_run(rig.parked, call, client) as sink:
        assert sink is client
    assert len(rig.parked.index) == 0


async def test_a_run_goes_on_without_its_client_and_its_capture_gets_all() -> None:
    tee, client = await open_tee(StoryRig().parked)
    client.listener = listener = CollectorListener()
    tee.begin(200, [(b"content-type", b"text/event-stream")])
    assert tee.write(b"data: 1\n\n")
    client.reader_gone = True
    assert tee.write(b"data: 2\n\n")
    tee.end(b"data: 3\n\n")
    assert client.body == b"data: 1\n\n"
    assert listener.body == b"data: 1\n\ndata: 2\n\ndata: 3\n\n"
    assert (tee.phase, client.phase) == (SinkPhase.ENDED, SinkPhase.SENT)


async def test_a_run_waits_for_its_first_client_only_while_that_is_there() -> None:
    run, _ = await open_tee(StoryRig().parked)
    slow = SlowSink()
    tee = ParkedSink(run._run, slow, lambda run, size: None)
    tee.begin(200, [])
    assert not tee.write(b"x")
    waiting = asyncio.create_task(tee.wait_writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    slow.reader_gone = True
    slow.may_write.set()
    await waiting
    assert tee.write(b"y")


async def test_a_request_with_the_same_key_gets_the_same_reply_and_is_not_paid_twice() -> None:
    rig, first, second = StoryRig(), CollectorSink(), CollectorSink()
    rig.may_answer.clear()
    answering = asyncio.create_task(serve(rig.services, new_call(headers=KEY), first))
    await wait_until_async(lambda: bool(rig.sent))
    joining = asyncio.create_task(serve(rig.services, new_call(headers=KEY), second))
    await wait_until_async(lambda: rig.parked.joined["key"] == 1)
    rig.may_answer.set()
    await asyncio.gather(answering, joining)
    assert first.body == second.body
    assert len(rig.sent) == 1
    assert dict(first.headers)[b"x-dragoman-run"] == dict(second.headers)[b"x-dragoman-run"]


async def test_another_request_with_the_same_key_is_refused() -> None:
    rig = StoryRig()
    await serve(rig.services, new_call(headers=KEY), CollectorSink())
    with pytest.raises(RequestError) as refused:
        await serve(rig.services, new_call(body=OTHER, headers=KEY), CollectorSink())
    assert refused.value.failure.kind is Kind.CONFLICT


async def test_a_run_that_is_refused_is_forgotten() -> None:
    rig = StoryRig()
    with pytest.raises(RequestError):
        await serve(rig.services, new_call(body=b'{"model":"none","messages":[]}', headers=KEY), CollectorSink())
    assert len(rig.parked.index) == 0


async def test_a_request_that_names_no_known_run_is_refused_before_its_body_is_read() -> None:
    rig, call = StoryRig(), new_call(headers=[(b"x-dragoman-resume", b"run_" + b"0" * 48 + b":-1")])
    with pytest.raises(RequestError) as refused:
        await serve(rig.services, call, CollectorSink())
    assert refused.value.failure.code == "run_not_found"
    assert call.body == b""


class CollectorListener:
    def __init__(self) -> None:
        self.body = b""

    def on_head(self, status: int, headers: Sequence[Header]) -> None:
        return

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_end(self) -> None:
        return


class SlowSink(CollectorSink):
    """A client that reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = asyncio.Event()

    def write(self, data: bytes) -> bool:
        super().write(data)
        return False

    async def wait_writable(self) -> None:
        await self.may_write.wait()
        await super().wait_writable()
