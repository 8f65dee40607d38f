"""A path as a client wrote it comes in; its plain form goes out, and which protocol it belongs to."""

import re

INFERENCE = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}
COUNTS = {"/messages/count_tokens": "messages", "/responses/input_tokens": "responses"}
GEMINI = re.compile(r"/(?:v1beta/)?models/.+:[A-Za-z]*(?:Content|Tokens)|/v1beta/models.*")

_SLASHES = re.compile("/{2,}")


def plain_path(path: str) -> str:
    """A path without its optional, perhaps doubled, version, without doubled slashes and without a trailing one."""
    if "//" in path:
        path = _SLASHES.sub("/", path)
    while path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    return path.rstrip("/") or "/"


def protocol_of(path: str) -> str | None:
    """The protocol that has this plain path or one above it; None where none has."""
    return next((name for above, name in INFERENCE.items() if path.startswith(above)), None)
