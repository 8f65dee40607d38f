"""Short ways to build a body for a Responses upstream and to ask what it lost."""

import msgspec
import pytest

from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Request, Role, Text, Turn
from request_fields import set_fields
from translate.protocols.responses.responses_kit import UPSTREAM
from wire_json import JsonObject

TARGET = Target("gpt-5.5", "openai")


HI = Turn(Role.USER, (Text("hi", "/messages/0/content"),), "/messages/0")


def build_body(request: Request, target: Target = TARGET, ledger: Ledger | None = None) -> JsonObject:
    body = UPSTREAM.build(request, target, Ledger() if ledger is None else ledger)
    return msgspec.json.decode(body, type=JsonObject)


def request_of(*turns: Turn, protocol: str = "messages", **fields: object) -> Request:
    return set_fields(Request(protocol=protocol, model="asked", turns=turns or (HI,)), **fields)


def find_losses(request: Request, target: Target = TARGET) -> list[tuple[str, LossKind]]:
    ledger = Ledger()
    build_body(request, target, ledger)
    return [(loss.path, loss.how) for loss in ledger]


def expect_refusal_at(request: Request) -> str | None:
    with pytest.raises(RequestError) as caught:
        build_body(request)
    assert caught.value.failure.kind is Kind.BAD_REQUEST
    return caught.value.failure.at
