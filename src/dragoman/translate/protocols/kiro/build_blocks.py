"""Read the prompt of a Kiro request: what the newest message has of tools is not kept in the history."""

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.caching.rendering import KINDS, make_settings, strip_group, strip_marks
from dragoman.translate.hub.caching import BlockGroup, BodyFields
from dragoman.translate.hub.profile import Profile

_STATE = "/conversationState"
_CURRENT = f"{_STATE}/currentMessage"
_TOOLS = f"{_CURRENT}/userInputMessage/userInputMessageContext/tools"
_LIFE_S = 3600.0  # nothing is known


class _State(Struct, rename="camel"):
    current_message: dict[str, dict[str, object]]
    history: list[Raw] = []


_state = msgspec.json.Decoder(_State)


def list_groups(fields: BodyFields) -> list[BlockGroup]:
    state = _state.decode(fields["conversationState"])
    message = state.current_message.get("userInputMessage", {})
    context = message.pop("userInputMessageContext", None)
    tools: object = []
    if isinstance(context, dict):
        tools = context.pop("tools", [])
        if context:
            message["userInputMessageContext"] = context
    offered = [_encode(tool) for tool in tools] if isinstance(tools, list) else []
    return [
        BlockGroup("tools", KINDS["tools"], _TOOLS, offered),
        make_settings(fields, ("additionalModelRequestFields",)),
        strip_group(BlockGroup("messages", KINDS["messages"], f"{_STATE}/history", state.history)),
        BlockGroup("messages", KINDS["messages"], _CURRENT, [_encode(state.current_message)], is_list=False),
    ]


def find_life_s(fields: BodyFields, profile: Profile) -> float:
    return _LIFE_S


def _encode(value: object) -> bytes:
    return strip_marks(msgspec.json.encode(value))
