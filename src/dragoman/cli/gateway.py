"""A gateway for a command to call: the running one, or one that this process starts for the duration of the command."""

import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from dragoman.cli.screen import print_note
from dragoman.config.secret import Secret
from dragoman.config.settings import Config
from dragoman.net.client import HttpClient
from dragoman.operate.configuration.effective import base_url
from dragoman.operate.gateway.running_gateway import GatewayClient, find_gateway, require_key
from dragoman.store import Store
from dragoman.tenancy.keys import Keyring

WITHOUT_KEY = "this command asks the providers itself."


@asynccontextmanager
async def open_gateway(config: Config, key: str | None, url: str | None = None) -> AsyncIterator[GatewayClient]:
    """Connect to the running gateway if there is one and a key for it is known; else start one in this process.

    Raises AdminError if the user names a gateway that does not answer, or without a key for it.
    """
    async with HttpClient() as http:
        root = await find_gateway(config, os.environ, url)
        key = key if url is None else require_key(key, url)
        if root is not None and key:
            yield GatewayClient(root, key, http)
        else:
            if root is not None:
                print_note(f"A gateway runs at {root}, but $DRAGOMAN_API_KEY is not set: {WITHOUT_KEY}")
            async with start_gateway(config) as (own_root, own_key):
                try:
                    yield GatewayClient(own_root, own_key, http)
                finally:
                    await http.close()  # an idle connection would hold up the end of the gateway for half a second


@asynccontextmanager
async def start_gateway(config: Config, store: Store | None = None) -> AsyncIterator[tuple[str, str]]:
    """Run the same server and the same code path, on a free port and with a random key; yield address and key.

    Usage and responses are stored if there is a store.
    """
    # The whole gateway, which a command that finds a running one does not need.
    from dragoman.app import App, ProcessParts

    key = secrets.token_urlsafe(32)
    server = replace(config.server, host="127.0.0.1", port=0, drain_s=0.0)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        app = App(replace(config, server=server), Keyring(None, Secret(key)), ProcessParts(os.environ), store)
        await app.start(sock)
        try:
            yield base_url("127.0.0.1", app.server.port), key
        finally:
            await app.stop()
