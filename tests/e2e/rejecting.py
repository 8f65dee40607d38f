"""What servers reject in requests, as functions of the request that they get."""

from collections.abc import Callable
from itertools import pairwise

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
