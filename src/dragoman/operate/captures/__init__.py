"""Captures: list, show, export and replay them."""
