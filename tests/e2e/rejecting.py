"""What servers reject in requests, as functions of the request that they get, and how they frame their words."""

from collections.abc import Callable
from itertools import pairwise

import msgspec

from fakes.upstream import ReceivedRequest
from wire_json import Json, JsonObject

Refuses = Callable[[ReceivedRequest], bool]


def has(*steps: str | int) -> Refuses:
    """Whether the body has a value there."""

    def look(request: ReceivedRequest) -> bool:
        value: Json = request.json
        for step in steps:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return False
        return True

    return look


def any_of(*refuses: Refuses) -> Refuses:
    return lambda request: any(one(request) for one in refuses)


def list_roles(request: ReceivedRequest) -> list[str | None]:
    turns: list[JsonObject] = request.json.get("messages") or request.json["input"]
    return [turn.get("role") for turn in turns]


def later_system(request: ReceivedRequest) -> bool:
    return "system" in list_roles(request)[1:]


def later_instructions(request: ReceivedRequest) -> bool:
    return not {"system", "developer"}.isdisjoint(list_roles(request)[1:])


def role(name: str) -> Refuses:
    return lambda request: name in list_roles(request)


def without_reasoning(request: ReceivedRequest) -> bool:
    return any("reasoning_content" not in each for each in request.json["messages"] if each["role"] == "assistant")


def with_reasoning(request: ReceivedRequest) -> bool:
    return any("reasoning_content" in each for each in request.json["messages"])


def user_after_tool(request: ReceivedRequest) -> bool:
    return ("tool", "user") in pairwise(list_roles(request))


def neighbours(request: ReceivedRequest) -> bool:
    return any(one == two != "tool" for one, two in pairwise(list_roles(request)))


def thinks(kind: str) -> Refuses:
    return lambda request: request.json.get("thinking", {}).get("type") == kind


def has_betas(request: ReceivedRequest) -> bool:
    return "anthropic-beta" in request.headers or "anthropic_beta" in request.json


VARIANT = (
    "messages[1].role: unknown variant `{}`, expected one of `system`, `user`, `assistant`, `tool` at line 1 column 99"
)
GOOGLE = (
    'Invalid JSON payload received. Unknown name "{}" at '
    "'tools[0].function_declarations[0].parameters.properties[0].value': Cannot find field."
)
DESERIALIZE = "Failed to deserialize the JSON body into the target type: "


def not_literal(expected: str, *steps: str | int) -> JsonObject:
    """Return FastAPI's error for a value that is none of a few."""
    return {"detail": [{"type": "literal_error", "loc": ["body", *steps], "msg": f"Input should be {expected}"}]}


TRACEBACK = (
    "\n------------\nWhile executing CallExpression at line 85, column 32 in source:\n...first %}↵            "
    "{{- raise_exception('System message must be at the beginnin...\n                                   ^\n"
    "Error: Jinja Exception: System message must be at the beginning."
)
IN_EVENT = (
    "event:error\ndata:"
    + msgspec.json.encode(
        {
            "code": "InvalidParameter",
            "message": "Only 'enabled' and 'disabled' are supported for thinking; 'adaptive' is not supported.",
        }
    ).decode()
)
