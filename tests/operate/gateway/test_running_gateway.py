"""A running gateway is found and called over HTTP."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.net.client import HttpClient
from dragoman.operate import AdminError, InvalidArgument
from dragoman.operate.gateway.gateway_process import forget_gateway, record_gateway
from dragoman.operate.gateway.running_gateway import (
    GatewayClient,
    accepts_key,
    choose_key,
    find_gateway,
    find_gateway_process,
    read_version,
    require_gateway,
    require_key,
)
from fakes.upstream import FakeUpstream
from gateway import KEY, running

ECHO = '[providers.echo]\nkind = "echo"\n'


def config_in(directory: Path, port: int, **environ: str) -> Config:
    file = directory / "command.toml"
    file.write_text(f"[server]\nport = {port}\n")
    return ConfigSource(str(file), environ, directory, directory).read()


async def get(root: str, key: str, path: str) -> bytes:
    http = HttpClient()
    try:
        return await GatewayClient(root, key, http).get(path)
    finally:
        await http.close()


def test_a_gateway_is_found_where_the_configuration_says(tmp_path: Path) -> None:
    with running(ECHO, tmp_path) as gateway:
        assert asyncio.run(find_gateway(config_in(tmp_path, gateway.port), {})) == gateway.url
        assert asyncio.run(accepts_key(gateway.url, KEY))
        assert not asyncio.run(accepts_key(gateway.url, "dgm_wrong"))
        models = msgspec.json.decode(asyncio.run(get(gateway.url, KEY, "/v1/models")))
        assert "echo" in [model["id"] for model in models["data"]]
    assert asyncio.run(find_gateway(config_in(tmp_path, gateway.port), {})) is None


def test_another_server_is_not_taken_for_a_gateway() -> None:
    with FakeUpstream() as fake:
        assert asyncio.run(read_version(fake.url)) is None


def test_a_refusal_is_an_error_with_the_gateways_message(tmp_path: Path) -> None:
    with running(ECHO, tmp_path) as gateway:
        with pytest.raises(AdminError, match=r"rejects the key.*keys create"):
            asyncio.run(get(gateway.url, "dgm_wrong", "/v1/models"))
        with pytest.raises(AdminError, match=r"\(HTTP 404\)"):
            asyncio.run(get(gateway.url, KEY, "/v1/models/absent"))


def test_a_given_key_wins_over_the_one_of_the_environment(tmp_path: Path) -> None:
    config = config_in(tmp_path, 1, DRAGOMAN_API_KEY="fake-key-of-the-environment")
    assert choose_key(config, None) == "fake-key-of-the-environment"
    assert choose_key(config, "dgm_given") == "dgm_given"
    assert choose_key(config_in(tmp_path, 1), None) is None
    with pytest.raises(InvalidArgument, match="--key"):
        choose_key(config, "dgm_two\nlines")


def test_a_gateway_is_found_by_its_note_and_by_a_given_address(tmp_path: Path) -> None:
    environ, elsewhere = {"HOME": str(tmp_path)}, config_in(tmp_path, 1)
    with running(ECHO, tmp_path) as gateway:
        assert asyncio.run(find_gateway(elsewhere, environ)) is None
        note = record_gateway(tmp_path / ".local" / "share" / "dragoman", gateway.url)
        assert asyncio.run(find_gateway(elsewhere, environ)) == gateway.url
        assert asyncio.run(require_gateway(elsewhere, environ)) == gateway.url
        assert asyncio.run(find_gateway(elsewhere, {}, f"{gateway.url}/v1/")) == gateway.url
        assert asyncio.run(find_gateway_process(elsewhere, environ)).root == gateway.url
        with pytest.raises(AdminError, match="Stop it where it was started"):
            asyncio.run(find_gateway_process(elsewhere, {}, gateway.url))
    # It does not answer any more, but its process runs: it drains.
    assert asyncio.run(find_gateway(elsewhere, environ)) is None
    assert asyncio.run(find_gateway_process(elsewhere, environ)).root == gateway.url
    assert asyncio.run(find_gateway_process(elsewhere, environ, gateway.url)).root == gateway.url
    forget_gateway(note)
    for find in (require_gateway, find_gateway_process):
        with pytest.raises(AdminError, match=r"No gateway is running at http://127\.0\.0\.1:1\."):
            asyncio.run(find(elsewhere, environ))
        with pytest.raises(AdminError, match="No dragoman answers at"):
            asyncio.run(find(elsewhere, environ, "http://127.0.0.1:2"))


def test_a_gateway_that_the_user_names_needs_a_key() -> None:
    assert require_key("dgm_given", "http://127.0.0.1:1") == "dgm_given"
    with pytest.raises(AdminError, match=r"A key for http://127\.0\.0\.1:1 is needed"):
        require_key(None, "http://127.0.0.1:1")
