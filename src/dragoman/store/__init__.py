"""What outlives a process: keys today, on SQLite."""

from dragoman.store.sqlite import Store, StoreError, open_store

__all__ = ["Store", "StoreError", "open_store"]
