"""A gateway with several credentials for one upstream that distinguishes them and records which were used."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dragoman.accounts.pool import Pool
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, running
from rig import ENCODERS
from scripting.replies import ScriptedReply, Text
from sdk_replies import Sdk

QUICK = "[retry]\nattempts = 3\nbase_s = 0.01\n"
KINDS = {"chat": "openai", "responses": "openai", "messages": "anthropic"}


def key_of(request: ReceivedRequest) -> str:
    return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")


TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 500: "api_error"}


def error(status: int, message: str, code: str | None = None, **headers: str) -> Answer:
    response = {"type": TYPES.get(status, "invalid_request_error"), "message": message, "code": code, "param": None}
    body = msgspec.json.encode({"type": "error", "error": response})
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(body, status, "application/json", fields)


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
        encoder, scripted = ENCODERS[self.protocol], ScriptedReply((Text("Hello"),))
        if request.json.get("stream"):
            return Answer(encoder.encode_stream(scripted), headers=self.headers)
        return Answer(encoder.encode_whole(scripted), content_type="application/json", headers=self.headers)

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
    directory: Path, protocol: str = "chat", keys: list[str] | None = None, more: str = ""
) -> Iterator[PoolRig]:
    keyed = Keyed(protocol)
    with FakeUpstream(choose=keyed) as upstream:
        toml = QUICK + make_section(protocol, upstream.url, keys or keys_of(2)) + more
        with running(toml, directory) as gateway:
            gateway.settle()
            sdk = Sdk(gateway.url, KEY)
            try:
                yield PoolRig(gateway, upstream, keyed, sdk, toml)
            finally:
                sdk.close()
