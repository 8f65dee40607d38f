"""A call gets its body, unpacked, with what routing needs of it; one that is too much is refused."""

import gzip

import pytest

from dragoman.config.settings import ServerSettings
from dragoman.net.headers import Header
from dragoman.proxy.steps.read_body import read_body, read_relayed_body
from dragoman.translate.hub.failure import Kind, RequestError
from proxy.in_memory import CHAT, make_world
from proxy.relayed import new_relayed_call
from proxy.steps.story_rig import new_call
from proxy.test_form_upload import FORM, TYPE

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
        await read_body(call, make_world(server=ServerSettings(max_body_mb=0.001, max_body_values=100)))
    assert refused.value.failure.kind is kind


async def test_a_relayed_form_is_read_as_far_as_its_model() -> None:
    body = FORM % b"sound"
    headers = [(b"content-type", TYPE), (b"content-length", b"%d" % len(body))]
    call = new_relayed_call("audio/transcriptions", body, headers)
    with call:
        await read_relayed_body(call, make_world())
        assert (call.model, call.stream, call.body, call.form is None) == ("whisper", False, b"", False)


@pytest.mark.parametrize(
    ("path", "fields", "complaint"),
    [("embeddings", [], "takes JSON, not a form"), ("audio/transcriptions", PACKED, "leave out content-encoding")],
)
async def test_a_form_that_cannot_be_taken_is_refused(path: str, fields: list[Header], complaint: str) -> None:
    call = new_relayed_call(path, FORM % b"", [(b"content-type", TYPE), *fields])
    with call, pytest.raises(RequestError, match=complaint):
        await read_relayed_body(call, make_world())
