"""Join the beginning of a tool call's arguments with what the model sent as their rest."""

import re

import jsonschema_rs
import msgspec

from dragoman.hub.request import Json

FENCE = re.compile(r"\A\s*```[a-zA-Z]*\n?(.*?)\n?```\s*\Z", re.DOTALL)
FENCE_IN_PROSE = re.compile(r"^```[a-zA-Z]*\n(.*)\n```", re.DOTALL | re.MULTILINE)
MAX_OVERLAP = 400
REPEATED = 8  # characters in common that are no coincidence


def join_arguments(begun: str, rest: str, schema: Json) -> str | None:
    """The first reading of `rest` that completes the arguments and satisfies the tool's schema."""
    fenced = FENCE.match(rest)
    texts = [rest, rest.strip()]
    if fenced:
        texts.insert(0, fenced.group(1))
    elif spoken := FENCE_IN_PROSE.search(rest):
        texts.append(spoken.group(1))
    for text in dict.fromkeys(texts):
        readings = [begun + text, begun + text[_overlap(begun, text) :], text]
        if _overlap(begun, text) >= REPEATED:
            readings[:2] = readings[1::-1]
        for whole in readings:
            if satisfies(whole, schema):
                return whole
    return None


def satisfies(arguments: str, schema: Json) -> bool:
    """Whether these are the whole arguments of a call: an object that the tool's schema accepts."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    if not isinstance(value, dict):
        return False
    if not isinstance(schema, dict):
        return True
    try:
        # Offline: a client's schema must not make the gateway fetch an address.
        return bool(jsonschema_rs.is_valid(schema, value, offline=True))
    except ValueError:  # the schema itself is wrong: nothing to hold the value against
        return True


def _overlap(begun: str, text: str) -> int:
    """How many characters the model repeated before it went on."""
    longest = min(len(begun), len(text), MAX_OVERLAP)
    return next((size for size in range(longest, 0, -1) if begun.endswith(text[:size])), 0)
