"""Read the prompt of a Chat request as OpenAI does, and servers that compare prefixes."""

from dragoman.translate.caching.rendering import find_implicit_life, make_list, make_messages, make_settings
from dragoman.translate.hub.caching import BlockGroup, BodyFields
from dragoman.translate.hub.ports import PromptReader

_SETTINGS = ("parallel_tool_calls", "response_format", "reasoning_effort", "verbosity", "service_tier")


def list_groups(fields: BodyFields) -> list[BlockGroup]:
    system, messages = make_messages(fields, "messages")
    return [make_list("tools", fields, "tools"), system, make_settings(fields, _SETTINGS), messages]


PROMPTS = PromptReader(list_groups, find_implicit_life)
