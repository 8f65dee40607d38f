"""Model servers of this machine are found by their ports, quickly and without false positives."""

import asyncio
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from dragoman.config.discovery import LocalServer, local_ports
from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.net.client import DialOptions
from dragoman.upstreams import local_servers
from dragoman.upstreams.local_servers import discover
from fakes.upstream import Answer, End, FakeUpstream

HANGS = Answer(headless=True, end=End.HANG)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about time: a busy machine must not look like a server that hangs."""
    be_patient(monkeypatch, 20.0)


def be_patient(monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> None:
    monkeypatch.setattr(local_servers, "LIST_TIMEOUT_S", timeout_s)
    monkeypatch.setattr(local_servers, "ROOT_TIMEOUT_S", timeout_s)
    monkeypatch.setattr(local_servers, "DIAL", DialOptions(connect_timeout_s=timeout_s))


def discover_servers(ports: dict[str, int], own_port: int = 0) -> tuple[LocalServer, ...]:
    return asyncio.run(discover(ports, own_port=own_port))


def page(value: object, status: int = 200) -> Answer:
    return Answer(msgspec.json.encode(value), status=status, content_type="application/json")


def make_owner_page(owner: str) -> dict[str, Answer]:
    return {"/v1/models": page({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]})}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("name", "quirks"), [("ollama", ("ollama",)), ("lmstudio", ()), ("vllm", ("vllm",)), ("llamacpp", ("llama.cpp",))]
)
def test_a_server_that_lists_models_is_found_with_its_quirks(name: str, quirks: tuple[str, ...]) -> None:
    with FakeUpstream(models=("m",)) as fake:
        (server,) = discover_servers({name: fake.port})
        assert [request.path for request in fake.requests] == ["/v1/models", "/"]
    assert (server.name, server.endpoint, server.quirks) == (name, fake.url, quirks)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("owner", "name", "quirks"),
    [("me", "llamacpp", ("llama-cpp-python",)), ("llamacpp", "llamacpp", ("llama.cpp",)), ("vllm", "vllm", ("vllm",))],
)
def test_a_server_on_another_ones_port_is_identified_by_its_list(
    owner: str, name: str, quirks: tuple[str, ...]
) -> None:
    with FakeUpstream(pages=make_owner_page(owner)) as fake:
        (server,) = discover_servers({"ollama": fake.port})
    assert (server.name, server.quirks) == (name, quirks)


@pytest.mark.usefixtures("patient")
def test_two_servers_of_one_name_are_distinguished_by_port() -> None:
    with FakeUpstream(pages=make_owner_page("me")) as first, FakeUpstream(pages=make_owner_page("me")) as second:
        names = [server.name for server in discover_servers({"llamacpp": first.port, "vllm": second.port})]
    assert names == ["llamacpp", f"llamacpp-{second.port}"]


@pytest.mark.usefixtures("patient")
def test_closed_ports_cost_almost_no_time() -> None:
    with ExitStack() as stack:
        ports = {}
        for name in ("ollama", "lmstudio", "vllm", "llamacpp"):
            bound = stack.enter_context(socket.socket())  # which does not listen
            bound.bind(("127.0.0.1", 0))
            ports[name] = int(bound.getsockname()[1])
        began = time.monotonic()
        assert discover_servers(ports) == ()
        assert time.monotonic() - began < 10  # it did not wait


def test_servers_that_hang_do_not_delay_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_servers.LIST_TIMEOUT_S + local_servers.ROOT_TIMEOUT_S < 0.5
    be_patient(monkeypatch, 1.5)
    pages = {"/v1/models": HANGS}
    with FakeUpstream(pages=pages) as one, FakeUpstream(pages=pages) as two, FakeUpstream(models=("m",)) as good:
        began = time.monotonic()
        servers = discover_servers({"ollama": one.port, "lmstudio": two.port, "vllm": good.port})
        took = time.monotonic() - began
    assert [server.name for server in servers] == ["vllm"]
    assert took < 10


def test_a_list_that_trickles_does_not_delay_the_start() -> None:
    listed = make_owner_page("vllm")["/v1/models"]
    trickle = Answer(listed.body, content_type="application/json", cut=1, pause_s=0.05)
    with FakeUpstream(pages={"/v1/models": trickle}) as fake:
        assert discover_servers({"vllm": fake.port}) == ()


@pytest.mark.parametrize(
    "answer",
    [
        page({"error": "no"}, status=404),
        page({"object": "list", "data": None}),
        page({"object": "list", "data": []}),
        page({"object": "list", "data": [{"name": "m"}]}),
        page(["m"]),
        Answer(b"<html>hello</html>", content_type="text/html"),
        Answer(b'{"data": [{"id": "\xff"}]}'),
        Answer(b'{"data":[{"id":"m"', content_type="application/json", end=End.RESET),
        page({"object": "list", "data": [{"id": "m"}]}, status=401),
    ],
)
def test_a_response_that_is_not_a_model_list_is_ignored(answer: Answer) -> None:
    with FakeUpstream(pages={"/v1/models": answer}) as fake:
        assert discover_servers({"vllm": fake.port}) == ()


def test_our_own_port_is_not_tried() -> None:
    with FakeUpstream(models=("m",)) as fake:
        assert discover_servers({"llamacpp": fake.port}, fake.port) == ()
        assert fake.requests == []


@pytest.mark.usefixtures("patient")
def test_another_dragoman_is_not_a_provider() -> None:
    root = page({"status": "ok", "message": "dragoman is running", "version": "0.1.0"})
    with FakeUpstream(models=("m",), pages={"/": root}) as fake:
        assert discover_servers({"llamacpp": fake.port}) == ()


OLLAMA = LocalServer("ollama", 11434, ("ollama",))


def test_a_found_server_replaces_echo(tmp_path: Path) -> None:
    config = ConfigSource(None, {}, tmp_path, tmp_path).read(servers=[OLLAMA])
    (provider,) = config.providers.values()
    assert (provider.name, provider.kind, provider.endpoint) == ("ollama", "openai-compatible", OLLAMA.endpoint)
    assert (provider.protocols, provider.quirks) == (("chat",), ("ollama",))
    assert config.origins["providers.ollama.kind"] == "port 11434 of this machine"


def test_a_key_in_the_environment_and_a_found_server_are_both_used(tmp_path: Path) -> None:
    config = ConfigSource(None, {"OPENAI_API_KEY": "sk-fake-0123456789"}, tmp_path, tmp_path).read(servers=[OLLAMA])
    assert list(config.providers) == ["openai", "ollama"]
    assert not config.has_providers


def test_a_file_that_names_a_provider_disables_discovery(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[providers.mine]\nkind = "echo"\n')
    config = ConfigSource(None, {}, tmp_path, tmp_path).read(servers=[OLLAMA])
    assert config.has_providers
    assert list(config.providers) == ["mine"]


def test_a_route_to_a_found_server_gives_no_warning(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[[models]]\nname = "fast"\nto = ["ollama/qwen3"]\n')
    assert ConfigSource(None, {}, tmp_path, tmp_path).read(servers=[OLLAMA]).warnings == ()
    assert len(ConfigSource(None, {}, tmp_path, tmp_path).read().warnings) == 1


def test_the_ports_can_be_configured() -> None:
    assert local_ports({}) == {"ollama": 11434, "lmstudio": 1234, "vllm": 8000, "llamacpp": 8080}
    assert local_ports({"DRAGOMAN_LOCAL_PORTS": ""}) == {}
    assert local_ports({"DRAGOMAN_LOCAL_PORTS": "vllm=9000, ollama=9001"}) == {"vllm": 9000, "ollama": 9001}


@pytest.mark.parametrize("text", ["vllm", "vllm=", "vllm=0", "vllm=65536", "olama=1", "vllm=-1"])
def test_invalid_ports_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="DRAGOMAN_LOCAL_PORTS"):
        local_ports({"DRAGOMAN_LOCAL_PORTS": text})
