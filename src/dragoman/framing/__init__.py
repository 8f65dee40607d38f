"""Bytes and frames: what every wire language is written in, and what may not be shown of it."""
