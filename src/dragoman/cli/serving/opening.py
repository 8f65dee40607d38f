"""A configuration comes in; the first client key is made if there is none, and the banner is shown once."""

import asyncio
import logging

import click

from dragoman.accounts.keys import Keyring
from dragoman.cli.clients.target import Target
from dragoman.cli.faults import Trouble
from dragoman.cli.serving.banner import Keys, banner, key_line
from dragoman.config import Config
from dragoman.http.safety import is_loopback
from dragoman.store import Store, StoreError, open_store

NO_KEY = (
    "others can reach {host}, and no client key guards it.\n"
    "`dragoman keys create` makes one; or set $DRAGOMAN_API_KEY; or listen on 127.0.0.1."
)

log = logging.getLogger(__name__)


def open_key_store(config: Config) -> Store | None:
    """The store; None where it cannot be had and a key from outside opens the door all the same."""
    try:
        return open_store(config.store.url)
    except StoreError as error:
        if config.client_key is None:
            raise
        log.warning("no store, so only the key from the environment is valid: %s", error)
        return None


class Opening:
    """One start of the gateway, as a person sees it."""

    def __init__(self, config: Config, target: Target) -> None:
        self._config = config
        self._target = target
        self._keys = Keys(None, 0, config.client_key is not None)
        self._shown = False

    def see_to_keys(self) -> None:
        """Its own loop and its own store, both closed again: workers are forked after this."""
        self._keys = asyncio.run(self._counted())

    def announce(self) -> None:
        click.echo(banner(self._config, self._target, self._keys))
        self._shown = True

    def leave_key(self) -> None:
        """A key made by a start that then failed would be lost: it is shown all the same."""
        if self._keys.made is not None and not self._shown:
            click.echo(f"A client key was made, shown only this once:\n  {key_line(self._keys.made)}")

    async def _counted(self) -> Keys:
        store = open_key_store(self._config)
        if store is None:
            return self._keys
        try:
            keyring = Keyring(store, self._config.client_key)
            # Where others can reach us, somebody must have made a key on purpose.
            made = await keyring.create_first() if is_loopback(self._config.server.host) else None
            live = [row for row in await keyring.list() if row.revoked_at is None]
        finally:
            store.close()
        keys = Keys(made.secret if made else None, len(live), self._config.client_key is not None)
        if not keys.stored and not keys.outside and not is_loopback(self._config.server.host):
            raise Trouble(NO_KEY.format(host=self._config.server.host))
        return keys
