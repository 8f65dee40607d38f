"""What outlives a process: client keys, cut calls and usage, on SQLite or PostgreSQL."""

from dragoman.store.opening import make_store, open_store
from dragoman.store.store import Store, StoreError

__all__ = ["Store", "StoreError", "make_store", "open_store"]
