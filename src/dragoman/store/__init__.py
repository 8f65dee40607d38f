"""Data that outlives a process: client keys, cut tool calls, usage and the audit log, in SQLite or PostgreSQL."""

from dragoman.store.store import DriverMissing, Store, StoreError, make_store, open_store

__all__ = ["DriverMissing", "Store", "StoreError", "make_store", "open_store"]
