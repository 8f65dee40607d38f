"""Compacted contexts: a summary that a model wrote, sealed in the item that stands for what it summarises."""

import base64
import binascii

import msgspec
from msgspec import Struct

from dragoman.hub.opaque import ENVELOPE_PREFIX
from dragoman.hub.request import Json
from dragoman.protocols.responses.wire import Item

_PREFIX = ENVELOPE_PREFIX + "c."  # an envelope too, so a body that holds one never passes unchanged

INSTRUCTIONS = (
    "You write the hand-over note of a conversation between a user and an assistant that works with tools. Another "
    "assistant will continue from your note alone. State the user's goals and constraints in their own words, the "
    "decisions made and why, what was done and found (names, paths, values, exact errors), what is unfinished, and the "
    "next step. Do not answer the user and do not call tools. Write plain text."
)
REQUEST = "Write the hand-over note for everything above now."
_CARRIED = frozenset(("model", "service_tier", "prompt_cache_key", "safety_identifier"))
_INTRODUCTION = "The conversation so far was compacted to this summary:\n\n"


class Compaction(Struct, frozen=True):
    summary: str
    model: str  # that wrote it
    owner: str  # digest of the tenant it was written for

    @property
    def introduced(self) -> str:
        """Return the text that a model reads."""
        return _INTRODUCTION + self.summary


def seal_compaction(compaction: Compaction) -> str:
    """Return the value of `encrypted_content`."""
    return _PREFIX + base64.urlsafe_b64encode(msgspec.msgpack.encode(compaction)).decode().rstrip("=")


def open_compaction(token: str) -> Compaction | None:
    """Return the compaction that a value holds; None if it is broken or another vendor's."""
    if not token.startswith(_PREFIX):
        return None
    body = token[len(_PREFIX) :]
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Compaction)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def make_summary_request(raw: dict[str, Json], items: list[Json]) -> dict[str, Json]:
    """Return a request to summarise these items, for the model and with the limits of the given request."""
    kept: dict[str, Json] = {key: value for key, value in raw.items() if key in _CARRIED}
    final: Item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": REQUEST}]}
    own = raw.get("instructions")
    given: list[Json] = []
    if isinstance(own, str) and own:
        given.append({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": own}]})
    return {**kept, "instructions": INSTRUCTIONS, "input": [*given, *items, final], "store": False}
