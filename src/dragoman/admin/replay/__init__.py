"""Captured exchanges, run again."""
