"""Copilot: the models of a GitHub account."""
