"""The recorded upstream, as the client of a replay and as a server on a port."""

import asyncio
import urllib.error
import urllib.request
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from dragoman.cli.replay import serve_upstream
from dragoman.config.load import ConfigSource
from dragoman.config.providers import KINDS, PROTOCOLS_BY_KIND
from dragoman.config.settings import ProtocolName
from dragoman.net.client import ConnectionLost, DialOptions, InvalidResponse, OutgoingRequest, UpstreamTimeout
from dragoman.operate.captures.replay.recorded_services import RecordedUpstream, config_for_upstream, make_error
from dragoman.proxy.capture.files import read_capture
from dragoman.proxy.capture.format import Capture, Chunk, UpstreamResponse

FIXTURE = Path(__file__).parents[3] / "fixtures" / "captures" / "kiro-cut-call.json"
POST = OutgoingRequest("POST", "http://upstream", ())


def fixture() -> Capture:
    return read_capture(FIXTURE.read_bytes())


def make_recorded_upstream(**changes: object) -> RecordedUpstream:
    request = fixture().upstream_requests[0]
    chunks = (Chunk(0.0, b"one"), Chunk(0.01, b"two"))
    response = UpstreamResponse(status=200, headers=(), at=0.0, chunks=chunks, end="whole", ended_at=0.02)
    response = replace(response, **changes)
    return RecordedUpstream((replace(request, at=0.0, response=response),), age_s=3600.0)


def test_chunks_come_in_order_and_a_further_request_fails() -> None:
    async def run() -> None:
        upstream = make_recorded_upstream()
        response = await upstream.send(POST, DialOptions(), head_timeout_s=5.0)
        assert await response.read(100, 5.0) == b"onetwo"
        with pytest.raises(ConnectionLost):
            await upstream.send(POST, DialOptions(), head_timeout_s=5.0)

    asyncio.run(run())


def test_a_response_that_is_slower_than_the_timeout_times_out() -> None:
    async def run() -> None:
        with pytest.raises(UpstreamTimeout):
            await make_recorded_upstream(at=60.0).send(POST, DialOptions(), head_timeout_s=0.01)
        response = await make_recorded_upstream(chunks=(), end="closed").send(POST, DialOptions(), head_timeout_s=5.0)
        with pytest.raises(UpstreamTimeout):
            await response.chunk(0.01)

    asyncio.run(run())


def test_a_date_to_retry_at_is_as_far_ahead_as_it_was() -> None:
    async def run() -> bytes | None:
        headers = (("retry-after", "Sun, 15 Nov 2026 12:00:00 GMT"),)
        response = await make_recorded_upstream(headers=headers).send(POST, DialOptions(), head_timeout_s=5.0)
        return response.headers.get(b"retry-after")

    assert asyncio.run(run()) == b"Sun, 15 Nov 2026 13:00:00 GMT"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("TimedOut idle: silent", UpstreamTimeout), ("Corrupt: bad", InvalidResponse), ("Lost: cut", ConnectionLost)],
)
def test_recorded_errors_become_exceptions_again(text: str, kind: type[Exception]) -> None:
    error = make_error(text)
    assert type(error) is kind
    assert str(error).endswith(text.partition(": ")[2])


def test_a_server_sends_the_recorded_bytes_to_recorded_paths_only() -> None:
    capture = fixture()
    response = capture.upstream_requests[0].response
    assert response is not None

    async def run() -> None:
        server = await serve_upstream(capture, 0)
        try:
            root = f"http://127.0.0.1:{server.port}"
            body = await asyncio.to_thread(post, f"{root}/")
            assert body == b"".join(chunk.data for chunk in response.chunks)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                await asyncio.to_thread(post, f"{root}/another/path")
        finally:
            await server.close()

    asyncio.run(run())


def post(url: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=20) as reply:
        content = reply.read()
    assert isinstance(content, bytes)
    return content


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "echo"])
def test_the_configuration_for_it_is_valid(tmp_path: Path, kind: str) -> None:
    for protocol in PROTOCOLS_BY_KIND.get(kind) or get_args(ProtocolName):
        request = replace(fixture().upstream_requests[0], kind=kind, protocol=protocol)
        toml = config_for_upstream(replace(fixture(), upstream_requests=(request,)), 1234)
        (tmp_path / "dragoman.toml").write_text(toml)
        assert "replayed" in ConfigSource(None, {}, tmp_path, tmp_path).read().providers, protocol
