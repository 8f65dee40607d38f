"""Tell the model, in its next request, about tool calls of its last reply that were truncated."""

import hashlib
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from dragoman.hub.request import Refusal, Request, Role, Text, ToolCall, ToolResult, Turn

SHOWN_CHARACTERS = 500
LOOK_BACK = 6  # turns that may follow the truncated reply


class LostCall(Struct, frozen=True):
    """A tool call that was truncated and could not be completed."""

    tool: str
    arguments: str  # their beginning


def make_lost_call(tool: str, arguments: str) -> LostCall:
    return LostCall(tool, arguments[:SHOWN_CHARACTERS])


def digest_conversation(request: Request) -> tuple[bytes, ...]:
    """Return digests of the conversation at each of its last turns: the whole request first, then shorter prefixes."""
    running = hashlib.sha256(request.model.encode())
    found: list[bytes] = []
    for turn in request.turns:
        for text_item in _stable_content(turn):
            running.update(text_item.encode(errors="replace") + b"\0")
        found.append(running.digest())
    return tuple(reversed(found[-LOOK_BACK:]))


def add_notice(request: Request, lost: tuple[LostCall, ...]) -> Request:
    """Return the request with a note about the lost calls in the last user turn."""
    if not request.turns or request.turns[-1].role is not Role.USER:
        return request
    last = request.turns[-1]
    notice = "\n\n".join(_describe_call(call) for call in lost)
    turn = replace(last, parts=(*last.parts, Text(notice, at=last.at)))
    return replace(request, turns=(*request.turns[:-1], turn))


def _describe_call(call: LostCall) -> str:
    return (
        f"Note: your previous reply was cut off while it called the tool {call.tool!r}, so that call was not "
        f"executed. Its arguments began: {call.arguments}\n"
        "Call it again if it is still needed, with shorter arguments or in several smaller steps."
    )


def _stable_content(turn: Turn) -> Iterator[str]:
    """Return what stays the same when a client sends a turn again: no cache breakpoints, reasoning or instructions."""
    if turn.role in (Role.SYSTEM, Role.DEVELOPER):
        return
    yield turn.role.value
    for part in turn.parts:
        match part:
            case Text(text=text) | Refusal(text=text):
                yield text.strip()
            case ToolCall(id=id, name=name, arguments=arguments):
                yield from (id, name, arguments)
            case ToolResult(call_id=call_id):
                yield call_id
            case _:
                yield type(part).__name__
