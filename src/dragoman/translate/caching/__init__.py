"""Prompt caches of upstreams: where marks go, and what is remembered of a session for that."""
