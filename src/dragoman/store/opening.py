"""The url of a store comes in; the store goes out."""

from pathlib import Path

from dragoman.store.store import Store, StoreError

SQLITE = "sqlite:///"
POSTGRESQL = "postgresql://"


async def open_store(url: str) -> Store:
    """Opens what `store.url` names, making file, directory and tables if need be."""
    store = make_store(url)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


def make_store(url: str) -> Store:
    """The same, not opened yet: it opens with the first thing asked of it."""
    if url.startswith(POSTGRESQL):
        from dragoman.store.postgres.store import PostgresStore  # slow to load, and most need it not

        return PostgresStore(url)
    if url.startswith(SQLITE):
        from dragoman.store.sqlite.store import SqliteStore

        return SqliteStore(Path(url.removeprefix(SQLITE)).expanduser())
    raise StoreError(f"store.url: expected {SQLITE}PATH or {POSTGRESQL}USER@HOST/NAME")
