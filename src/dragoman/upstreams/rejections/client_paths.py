"""Where the client wrote what was changed in its translated request, for the ledger."""

from dragoman.translate.hub.request import Function, Request, Role, ToolResult, Turn, escape_key, split_pointer
from dragoman.upstreams.rejections.sent import MESSAGES, Sent, get_value, to_snake

_HOLDERS = ("generation_config", "text", "output_config")  # objects around the fields of a request
# What upstreams call a field of `Request` or of its records besides its own name, in snake case.
_FIELDS = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "candidate_count": "n",
    "reasoning_effort": "reasoning",
    "thinking": "reasoning",
    "thinking_config": "reasoning",
    "think": "reasoning",
    "effort": "reasoning",
    "response_format": "format",
    "response_schema": "format",
    "response_json_schema": "format",
    "response_mime_type": "format",
    "parallel_tool_calls": "parallel",
    "tool_config": "tool_choice",
    "prompt_cache_key": "cache_key",
    "labels": "metadata",
    "include": "encrypted_reasoning",
    "messages": "turns",
    "input": "turns",
    "contents": "turns",
    "system": "turns",
    "instructions": "turns",
    "system_instruction": "turns",
}
_SCHEMAS = ("parameters", "input_schema", "parametersJsonSchema")
_INSTRUCTIONS = ("system", "developer")


def find_client_path(request: Request, sent: Sent, pointer: str) -> str:
    """Return the client's place of what stands here in the request that was sent.

    That is the field, the message or the tool; the whole body for what the client has not written.
    """
    steps = split_pointer(pointer)
    if len(steps) > 1 and to_snake(steps[0]) in _HOLDERS:
        steps = steps[1:]
    name = to_snake(steps[0]) if steps else ""
    field = _FIELDS.get(name, name)
    if field == "tools":
        return _find_tool(request, sent, steps)
    if field == "turns" and steps[0] == MESSAGES.get(sent.protocol) and len(steps) > 1:
        return _find_turn(request, sent, int(steps[1])) or _find_field(request, "turns")
    return _find_field(request, field)


def _find_field(request: Request, field: str) -> str:
    pointer = request.pointer(field)
    return pointer if split_pointer(pointer)[0] in request.raw else ""


def _find_tool(request: Request, sent: Sent, steps: list[str]) -> str:
    """Return the tool of the same name, with the place in its schema."""
    holder: object = sent.tree
    for number, step in enumerate(steps):
        holder = get_value(holder, (int(step) if isinstance(holder, list) else step,))
        name = holder.get("name") if isinstance(holder, dict) else None
        tool = next((tool for tool in request.tools if getattr(tool, "name", None) == name), None) if name else None
        if tool is not None:
            inner = next((at for at, key in enumerate(steps) if at > number and key in _SCHEMAS), None)
            if inner is None or not isinstance(tool, Function):
                return tool.at
            return "/".join((tool.pointer("parameters"), *map(escape_key, steps[inner + 1 :])))
    return _find_field(request, "tools")


def _find_turn(request: Request, sent: Sent, number: int) -> str | None:
    """Return the client's message that became this one: of as many of its kind, the one in the same position."""
    kinds = [_name_kind(turn.get("role")) for turn in sent.turns]
    if number >= len(kinds):
        return None
    alike = [at for at, kind in enumerate(kinds) if kind == kinds[number]]
    written = [turn for turn in request.turns if _find_kind(turn) == kinds[number]]
    return written[alike.index(number)].at or None if len(alike) == len(written) else None


def _name_kind(role: object) -> str:
    return "system" if role in _INSTRUCTIONS else "assistant" if role == "model" else str(role)


def _find_kind(turn: Turn) -> str:
    if turn.role is Role.ASSISTANT:
        return "assistant"
    if turn.role is Role.USER:
        is_result = bool(turn.parts) and all(isinstance(part, ToolResult) for part in turn.parts)
        return "tool" if is_result else "user"
    return "system"
