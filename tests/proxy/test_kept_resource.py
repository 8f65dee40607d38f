"""What an upstream keeps: the client's request about it reaches the upstream, and its answer the client."""

import pytest

from dragoman.config.problems import ConfigError, Problem
from dragoman.net.headers import Header
from dragoman.proxy.kept_resource import KeptResource
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.upstreams.provider import Auth, UnsignedRequest
from fakes.upstream import Answer, End, FakeUpstream
from outgoing import open_http
from proxy.in_memory import (
    MemoryWire,
    make_provider,
    make_request,
    make_sink,
    make_world,
    run,
)

KEY = b"sk-secret-0123456789"
STORED = b'{"id": "resp_1",  "output": []}'
JSON = "application/json"


def ask(fake: FakeUpstream, *, keeper: str = "up", auth: Auth | None = None, query: str = "") -> MemoryWire:
    async def relay() -> MemoryWire:
        async with open_http() as client:
            wire = MemoryWire()
            provider = make_provider(url=fake.url, send=client.send, key=b"sk-own", auth=auth)
            request = make_request("/v1/responses/resp_1", [(b"authorization", b"Bearer client")], query)
            kept = KeptResource(make_world(provider), keeper, "", "responses", "/responses/resp_1")
            await kept.relay(request, make_sink(wire), "req_1")
        return wire

    return run(relay())


def test_the_upstreams_bytes_come_back_and_its_account_stays_unknown() -> None:
    headers = (("x-ratelimit-remaining-requests", "7"), ("x-own", "kept"))
    with FakeUpstream([Answer(STORED, content_type=JSON, headers=headers)]) as fake:
        reply = ask(fake, query="limit=2").reply
    [request] = fake.calls
    assert (request.path, request.headers["authorization"]) == ("/v1/responses/resp_1?limit=2", "Bearer sk-own")
    assert (reply.status, reply.body, reply.headers.get(b"x-own")) == (200, STORED, b"kept")
    assert reply.headers.get(b"x-ratelimit-remaining-requests") is None
    assert reply.headers.get(b"x-request-id") == b"req_1"


def test_an_upstreams_own_refusal_passes() -> None:
    with FakeUpstream([Answer(b'{"error":{"message":"no"}}', status=404, content_type=JSON)]) as fake:
        assert ask(fake).reply.status == 404


def test_a_rejected_credential_is_the_gateways_own_failure() -> None:
    with FakeUpstream([Answer(b"{}", status=401, content_type=JSON)]) as fake, pytest.raises(RequestError) as refused:
        ask(fake)
    assert refused.value.failure.kind is Kind.CREDENTIAL
    assert "rejected its credential (HTTP 401)" in refused.value.failure.message


def test_a_provider_that_is_gone_is_named() -> None:
    with FakeUpstream([]) as fake, pytest.raises(RequestError, match="'other' keeps this response") as refused:
        ask(fake, keeper="other")
    assert refused.value.failure.kind is Kind.NOT_FOUND


def test_a_missing_credential_is_named() -> None:
    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        raise ConfigError([Problem("the file", None, "api_key", "KEY is not set")])

    with FakeUpstream([]) as fake, pytest.raises(RequestError, match="has no credential") as refused:
        ask(fake, auth=Auth(authorize))
    assert refused.value.failure.kind is Kind.CREDENTIAL


def test_a_body_that_breaks_off_breaks_off_for_the_client() -> None:
    with FakeUpstream([Answer(STORED, content_type=JSON, end=End.CUT)]) as fake:
        assert ask(fake).dropped
