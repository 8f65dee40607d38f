"""What Copilot accepts of a request, and the headers that describe it."""

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Function, Image, Request, Role, ToolResult, Turn
from dragoman.net.headers import Header

EAGER = "eager_input_streaming"
# Fields that Copilot rejects, by protocol: a body that contains one is built anew without it.
REJECTED = {"chat": b'"max_tokens"', "messages": f'"{EAGER}"'.encode()}


def passthrough_body(protocol: str, body: bytes) -> bytes | None:
    """Return the body if Copilot accepts it: GPT models reject `max_tokens`, Claude rejects eager streaming."""
    objectionable = REJECTED.get(protocol)
    return body if objectionable is None or objectionable not in body else None


def fit_request(request: Request, ledger: Ledger) -> Request:
    tools = []
    for tool in request.tools:
        if isinstance(tool, Function) and EAGER in tool.ext:
            ledger.note_dropped(f"{tool.at}/{EAGER}", "Copilot accepts no such field")
            tool = replace(tool, ext={key: value for key, value in tool.ext.items() if key != EAGER})
        tools.append(tool)
    return replace(request, tools=tuple(tools))


def describe_request(request: Request) -> tuple[Header, ...]:
    """Return who caused the request, truthfully: a person, or a tool loop that continues by itself."""
    initiator = b"agent" if _continues_by_itself(request) else b"user"
    vision = ((b"copilot-vision-request", b"true"),) if any(map(_has_image, request.turns)) else ()
    return ((b"x-initiator", initiator), *vision)


def _continues_by_itself(request: Request) -> bool:
    last = request.turns[-1] if request.turns else None
    if last is None or not last.parts:
        return False
    if last.role is Role.ASSISTANT:
        return True
    # Clients of Messages put their reminders after the results, in the same message.
    results = [isinstance(part, ToolResult) for part in last.parts]
    return any(results) if request.protocol == "messages" else results[-1]


def _has_image(turn: Turn) -> bool:
    return any(
        isinstance(part, Image)
        or (isinstance(part, ToolResult) and any(isinstance(inner, Image) for inner in part.content))
        for part in turn.parts
    )
