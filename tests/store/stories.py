"""Run a function with an open store, of each kind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from dragoman.store import Store, open_store

Story = Callable[[Store], Awaitable[None]]

# For what hardly depends on the kind of store: PostgreSQL is left to `make test-rest`.
on_sqlite_first = pytest.mark.parametrize(
    "store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.rest)], indirect=True
)


@asynccontextmanager
async def open_at(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


def run_with_store(url: str, use: Story) -> None:
    async def run() -> None:
        async with open_at(url) as store:
            await use(store)

    asyncio.run(run())


def on_both_stores(story: Story) -> Callable[[str], None]:
    """Make a test of a function that uses a store: it runs with an empty one of each kind."""

    def test(store_url: str) -> None:
        run_with_store(store_url, story)

    return test
