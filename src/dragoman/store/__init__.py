"""Data that outlives a process: client keys, cut tool calls and usage, in SQLite or PostgreSQL."""

from dragoman.store.store import Store, StoreError, make_store, open_store

__all__ = ["Store", "StoreError", "make_store", "open_store"]
