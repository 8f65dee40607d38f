"""A call gets its body, unpacked, with what routing needs of it; one that is too much is refused."""

import gzip

import pytest

from dragoman.config.settings import Server
from dragoman.flow.steps.read_body import read_body
from dragoman.hub.failure import Kind, RequestError
from flow.in_memory import CHAT, make_world
from flow.steps.story_rig import new_call

PACKED = [(b"content-encoding", b"gzip")]


async def test_a_call_knows_its_model_once_its_body_is_read() -> None:
    call = new_call()
    assert call.model == ""
    await read_body(call, make_world())
    assert (call.model, call.stream, call.body, call.record.body) == ("m", False, CHAT, CHAT)


async def test_a_packed_body_is_unpacked_and_counted() -> None:
    call = new_call(body=gzip.compress(CHAT), headers=PACKED)
    await read_body(call, make_world())
    assert call.body == CHAT
    assert call.buffered.held == len(CHAT)


@pytest.mark.parametrize(
    ("body", "packed", "kind"),
    [
        (b"no gzip", True, Kind.BAD_REQUEST),
        (gzip.compress(b" " * 2000, mtime=0), True, Kind.TOO_LARGE),
        (b'{"model":"m","stop":[' + b"1," * 200 + b"1]}", False, Kind.TOO_LARGE),
    ],
)
async def test_what_cannot_be_unpacked_or_holds_too_much_is_refused(body: bytes, packed: bool, kind: Kind) -> None:
    call = new_call(body=body, headers=PACKED if packed else ())
    with pytest.raises(RequestError) as refused:
        await read_body(call, make_world(server=Server(max_body_mb=0.001, max_body_values=100)))
    assert refused.value.failure.kind is kind
