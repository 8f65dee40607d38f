"""A gateway in a process of its own, with upstreams that report known counts and a store of either kind."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from asking import PATHS
from dragoman.store import open_store
from gateway import provider_section
from operate.usage.client_requests import KEY
from operate.usage.counting_upstreams import CountingKiro, CountingUpstream
from shell import Served, Shell
from store.rows import EVER


class Rig:
    """Upstreams, and the configuration that names them."""

    def __init__(self, directory: Path, upstream: CountingUpstream, kiro: CountingKiro) -> None:
        self._directory = directory
        self._toml = "[retry]\nattempts = 2\nbase_s = 0\n" + kiro.section(kiro.sign_in(directory / "kiro.json"))
        self._toml += "".join(provider_section(protocol, upstream.url, protocol) for protocol in PATHS)

    def serve(self, store_url: str, *words: str, before: Sequence[str] = (), more: str = "") -> Served:
        """Start a gateway; `more` are further settings of the store, `before` is a program that starts it."""
        shell = Shell(self._directory)
        shell.start_with(*before)
        path = shell.write("usage.toml", f'{self._toml}[store]\nurl = "{store_url}"\n{more}')
        return shell.serve("--config", str(path), *words, DRAGOMAN_API_KEY=KEY)


@contextmanager
def start_upstreams(directory: Path) -> Iterator[Rig]:
    with CountingUpstream() as upstream, CountingKiro() as kiro:
        yield Rig(directory, upstream, kiro)


def list_stored(url: str) -> list[str]:
    """Return the request of each row, in the order of their names."""

    async def read() -> list[str]:
        store = await open_store(url)
        try:
            return sorted(row.client_request_id or row.request_id for row in await store.read_usage_rows(EVER))
        finally:
            await store.close()

    return asyncio.run(read())


def name_requests(count: int) -> list[str]:
    return sorted(f"request-{number}" for number in range(count))
