"""Talking to echo as the gateway does: over the native protocol and past the guard."""

import asyncio
from collections.abc import Callable

from dragoman.net.client import OutgoingRequest
from dragoman.translate.hub.events import CallBlock, Event, Reply, collect
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Part, Request, Role, Turn
from dragoman.translate.protocols.echo import PROTOCOL
from dragoman.translate.stages.guard import Guard
from dragoman.upstreams.echo.provider import Echo, EchoResponse
from laws import run
from request_fields import set_fields


def make_request(*parts: Part, **fields: object) -> Request:
    return set_fields(Request(protocol="chat", model="echo", turns=(Turn(Role.USER, parts),)), **fields)


def read_echo(request: Request) -> Reply:
    """What the request is answered with, over the wire and past the guard."""
    return collect(legal(asyncio.run(events_of(request))))


async def events_of(request: Request) -> list[Event]:
    upstream = PROTOCOL.upstream
    assert upstream is not None
    answer = await send_request(request)
    body = await answer.read(1 << 20, 1.0)
    issuer = Issuer("echo", request.model)
    assert answer.status == 200
    if not request.stream:
        return upstream.decode_whole(body, issuer, Ledger())
    decoder = upstream.decoder(issuer, Ledger())
    return run(decoder, upstream.framer().feed(body))


async def send_request(request: Request, word_s: float = 0.0) -> EchoResponse:
    upstream = PROTOCOL.upstream
    assert upstream is not None
    body = upstream.build(request, Target(request.model, "echo"), Ledger())
    return await Echo(word_s).send(OutgoingRequest("POST", "http://echo.invalid/replies", (), body))


def legal(events: list[Event]) -> list[Event]:
    trips: list[str] = []
    out = run(Guard(trips.append), events)
    assert trips == []
    return out


def text_of(reply: Reply) -> str:
    return "".join(piece.text for piece in reply.pieces if type(piece.what).__name__ == "TextBlock")


def calls_of(reply: Reply) -> list[tuple[str, str]]:
    return [(piece.what.name, piece.text) for piece in reply.pieces if isinstance(piece.what, CallBlock)]


def make_counter() -> Callable[[str], str]:
    numbers = iter(range(1000))
    return lambda prefix: f"{prefix}{next(numbers)}"
