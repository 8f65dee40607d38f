"""Anthropic's own API."""
