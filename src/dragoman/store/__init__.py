"""Data that outlives a process: client keys, cut tool calls, usage and the audit log, in SQLite or PostgreSQL."""

from dragoman.store.database import DriverMissing, StoreError
from dragoman.store.store import Store, make_store, open_store

__all__ = ["DriverMissing", "Store", "StoreError", "make_store", "open_store"]
