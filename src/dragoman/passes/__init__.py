"""Requests come in, the same requests fitted to an upstream go out: pure functions, with every loss in the ledger."""
