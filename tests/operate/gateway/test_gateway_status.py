"""The status of a gateway: what its metrics say of its providers."""

import asyncio
from pathlib import Path

import msgspec

from dragoman.config.load import ConfigSource
from dragoman.operate.gateway.gateway_status import read_status
from fakes.upstream import Answer, FakeUpstream

METRICS = b"""\
# HELP dragoman_streams_live Streamed replies in progress.
dragoman_streams_live 3
dragoman_requests_under_way 5
dragoman_pool_credentials{provider="a",state="available"} 1
dragoman_pool_credentials{provider="a",state="cooling_down"} 1
dragoman_pool_credentials{provider="b",state="available"} 0
dragoman_pool_credentials{provider="b",state="cooling_down"} 2
"""


def page(value: object, status: int = 200) -> Answer:
    return Answer(msgspec.json.encode(value), status, content_type="application/json")


def test_streams_and_cooldowns_are_read_from_the_metrics(tmp_path: Path) -> None:
    pages = {
        "/": page({"status": "ok", "message": "dragoman is running", "version": "9"}),
        "/health": page({"status": "healthy", "version": "9", "uptime_s": 61.5}),
        "/ready": page({"status": "draining"}, 503),
        "/metrics": Answer(METRICS, content_type="text/plain"),
    }
    with FakeUpstream(pages=pages) as fake:
        (tmp_path / "dragoman.toml").write_text(f"[server]\nport = {fake.port}\n[store]\nurl = 'sqlite:///none.db'\n")
        config = ConfigSource(None, {}, tmp_path, tmp_path).read()
        status = asyncio.run(read_status(config, {}))
    assert (status.version, status.uptime_s, status.ready) == ("9", 61.5, False)
    assert (status.streams, status.requests_under_way) == (3, 5)
    assert [(one.name, one.state, one.detail) for one in status.providers] == [
        ("a", "ok", "1 of 2 credentials cooling down"),
        ("b", "cooling down", "2 of 2 credentials cooling down"),
    ]
