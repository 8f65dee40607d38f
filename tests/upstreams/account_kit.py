"""What tests of accounts share: refreshers with a clock that can be moved, clients of services, fake sleeps."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, Self, TypeVar

from dragoman.net.client import DialOptions, HttpClient
from dragoman.upstreams.credentials.credential import Credential, CredentialSource, LocalSource
from dragoman.upstreams.credentials.refresher import CredentialRefresher
from dragoman.upstreams.credentials.service_client import ServerClock, ServiceClient
from outgoing import open_http

C = TypeVar("C", bound=Credential)


class RefresherRig(Generic[C]):
    """A refresher with its HTTP client and its clock."""

    refresher: CredentialRefresher[C]

    def __init__(self) -> None:
        self.http = HttpClient()
        self.ahead_s = 0.0
        self.clock = ServerClock(lambda: time.time() + self.ahead_s)
        self.service = ServiceClient(self.http.send, DialOptions(), self.clock, ())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    async def get_token(self) -> str:
        return (await self.refresher.get()).access_token


def as_local(source: CredentialSource[C]) -> LocalSource[C]:
    """Return a source that is known to be on this machine."""
    assert isinstance(source, LocalSource)
    return source


def get_once(rig: RefresherRig[C]) -> C:
    """Return the credential that a single request gets."""

    async def get() -> C:
        async with rig:
            return await rig.refresher.get()

    return asyncio.run(get())


@asynccontextmanager
async def open_service() -> AsyncIterator[ServiceClient]:
    async with open_http() as http:
        yield ServiceClient(http.send, DialOptions(), ServerClock(), ())


class FakeSleep:
    """Sleeps that take no time and are remembered."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(round(seconds, 3))
