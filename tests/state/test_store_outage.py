"""A store that is away is logged once, with a reason, and not once for each request."""

import asyncio
import logging
from pathlib import Path

import pytest

from dragoman.config.settings import ResponsesSettings
from dragoman.state.service import ResponseService
from dragoman.store import StoreError, open_store
from dragoman.translate.hub.failure import RequestError


async def test_an_outage_is_logged_once_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/d.db")
    service = ResponseService(store, ResponsesSettings)
    caplog.set_level(logging.INFO)

    async def fail(error: Exception) -> None:
        raise error

    async def ask_many(error: Exception) -> list[str]:
        caplog.clear()
        questions = (service.ask(fail(error)) for _ in range(5))
        assert {type(answer) for answer in await asyncio.gather(*questions, return_exceptions=True)} == {RequestError}
        return [record.getMessage() for record in caplog.records]

    assert await ask_many(TimeoutError()) == ["stored responses cannot be read: no answer within 5 s"]
    assert await ask_many(StoreError("the disk is full")) == []
    assert await service.ask(store.responses.find_response("alice", "resp_1", 0)) is None
    assert caplog.records[-1].getMessage() == "stored responses can be read again"
    assert await ask_many(StoreError("the disk is full")) == ["stored responses cannot be read: the disk is full"]
    await store.close()


async def test_a_store_that_is_known_to_be_out_is_not_waited_for(tmp_path: Path) -> None:
    async with await open_store(f"sqlite:///{tmp_path}/d.db") as store:
        service = ResponseService(store, ResponsesSettings)
        service.is_out = lambda: True
        with pytest.raises(RequestError, match="cannot be reached"):
            await service.ask(asyncio.Event().wait())
        assert (await service.open_call("alice", {"input": "Hi"}, 10)).keeps is False  # which asks the store nothing
