"""The store on SQLite: one connection on one thread."""
