"""Read the prompt of a Chat request as OpenAI does, and servers that compare prefixes."""

from dragoman.translate.caching.rendering import Body, make_list, make_messages, make_settings
from dragoman.translate.hub.caching import RenderedGroup

_SETTINGS = ("parallel_tool_calls", "response_format", "reasoning_effort", "verbosity", "service_tier")


def list_groups(fields: Body) -> list[RenderedGroup]:
    system, messages = make_messages("/messages", fields["messages"])
    return [make_list("tools", fields, "tools"), system, *make_settings(fields, _SETTINGS), messages]
