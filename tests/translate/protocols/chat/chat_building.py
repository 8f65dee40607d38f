"""Requests to build, and what comes of them."""

from pathlib import Path

import msgspec
import pytest

from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    Document,
    Image,
    Inline,
    Part,
    Request,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.translate.protocols.chat import PROTOCOL
from narrowing import expect_all
from request_fields import set_fields
from wire_json import JsonObject

FIXTURE = (Path(__file__).parents[3] / "fixtures" / "chat" / "request.json").read_bytes()
OPENAI = Target("gpt-x", "openai")
LOCAL = Target("llama", "local")
STRICT = Target("llama", "local", quirks=frozenset({"plain"}))
PNG = Inline("image/png", "aW1n")
Wire = JsonObject
Losses = list[tuple[str, LossKind]]
APPROXIMATED, DROPPED, INVENTED = LossKind.APPROXIMATED, LossKind.DROPPED, LossKind.INVENTED


def user(*parts: Part) -> Turn:
    return Turn(Role.USER, parts, "/u")


def assistant(*parts: Part) -> Turn:
    return Turn(Role.ASSISTANT, parts, "/a")


def system(*parts: Part, role: Role = Role.SYSTEM) -> Turn:
    return Turn(role, parts, "/s")


def request(*turns: Turn, protocol: str = "messages", **fields: object) -> Request:
    return set_fields(Request(protocol, "asked", turns or (user(Text("hi")),)), **fields)


def build_body(expected: Request, target: Target = OPENAI) -> tuple[Wire, Losses]:
    ledger = Ledger()
    assert PROTOCOL.upstream is not None
    body = msgspec.json.decode(PROTOCOL.upstream.build(expected, target, ledger))
    return body, [(loss.path, loss.how) for loss in ledger]


def assert_built(expected: Request, target: Target, sent: Wire, lost: Losses) -> None:
    """Compare these fields of the body (None: the field is absent) and all losses."""
    body, recorded = build_body(expected, target)
    assert {key: body.get(key) for key in sent} == sent
    assert recorded == lost


def messages(*turns: Turn, target: Target = OPENAI, protocol: str = "messages") -> list[Wire]:
    body, _ = build_body(request(*turns, protocol=protocol), target)
    return expect_all(dict, body["messages"])


def losses(expected: Request, target: Target = OPENAI) -> Losses:
    return build_body(expected, target)[1]


def expect_refusal_at(expected: Request, target: Target = OPENAI) -> str | None:
    with pytest.raises(RequestError) as caught:
        build_body(expected, target)
    return caught.value.failure.at


CALLS = (ToolCall("a", "read", '{"p":1}', "/c0"), ToolCall("b", "list", "", "/c1"))
WIRE_CALLS = [
    {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"p":1}'}},
    {"id": "b", "type": "function", "function": {"name": "list", "arguments": "{}"}},
]


def result(call_id: str, *parts: Text | Image | Document, is_error: bool = False) -> ToolResult:
    return ToolResult(call_id, parts, f"/r/{call_id}", is_error=is_error)


def tool(call_id: str, content: str) -> Wire:
    return {"role": "tool", "tool_call_id": call_id, "content": content}
