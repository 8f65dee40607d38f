"""A capture is written without the secrets of its request, and describes providers without theirs and local paths."""

from pathlib import Path

import msgspec
from msgspec.structs import replace

from dragoman.config.secret import SecretSource
from dragoman.config.settings import ProviderConfig
from dragoman.net.headers import Header
from dragoman.proxy.capture.format import (
    Capture,
    CapturedSettings,
    Chunk,
    ClientRequest,
    ClientResponse,
    Lookup,
    LookupName,
    TimedEvent,
    UpstreamRequest,
    UpstreamResponse,
)
from dragoman.proxy.capture.masking import describe_provider, hide_values, mask_capture, to_text
from dragoman.translate.framing.redaction import MASK
from dragoman.translate.hub.loss import Loss, LossKind
from dragoman.upstreams.provider import Endpoint
from narrowing import present
from proxy.in_memory import URL, make_pooled, make_provider, send_nothing

SECRET = "sk-secret-0123456789abcdef"
SPLIT = 10  # a secret may be cut anywhere by the chunks of a stream
FIELDS: tuple[Header, ...] = ((b"user-agent", b"dragoman"), (b"x-team", b"hidden-value-1"))
SECTION = ProviderConfig(
    name="up",
    kind="openai-compatible",
    endpoint="http://127.0.0.1:9/v1",
    protocols=("chat",),
    api_key=SecretSource("sk-secret-0123456789"),
    headers={"X-Team": SecretSource("hidden-value-1")},
    ca_file=Path("/home/somebody/ca.pem"),
    extra_credentials=(SecretSource("sk-secret-9876543210"),),
)


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
        settings=CapturedSettings(providers={"up": {"stanza": {"note": text}}}, routes=(f"up/{secret}",)),
    )


def test_a_known_secret_is_masked_everywhere() -> None:
    masked = mask_capture(say(SECRET), [SECRET.encode()])
    assert SECRET.encode() not in msgspec.msgpack.encode(masked)
    for chunks in (present(masked.upstream_requests[0].response).chunks, present(masked.response).chunks):
        assert SECRET.encode() not in b"".join(chunk.data for chunk in chunks)


def test_a_mask_keeps_the_size_of_every_chunk() -> None:
    capture = say(SECRET)
    masked = mask_capture(capture, [SECRET.encode()])
    before, after = present(capture.response).chunks, present(masked.response).chunks
    assert [(chunk.at, len(chunk.data)) for chunk in before] == [(chunk.at, len(chunk.data)) for chunk in after]


def test_a_capture_records_whether_bodies_were_masked() -> None:
    assert mask_capture(say(SECRET), [SECRET.encode()]).masked
    plain = replace(say("harmless"), request=ClientRequest("POST", "/", "", (), b"{}"))
    assert not mask_capture(plain, [SECRET.encode()]).masked


def test_what_is_too_short_to_be_a_secret_is_left_alone() -> None:
    plain = say("harmless")
    assert mask_capture(plain, [b"is"]).losses == plain.losses


def test_a_section_is_described_without_secrets_and_paths() -> None:
    endpoint = Endpoint(URL, ("chat",), send_nothing, headers=FIELDS)
    description = describe_provider(make_provider(endpoint=endpoint), SECTION, {b"x-team"})
    text = msgspec.json.encode(description)
    for hidden in (b"secret", b"hidden-value", b"somebody"):
        assert hidden not in text
    assert isinstance(description, dict)
    assert description["endpoint"] == "http://127.0.0.1:9/v1"
    assert description["fields"] == [["user-agent", "dragoman"], ["x-team", MASK]]
    assert description["credentials"] == []
    section = description["stanza"]
    assert isinstance(section, dict)
    assert (section["name"], section["kind"]) == ("up", "openai-compatible")
    assert not {"api_key", "headers", "ca_file", "extra_credentials"} & set(section)


def test_a_provider_that_was_discovered_has_no_section() -> None:
    description = describe_provider(make_provider("found"), None, set())
    assert isinstance(description, dict)
    assert description["stanza"] == {"name": "found", "kind": "openai-compatible"}


def test_several_credentials_are_described_by_their_labels() -> None:
    description = describe_provider(make_pooled(make_provider(), 2), None, set())
    assert isinstance(description, dict)
    assert description["credentials"] == ["1 of 2", "2 of 2"]


def test_headers_are_text_with_hidden_values() -> None:
    assert to_text(hide_values(FIELDS, {b"x-team"})) == (("user-agent", "dragoman"), ("x-team", MASK))
    assert to_text([(b"x", b"\xfc")]) == (("x", "ü"),)
