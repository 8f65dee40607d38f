"""Make a link that opens the console of the gateway that runs here."""

import os
from collections.abc import Mapping

from dragoman.accounts.console_sessions import ConsoleSessions, console_address
from dragoman.accounts.keys import Keyring
from dragoman.admin.configuration import base_url
from dragoman.admin.errors import AdminError, NotFound
from dragoman.admin.running_gateway import find_running
from dragoman.config import Config
from dragoman.config.settings import CONSOLE_VARIABLE, find_console_state, is_loopback
from dragoman.store import open_store

NO_OWNER = (
    "Signing in needs the owner's key. Set $DRAGOMAN_API_KEY to the key that the gateway was started with, "
    "or open {root}/console and sign in with a key."
)


async def make_console_link(config: Config, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address that signs the owner in once, within 60 s; raises AdminError if there is no console."""
    root = await find_running(config)
    if root is None:
        address = base_url(config.server.host, config.server.port)
        raise NotFound(f"No gateway is running at {address}. Start one: dragoman serve")
    state = find_console_state(config, environ)
    if not state.is_on:
        raise AdminError(state.problem or f"The console is off: console.enabled is false, or ${CONSOLE_VARIABLE} is 0.")
    if not is_loopback(config.server.host):
        raise AdminError("Open the console at the address of your reverse proxy, and sign in there with a key.")
    store = await open_store(config.store.url)
    try:
        keyring = Keyring(store, config.client_key)
        await keyring.refresh()
        token = await ConsoleSessions(store, keyring).make_link()
    finally:
        await store.close()
    if token is None:
        raise AdminError(NO_OWNER.format(root=root))
    return console_address(root, token)
