"""A failure before the first byte goes out as a real HTTP error, in the client's own shape."""

import math

from dragoman.flow.attempt import TurnedAway
from dragoman.flow.headers import id_headers, passed_on
from dragoman.hub.failure import Failure, Refused
from dragoman.hub.ports import Client
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header

JSON = (b"content-type", b"application/json")


def refuse_exchange(exchange: Exchange, client: Client, refused: Refused, request_id: str) -> None:
    """The upstream's own error where client and upstream speak one protocol, else the failure rendered anew."""
    failure = refused.failure
    if isinstance(refused, TurnedAway):
        fields = _without(passed_on(refused.headers), failure)
        head = [*fields, *id_headers(client, request_id, fields), *_advice(failure)]
        exchange.respond(refused.status, head, refused.body)
        return
    rendered = client.render(failure, request_id)
    exchange.respond(rendered.status, [JSON, *id_headers(client, request_id, []), *_advice(failure)], rendered.body)


def _without(fields: list[Header], failure: Failure) -> list[Header]:
    ours = {b"x-should-retry"} if failure.retried else set()
    if failure.retry_after is not None:
        ours |= {b"retry-after"}
    return [field for field in fields if field[0] not in ours]


def _advice(failure: Failure) -> list[Header]:
    """Whether and when the client should try again."""
    head: list[Header] = []
    if failure.retry_after is not None:
        head.append((b"retry-after", str(math.ceil(failure.retry_after)).encode()))
    if failure.retried:
        head.append((b"x-should-retry", b"false"))
    return head
