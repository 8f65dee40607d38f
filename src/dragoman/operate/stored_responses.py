"""List, show and delete the responses that the gateway keeps, of all client keys."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from dragoman.config.settings import Config
from dragoman.operate import NotFound
from dragoman.state.service import ResponseService
from dragoman.store import Store, open_store
from dragoman.store.response_rows import Kept, ResponseRow
from dragoman.translate.hub.request import Json


@asynccontextmanager
async def open_stored(config: Config) -> "AsyncIterator[StoredResponses]":
    """Open the responses in the configured store."""
    async with await open_store(config.store.url) as store:
        yield StoredResponses(store, config)


class StoredResponses:
    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._service = ResponseService(store, lambda: config.responses)

    async def list(self, key: str | None, limit: int) -> tuple[ResponseRow, ...]:
        """Return the newest responses, of one client key or of all."""
        return await self._store.responses.list_responses(key, limit, int(time.time()))

    async def measure(self) -> Kept:
        return await self._store.responses.measure()

    async def show(self, id: str) -> dict[str, Json]:
        """Return a response as its client sees it. Raises NotFound."""
        row = await self._find(id)
        if row.keeper:
            return {"id": row.id, "object": "response", "kept_by": row.keeper}
        return msgspec.json.decode(await self._service.render(row), type=dict[str, Json])

    async def delete(self, id: str) -> None:
        """Delete a response; where its provider keeps it, only our note of it. Raises NotFound."""
        row = await self._find(id)
        await self._store.responses.delete_response(row.owner, row.id)

    async def _find(self, id: str) -> ResponseRow:
        for row in await self._store.responses.find_of_any_owner(id, int(time.time())):
            return row
        raise NotFound(f"There is no stored response {id!r}. Run: dragoman responses list")
