"""A real server is found on its port, and `doctor NAME` finds its known quirks."""

import asyncio
from urllib.parse import urlsplit

from dragoman.config.settings import ProviderConfig
from dragoman.net.client import HttpClient
from dragoman.upstreams import Surroundings
from dragoman.upstreams.api_key import SERVERS, make_compatible
from dragoman.upstreams.local_servers import discover
from dragoman.upstreams.probing.probe import ProbeResult, probe
from dragoman.upstreams.probing.probe_client import ProbeClient
from model.server import ALIAS


def test_the_server_is_known_by_its_list_of_models(upstream: str) -> None:
    port = urlsplit(upstream).port
    assert port is not None
    (server,) = asyncio.run(discover({"vllm": port}, own_port=0))
    assert (server.name, server.endpoint, server.quirks) == ("llamacpp", upstream, ("llama-cpp-python",))


def probe_server(upstream: str) -> ProbeResult:
    async def ask() -> ProbeResult:
        http = HttpClient()
        config = ProviderConfig(name="p", kind="openai-compatible", endpoint=upstream, protocols=("chat",))
        try:
            return await probe(ProbeClient(make_compatible(config, Surroundings(http.send, {})), ALIAS), ALIAS)
        finally:
            await http.close()

    return asyncio.run(ask())


def test_three_probes_find_the_known_quirks_of_the_server(upstream: str) -> None:
    profiles = [probe_server(upstream) for _ in range(3)]
    assert profiles[0].protocols == ("chat",)
    assert set(profiles[0].quirks) == SERVERS["llama-cpp-python"]
    for profile in profiles[1:]:
        assert (profile.protocols, profile.quirks) == (profiles[0].protocols, profiles[0].quirks)
        found = [(trait.what, trait.found) for trait in profile.traits]
        assert found == [(trait.what, trait.found) for trait in profiles[0].traits]
