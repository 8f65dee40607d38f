"""Read the prompt of a Responses request as OpenAI does."""

from dragoman.translate.caching.rendering import (
    find_implicit_life,
    make_content,
    make_list,
    make_messages,
    make_settings,
)
from dragoman.translate.hub.caching import BlockGroup, BodyFields
from dragoman.translate.hub.ports import PromptReader

_SETTINGS = ("parallel_tool_calls", "text", "reasoning", "service_tier")


def list_groups(fields: BodyFields) -> list[BlockGroup]:
    groups = [make_list("tools", fields, "tools")]
    if "instructions" in fields:
        groups.append(make_content("system", "/instructions", fields["instructions"]))
    system, messages = make_messages(fields, "input")
    return [*groups, system, make_settings(fields, _SETTINGS), messages]


PROMPTS = PromptReader(list_groups, find_implicit_life)
