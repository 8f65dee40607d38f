"""Captures, found and shown."""
