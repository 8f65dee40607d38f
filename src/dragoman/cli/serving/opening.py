"""A configuration comes in; the first client key is made if there is none, and the banner is shown once."""

import asyncio
import logging
import os
import sys
from contextlib import suppress

import click

from dragoman.accounts.keys import Keyring
from dragoman.admin.clients import Target
from dragoman.cli.faults import Trouble
from dragoman.cli.serving.banner import Keys, banner, key_line
from dragoman.cli.settings import client_key_variable
from dragoman.config import SHORTEST_OPEN_KEY, Config
from dragoman.config.settings import is_loopback
from dragoman.store import Store, StoreError, make_store

NO_KEY = (
    "others can reach {host}, and no client key guards it.\n"
    "`dragoman keys create` makes one; or set $DRAGOMAN_API_KEY; or listen on 127.0.0.1."
)

SHORT_KEY = (
    "the client key in ${variable} has {length}, and others can reach {host}: there a key needs at least {least}.\n"
    "Unset it and run `dragoman keys create`; or set a longer one; or listen on 127.0.0.1."
)

log = logging.getLogger(__name__)


async def open_keys(config: Config) -> tuple[Store, Keyring]:
    """The store and its keys; it may be had later only, where a key from outside opens the door all the same."""
    store = make_store(config.store.url)
    keyring = Keyring(store, config.client_key)
    try:
        await keyring.refresh()
    except StoreError as error:
        if config.client_key is None:
            await store.close()
            raise
        log.warning("no store yet, so only the key from the environment is valid: %s", error)
    return store, keyring


def short_key_problem(config: Config) -> str | None:
    """Say what is wrong with the environment's key where it is too easy to guess for the address; None if nothing."""
    key, host = config.client_key, config.server.host
    if key is None or is_loopback(host) or len(key.reveal()) >= SHORTEST_OPEN_KEY:
        return None
    length = len(key.reveal())
    shown = "1 character" if length == 1 else f"{length} characters"
    return SHORT_KEY.format(variable=client_key_variable(), length=shown, host=host, least=SHORTEST_OPEN_KEY)


class Opening:
    """One start of the gateway, as a person sees it."""

    def __init__(self, config: Config, target: Target) -> None:
        self._config = config
        self._target = target
        self._keys = Keys(None, 0, config.client_key is not None)
        self._shown = False

    def see_to_keys(self) -> None:
        """Its own loop and its own store, both closed again: workers are forked after this."""
        problem = short_key_problem(self._config)
        if problem is not None:
            raise Trouble(problem)
        self._keys = asyncio.run(self._counted())

    def announce(self) -> None:
        self._shown = True
        try:
            _write_stdout(banner(self._config, self._target, self._keys))
        except OSError as error:
            log.warning("the banner could not be written to stdout: %s", error.strerror)
            if self._keys.made is not None:
                log.warning("so the client key that was made is lost; `dragoman keys create` makes another")

    def leave_key(self) -> None:
        """A key made by a start that then failed would be lost: it is shown all the same."""
        if self._keys.made is not None and not self._shown:
            with suppress(OSError):
                _write_stdout(f"A client key was made, shown only this once:\n  {key_line(self._keys.made)}")

    async def _counted(self) -> Keys:
        store, keyring = await open_keys(self._config)
        try:
            # Where others can reach us, somebody must have made a key on purpose.
            made = await keyring.create_first() if is_loopback(self._config.server.host) else None
            live = [row for row in await keyring.list() if row.revoked_at is None]
        except StoreError:
            if self._config.client_key is None:
                raise
            return self._keys
        finally:
            await store.close()
        outside = self._config.client_key is not None and not keyring.environment_key_revoked
        keys = Keys(made.secret if made else None, len(live), outside)
        if not keys.stored and not keys.outside and not is_loopback(self._config.server.host):
            raise Trouble(NO_KEY.format(host=self._config.server.host))
        return keys


def _write_stdout(text: str) -> None:
    """Write past Python's buffer: what it cannot write, it would try again at the end, and fail the whole process."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or no file
        click.echo(text)
        return
    sys.stdout.flush()
    data = f"{text}\n".encode(sys.stdout.encoding or "utf-8", "replace")
    while data:
        data = data[os.write(descriptor, data) :]
