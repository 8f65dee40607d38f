"""Requests in both directions: a client's body becomes a hub request, a hub request becomes an upstream's body."""

from dragoman.protocols.messages.build import build
from dragoman.protocols.messages.parse import parse

__all__ = ["build", "parse"]
