"""Passes: pure functions that adapt a request to an upstream, and note every loss in the ledger."""
