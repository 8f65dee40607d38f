"""A tool and one of its fields come in; where the client wrote that field goes out."""

from dragoman.hub.request import Function, Tool
from dragoman.passes.lower_tools import WRAPPED_PARAMETERS

# How a client's protocol spells a function tool's fields, where it does not write them as the hub does.
_SPELLINGS = {("messages", "parameters"): "input_schema"}


def tool_pointer(tool: Tool, protocol: str, field: str) -> str:
    holder = tool.at
    if protocol == "chat" and isinstance(tool, Function) and holder.startswith("/tools/"):
        holder += "/custom" if tool.parameters is WRAPPED_PARAMETERS else "/function"
    return f"{holder}/{_SPELLINGS.get((protocol, field), field)}"
