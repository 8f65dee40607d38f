"""What a path means: its plain form, and the protocol whose clients ask there."""

import re
from collections.abc import Mapping

from dragoman.hub.ports import Client, GetHeader, Protocol

_SLASHES = re.compile("/{2,}")


def plain_path(path: str) -> str:
    """Return a path without its optional, perhaps doubled, version, doubled slashes and a trailing slash."""
    if "//" in path:
        path = _SLASHES.sub("/", path)
    while path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    return path.rstrip("/") or "/"


def client_at(path: str, protocols: Mapping[str, Protocol], header: GetHeader) -> Client:
    """Return the protocol in which a request to this plain path expects its errors.

    It is the one that serves the path or one above it, else the one that the headers announce, else the first.
    """
    clients = [protocol.client for protocol in protocols.values() if protocol.client is not None]
    serving = (client for client in clients if path.startswith(client.paths))
    announced = (client for client in clients if client.is_announced(header))
    return next(serving, None) or next(announced, None) or clients[0]
