"""How Gemini counts the tokens of a request that was built for it."""

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.protocols.gemini.wire import COUNT, VERTEX


class _Count(Struct, rename="camel"):
    total_tokens: int | None = None


def locate_count(url: str) -> str:
    """Return the address that counts what is posted to this one."""
    return url.rpartition(":")[0] + COUNT


def wrap_for_count(body: bytes, model: str, quirks: frozenset[str]) -> bytes:
    """Return what is posted: the Gemini API takes instructions and tools only within a whole request."""
    if VERTEX in quirks:
        return body
    fields = msgspec.json.decode(body, type=dict[str, Raw])
    return msgspec.json.encode({"generateContentRequest": {"model": f"models/{model}", **fields}})


def read_count(body: bytes) -> int | None:
    return parse_or(body, _Count, _Count()).total_tokens
