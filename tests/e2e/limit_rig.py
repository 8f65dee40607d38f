"""A gateway whose keys are under limits, and how their counters stand."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from asking import NO_HEADERS, Reply
from dragoman.store.meter import Level
from dragoman.store.usage_rows import UsageRow, UsageSpan
from dragoman.tenancy.keys import KeyId
from dragoman.tenancy.limiter import Limiter
from narrowing import present
from rig import ONCE, UPSTREAMS, Rig, run_rig
from waiting import wait_until

PRICES = '[[prices]]\nmodel = "*"\ninput = 1.0\noutput = 10.0\n'  # dollars per million tokens


@dataclass
class LimitedRig(Rig):
    @property
    def limiter(self) -> Limiter:
        return present(self.gateway.app.gateway.limiter)

    @property
    def key(self) -> str:
        return self.gateway.keys["laptop"]

    def ask_limited(
        self, client: str, upstream: str = "", *, stream: bool = False, headers: Mapping[str, str] = NO_HEADERS
    ) -> Reply:
        return self.ask(client, upstream or client, stream=stream, key=self.key, headers=headers)

    def levels(self) -> dict[str, Level]:
        """Return how the counters of all limits of the key and of all providers stand."""
        limiter = self.limiter
        [key] = [one.id for one in limiter.policies.keys if one.name == "laptop"]
        scopes = [*limiter.policies.find(KeyId(key)).scopes]
        for provider in self.fakes:
            scopes += limiter.policies.find_provider_scopes(provider)
        counters = list(dict.fromkeys(part.counter for scope in scopes for part in limiter.list_parts(scope)))
        found = asyncio.run_coroutine_threadsafe(limiter.meter.read(counters), self.gateway.loop).result(60)
        return {level.counter: level for level in found}

    def level(self, prefix: str) -> Level:
        [level] = [level for counter, level in self.levels().items() if counter.startswith(prefix)]
        return level

    def wait_until_settled(self) -> None:
        """Wait until nothing is reserved, and no slot is taken."""
        wait_until(lambda: not any(level.reserved or level.running for level in self.levels().values()))

    def rows(self, count: int) -> Sequence[UsageRow]:
        """Return all usage rows, once there are so many, the oldest first."""
        usage = present(self.gateway.app.usage)

        async def read() -> Sequence[UsageRow]:
            store = await usage.wait_until_written()
            return await store.read_usage_rows(UsageSpan(0, 2**62))

        found: list[UsageRow] = []

        def has_come() -> bool:
            found[:] = asyncio.run_coroutine_threadsafe(read(), self.gateway.loop).result(60)
            return len(found) >= count

        wait_until(has_come)
        assert len(found) == count
        return found


@contextmanager
def run_limited(
    directory: Path,
    limits: str,
    settings: str = ONCE,
    upstreams: Sequence[str] = UPSTREAMS,
    options: Mapping[str, str] = NO_HEADERS,
    prices: str = PRICES,
) -> Iterator[LimitedRig]:
    """`options` are further lines of the sections of some upstreams."""
    toml = settings + limits + prices
    with run_rig(directory, toml, upstreams=upstreams, keys=("laptop",), options=options) as rig:
        yield LimitedRig(rig.gateway, rig.fakes, directory)
