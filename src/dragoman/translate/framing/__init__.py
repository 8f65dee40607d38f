"""Bytes and frames: SSE, AWS event streams, JSON text, and the redaction of secrets."""
