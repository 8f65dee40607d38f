"""Read the prompt of a Messages request as Anthropic does."""

from collections.abc import Iterator

import msgspec
from msgspec import Raw

from dragoman.translate.caching.branches import checksum_kind
from dragoman.translate.caching.rendering import (
    make_content,
    make_list,
    make_settings,
    read_list,
    read_object,
)
from dragoman.translate.hub.caching import FIVE_MINUTES, LIFE_S, ONE_HOUR, BlockGroup, BodyFields
from dragoman.translate.hub.profile import Profile
from dragoman.translate.protocols.messages.build_cache import SETTINGS
from dragoman.translate.protocols.messages.wire import Wire

_EMPTY = Raw(b'""')
_LONG = (b'"ttl":"1h"', b'"ttl": "1h"')


def list_groups(fields: BodyFields) -> list[BlockGroup]:
    groups = [make_list("tools", fields, "tools")]
    if "system" in fields:
        groups.append(make_content("system", "/system", fields["system"]))
    groups.append(make_settings(fields, SETTINGS))
    for number, message in enumerate(read_list(fields["messages"])):
        parts = read_object(message)
        kind = checksum_kind(str(msgspec.json.decode(parts.get("role", _EMPTY))))
        groups.append(make_content("messages", f"/messages/{number}/content", parts.get("content", _EMPTY), kind))
    return groups


def find_life_s(fields: BodyFields, profile: Profile) -> float:
    is_long = any(long in bytes(value) for value in fields.values() for long in _LONG)
    return LIFE_S[ONE_HOUR if is_long else FIVE_MINUTES]


def list_marks(body: bytes) -> list[int]:
    """Return which blocks are marked; a mark of the whole request is one of its last block."""
    wire: Wire = msgspec.json.decode(body)
    marked = [is_marked for group in _list_flags(wire) for is_marked in group]
    if marked and wire.get("cache_control") is not None:
        marked[-1] = True
    return [index for index, is_marked in enumerate(marked) if is_marked]


def _list_flags(wire: Wire) -> Iterator[list[bool]]:
    """Yield whether each block of a group is marked, for the groups of `list_groups`."""
    yield _flag(wire.get("tools") or [])
    if "system" in wire:
        yield _flag(wire["system"])
    yield [False] * len(SETTINGS)
    messages = wire["messages"]
    for message in messages if isinstance(messages, list) else ():
        yield _flag(message.get("content", ""))


def _flag(content: object) -> list[bool]:
    if not isinstance(content, list):
        return [False]
    return [isinstance(block, dict) and block.get("cache_control") is not None for block in content]
