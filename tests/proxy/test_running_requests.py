"""Requests under way are ended by their keys, whichever task asks for it."""

import asyncio

import pytest

from dragoman.net.headers import Headers
from dragoman.net.sink import CollectorSink
from dragoman.proxy.request_record import RequestRecord
from dragoman.proxy.running_requests import KEY_REVOKED, RunningRequests, find_cause
from dragoman.translate.hub.failure import Kind, RequestError


async def test_the_requests_of_a_key_end_and_no_others() -> None:
    running = RunningRequests()

    async def answer(key: str) -> None:
        record, sink = RequestRecord(key, "chat", Headers([]), key=key), CollectorSink()
        running[record] = key, sink.task
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as fault:
            cause = find_cause(fault, sink)
            assert cause is not None
            raise cause from None
        finally:
            del running[record]

    async with asyncio.timeout(10):
        out, stays = asyncio.create_task(answer("out")), asyncio.create_task(answer("stays"))
        await asyncio.sleep(0)  # both have begun
        running.cancel_of_keys({"out", "nobody"})
        with pytest.raises(RequestError) as ended:
            await out
        assert ended.value.failure is KEY_REVOKED
        assert ended.value.failure.kind is Kind.AUTH
        assert not stays.done()
        running.cancel_of_keys({"out"})
        await asyncio.sleep(0)
        assert not stays.done()
        stays.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stays
