"""Relayed calls in memory, and the gateway that answers them."""

from collections.abc import Sequence

from dragoman.net.headers import Header
from dragoman.net.sink import ReplySink
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.memories import make_memories
from dragoman.proxy.relay import RelayedCall
from dragoman.proxy.request_record import RequestRecord
from dragoman.proxy.runtime import Runtime
from dragoman.proxy.steps.choose_routes import choose_relayed_routes
from dragoman.proxy.steps.read_body import read_relayed_body
from dragoman.translate.protocols.relayed_paths import RELAYED_PATHS
from proxy.in_memory import Sender, make_request


def new_relayed_call(path: str, body: bytes, headers: Sequence[Header] = ()) -> RelayedCall:
    """Return a call whose body has come and is not read yet."""
    request = make_request(f"/v1/{path}", headers)
    request.set_body(body)
    return RelayedCall(RELAYED_PATHS[path], request, Sender(), RequestRecord("log", path, request.headers))


async def answer_relayed(call: RelayedCall, world: Runtime, sink: ReplySink) -> None:
    """Answer a call as its story does."""
    with call:
        await read_relayed_body(call, world)
        await choose_relayed_routes(call, world)
        await Gateway(world, make_memories(None)).answer_relayed(call, sink)
