"""A running gateway is found and called over HTTP."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from dragoman.admin import AdminError, InvalidArgument
from dragoman.admin.running_gateway import (
    GatewayClient,
    accepts_key,
    choose_key,
    find_gateway,
    find_running,
    forget_gateway,
    list_noted_gateways,
    note_gateway,
    read_version,
)
from dragoman.config import Config, load
from dragoman.net.client import HttpClient
from fakes.upstream import FakeUpstream
from gateway import KEY, running

ECHO = '[providers.echo]\nkind = "echo"\n'


def config_in(directory: Path, port: int, **environ: str) -> Config:
    file = directory / "command.toml"
    file.write_text(f"[server]\nport = {port}\n")
    return load(str(file), environ, directory, directory)


async def get(root: str, key: str, path: str) -> bytes:
    http = HttpClient()
    try:
        return await GatewayClient(root, key, http).get(path)
    finally:
        await http.close()


def test_a_gateway_is_found_where_the_configuration_says(tmp_path: Path) -> None:
    with running(ECHO, tmp_path) as gateway:
        assert asyncio.run(find_running(config_in(tmp_path, gateway.port))) == gateway.url
        assert asyncio.run(accepts_key(gateway.url, KEY))
        assert not asyncio.run(accepts_key(gateway.url, "dgm_wrong"))
        models = msgspec.json.decode(asyncio.run(get(gateway.url, KEY, "/v1/models")))
        assert "echo" in [model["id"] for model in models["data"]]
    assert asyncio.run(find_running(config_in(tmp_path, gateway.port))) is None


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


def test_a_gateway_is_found_by_its_note_and_notes_of_ended_processes_are_removed(tmp_path: Path) -> None:
    notes = tmp_path / ".local" / "share" / "dragoman"
    with running(ECHO, tmp_path) as gateway:
        own = note_gateway(notes, gateway.url)
        (notes / "running" / "1.json").write_text('{"root": "http://127.0.0.1:1", "pid": 2147483646}')
        (notes / "running" / "2.json").write_text("{")
        assert list_noted_gateways(notes) == [gateway.url]
        assert sorted(path.name for path in own.parent.iterdir()) == sorted(["2.json", own.name])
        found = asyncio.run(find_gateway(config_in(tmp_path, 1), {"HOME": str(tmp_path)}))
        assert found == gateway.url
        assert asyncio.run(find_gateway(config_in(tmp_path, 1), {}, f"{gateway.url}/v1/")) == gateway.url
    forget_gateway(own)
    assert list_noted_gateways(notes) == []
    with pytest.raises(AdminError, match="No dragoman answers at"):
        asyncio.run(find_gateway(config_in(tmp_path, 1), {}, "http://127.0.0.1:1"))
