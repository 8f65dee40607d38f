"""What a command administers: the gateway that runs, or else the configured store."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from msgspec import Struct

from dragoman.config.settings import Config
from dragoman.net.client import ConnectionLost, HttpClient, SizeLimitExceeded, UpstreamTimeout
from dragoman.operate import AdminError
from dragoman.operate.gateway.running_gateway import GatewayClient, GatewayRefused, find_gateway
from dragoman.store import open_store
from dragoman.tenancy.keys import Keyring
from dragoman.translate.framing.jsonread import JSON_ERRORS

T = TypeVar("T")
R = TypeVar("R")

NO_ADMIN_STATUSES = (401, 403, 404)  # the key in this shell is not an admin's there, or the gateway has no such path


@asynccontextmanager
async def open_keyring(config: Config) -> AsyncIterator[Keyring]:
    """Open the keys of the configured store, with what the configuration sets for them."""
    async with await open_store(config.store.url) as store:
        keyring = Keyring(store)
        keyring.policies.adopt(config.limits, config.teams)
        yield keyring


@asynccontextmanager
async def open_admin(
    config: Config, root: str | None, path: str, *, named: bool = False
) -> AsyncIterator[GatewayClient | Keyring]:
    """Use the running gateway, if the key in this shell may read `path` there, else the configured store.

    A gateway that the user named is used in any case; raises AdminError if this shell has no key for it.
    """
    async with HttpClient() as http:
        if named and root is not None:
            if config.client_key is None:
                raise AdminError(f"The owner's key of {root} is needed: set $DRAGOMAN_API_KEY.")
            yield GatewayClient(root, config.client_key.reveal(), http)
        elif (gateway := await _find_gateway(config, root, path, http)) is not None:
            yield gateway
        else:
            async with open_keyring(config) as keyring:
                yield keyring


class AdminPart(Struct, Generic[T], frozen=True):
    """A part of what commands administer."""

    path: str  # which the key in this shell must be able to read in a gateway
    stored: Callable[[Keyring, Config], T]
    remote: Callable[[GatewayClient], T]

    @asynccontextmanager
    async def open(self, config: Config, root: str | None, *, named: bool = False) -> AsyncIterator[T]:
        async with open_admin(config, root, self.path, named=named) as admin:
            yield self.stored(admin, config) if isinstance(admin, Keyring) else self.remote(admin)

    async def use(self, config: Config, url: str | None, action: Callable[[T], Awaitable[R]]) -> R:
        """Do something with the gateway at an address, with the one that runs, or else with the store."""
        root = await find_gateway(config, os.environ, url)
        async with self.open(config, root, named=url is not None) as part:
            return await action(part)


async def _find_gateway(config: Config, root: str | None, path: str, http: HttpClient) -> GatewayClient | None:
    if root is None or config.client_key is None:
        return None
    gateway = GatewayClient(root, config.client_key.reveal(), http)
    try:
        await gateway.get(path)
    except GatewayRefused as refused:
        if refused.status in NO_ADMIN_STATUSES:
            return None
        raise
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded, *JSON_ERRORS):
        return None
    return gateway
