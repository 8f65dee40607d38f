"""Data that outlives a process, in SQLite or PostgreSQL; counters that gateways share, in Valkey or Redis."""

from dragoman.store.database import DriverMissing, StoreError
from dragoman.store.store import Store, make_store, open_store

__all__ = ["DriverMissing", "Store", "StoreError", "make_store", "open_store"]
