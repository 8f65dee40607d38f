"""What a command administers: the gateway that runs, or else the configured store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.config.settings import Config
from dragoman.net.client import ConnectionLost, HttpClient, SizeLimitExceeded, UpstreamTimeout
from dragoman.operate import AdminError
from dragoman.operate.gateway.running_gateway import GatewayClient, GatewayRefused
from dragoman.store import open_store
from dragoman.tenancy.keys import Keyring
from dragoman.translate.framing.jsonread import JSON_ERRORS

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
