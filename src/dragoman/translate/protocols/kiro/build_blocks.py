"""Read the prompt of a Kiro request: what the newest message has of tools is not kept in the history."""

import msgspec

from dragoman.translate.caching.rendering import (
    KINDS,
    make_list,
    make_settings,
    read_object,
    strip_group,
    strip_marks,
)
from dragoman.translate.hub.caching import BlockGroup, BodyFields
from dragoman.translate.hub.profile import Profile

_STATE = "/conversationState"
_CURRENT = f"{_STATE}/currentMessage"
_TOOLS = f"{_CURRENT}/userInputMessage/userInputMessageContext/tools"
_LIFE_S = 3600.0  # nothing is known


def list_groups(fields: BodyFields) -> list[BlockGroup]:
    state = read_object(fields["conversationState"])
    current = msgspec.json.decode(state["currentMessage"], type=dict[str, dict[str, object]])
    message = current.get("userInputMessage", {})
    context = message.pop("userInputMessageContext", None)
    tools: object = []
    if isinstance(context, dict):
        tools = context.pop("tools", [])
        if context:
            message["userInputMessageContext"] = context
    return [
        BlockGroup(
            "tools", KINDS["tools"], _TOOLS, [_encode(tool) for tool in tools] if isinstance(tools, list) else []
        ),
        make_settings(fields, ("additionalModelRequestFields",)),
        strip_group(make_list("messages", state, "history", _STATE)),
        BlockGroup("messages", KINDS["messages"], _CURRENT, [_encode(current)], is_list=False),
    ]


def find_life_s(fields: BodyFields, profile: Profile) -> float:
    return _LIFE_S


def _encode(value: object) -> bytes:
    return strip_marks(msgspec.json.encode(value))
