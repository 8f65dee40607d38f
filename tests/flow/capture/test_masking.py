"""A capture is written without the secrets of its request."""

import msgspec
from msgspec.structs import replace

from dragoman.flow.capture.format import (
    Capture,
    Chunk,
    ClientRequest,
    ClientResponse,
    Lookup,
    LookupName,
    Settings,
    TimedEvent,
    UpstreamRequest,
    UpstreamResponse,
)
from dragoman.flow.capture.masking import mask_capture
from dragoman.hub.loss import Loss, LossKind

SECRET = "sk-secret-0123456789abcdef"
SPLIT = 10  # a secret may be cut anywhere by the chunks of a stream


def say(secret: str) -> Capture:
    """Return a capture that contains the secret wherever a client or an upstream can write it."""
    text = f"the key {secret} is wrong"
    head, tail = secret[:SPLIT].encode(), secret[SPLIT:].encode()
    body = msgspec.json.encode({"error": text})
    headers = (("authorization", f"Bearer {secret}"), ("x-note", text))
    response = UpstreamResponse(0.1, 401, headers, (Chunk(0.1, b"no " + head), Chunk(0.2, tail + b" here")), text, 0.2)
    return Capture(
        request_id=f"req_{secret}",
        time="2026-11-15T12:00:00.000000+00:00",
        client=f"curl {secret}",
        client_protocol="chat",
        route=f"up/{secret}",
        requested_model=f"up/{secret}",
        error_code=f"bad_{secret}",
        guard_trips=(text,),
        cut_calls=(f"use_{secret}",),
        request=ClientRequest("POST", "/v1/chat/completions", f"key={secret}&a=1", headers, body),
        upstream_requests=(
            UpstreamRequest(
                at=0.0,
                route=f"up/{secret}",
                kind="openai-compatible",
                protocol="chat",
                method="POST",
                url=f"http://127.0.0.1:9/v1?key={secret}",
                headers=headers,
                body=body,
                response=response,
                error=text,
            ),
        ),
        events=(TimedEvent(0.1, 0, msgspec.json.encode({"type": "failed", "message": text}).decode()),),
        losses=(Loss("/a", LossKind.DROPPED, text),),
        response=ClientResponse(401, headers, (Chunk(0.3, head), Chunk(0.4, tail))),
        lookups=(
            Lookup("up", LookupName.AUTHORIZE.value, {"value": [["authorization", f"Bearer {secret}"]]}),
            Lookup("", LookupName.CUT_CALLS.value, {"value": ({"name": "search", "arguments": text},)}),
        ),
        settings=Settings(providers={"up": {"stanza": {"note": text}}}, routes=(f"up/{secret}",)),
    )


def test_a_known_secret_is_masked_everywhere() -> None:
    masked = mask_capture(say(SECRET), [SECRET.encode()])
    assert SECRET.encode() not in msgspec.msgpack.encode(masked)
    for chunks in (masked.upstream_requests[0].response, masked.response):
        assert chunks is not None
        assert SECRET.encode() not in b"".join(chunk.data for chunk in chunks.chunks)


def test_a_mask_keeps_the_size_of_every_chunk() -> None:
    capture = say(SECRET)
    masked = mask_capture(capture, [SECRET.encode()])
    assert capture.response is not None
    assert masked.response is not None
    before, after = capture.response.chunks, masked.response.chunks
    assert [(chunk.at, len(chunk.data)) for chunk in before] == [(chunk.at, len(chunk.data)) for chunk in after]


def test_a_capture_records_whether_bodies_were_masked() -> None:
    assert mask_capture(say(SECRET), [SECRET.encode()]).masked
    plain = replace(say("harmless"), request=ClientRequest("POST", "/", "", (), b"{}"))
    assert not mask_capture(plain, [SECRET.encode()]).masked


def test_what_is_too_short_to_be_a_secret_is_left_alone() -> None:
    plain = say("harmless")
    assert mask_capture(plain, [b"is"]).losses == plain.losses
