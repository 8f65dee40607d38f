"""Codex: the models of a ChatGPT plan."""
