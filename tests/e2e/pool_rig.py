"""A gateway with several credentials for one upstream that distinguishes them and records which were used."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dragoman.upstreams.credentials.pool import Pool
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, running
from rig import QUICK
from scripting import write_reply
from sdk_replies import Sdk

KINDS = {"chat": "openai", "responses": "openai", "messages": "anthropic"}


def key_of(request: ReceivedRequest) -> str:
    return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")


@dataclass
class Keyed:
    """Refuses the keys in `refusals`; any other key gets a reply."""

    protocol: str
    refusals: dict[str, Answer] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()  # of good answers
    seen: list[str] = field(default_factory=list)  # the keys in the order in which they were presented

    def __call__(self, request: ReceivedRequest) -> Answer:
        key = key_of(request)
        self.seen.append(key)
        if key in self.refusals:
            return self.refusals[key]
        return write_reply(self.protocol, "Hello", stream=bool(request.json.get("stream")), headers=self.headers)

    def take_used(self) -> list[str]:
        """Return the credentials that were used since the last call."""
        seen, self.seen = self.seen, []
        return seen


@dataclass
class PoolRig:
    gateway: Running
    upstream: FakeUpstream
    keyed: Keyed
    sdk: Sdk
    toml: str

    @property
    def pool(self) -> Pool:
        return pool_of(self.gateway, "up")

    def advance_clock(self, seconds: float) -> None:
        """So much time has passed, as the pool sees it."""
        self.pool.clock = lambda: time.time() + seconds


def pool_of(gateway: Running, name: str) -> Pool:
    pool = gateway.app.gateway.runtime.providers[name].account.pool
    assert pool is not None
    return pool


def keys_of(size: int) -> list[str]:
    return [f"sk-fake-key-{number}" for number in range(1, size + 1)]


def make_section(protocol: str, url: str, keys: list[str]) -> str:
    listed = msgspec.json.encode(keys).decode()
    return f'[providers.up]\nkind = "{KINDS[protocol]}"\nendpoint = "{url}"\napi_key = {listed}\n'


@contextmanager
def run_pool(
    directory: Path,
    protocol: str = "chat",
    keys: list[str] | None = None,
    more: str = "",
    stored: tuple[str, ...] = (),  # names of client keys in a store
) -> Iterator[PoolRig]:
    keyed = Keyed(protocol)
    with FakeUpstream(choose=keyed) as upstream:
        toml = QUICK + make_section(protocol, upstream.url, keys or keys_of(2)) + more
        with running(toml, directory, stored=stored) as gateway:
            gateway.settle()
            sdk = Sdk(gateway.url, KEY)
            try:
                yield PoolRig(gateway, upstream, keyed, sdk, toml)
            finally:
                sdk.close()
