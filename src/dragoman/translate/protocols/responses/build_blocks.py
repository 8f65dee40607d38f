"""Read the prompt of a Responses request as OpenAI does."""

from dragoman.translate.caching.rendering import Body, make_content, make_list, make_messages, make_settings
from dragoman.translate.hub.caching import RenderedGroup

_SETTINGS = ("parallel_tool_calls", "text", "reasoning", "service_tier")


def list_groups(fields: Body) -> list[RenderedGroup]:
    groups = [make_list("tools", fields, "tools")]
    if "instructions" in fields:
        groups.append(make_content("system", "system", "/instructions", fields["instructions"]))
    system, messages = make_messages("/input", fields["input"])
    return [*groups, system, *make_settings(fields, _SETTINGS), messages]
