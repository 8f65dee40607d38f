"""What a start of the gateway shows: the banner, and the first client key if there was none."""

import asyncio
import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import click
from msgspec import Struct

from dragoman import __version__
from dragoman.config.discovery import data_directory, home_directory
from dragoman.config.secret import Secret
from dragoman.config.settings import Config, ProviderConfig, find_console_state, is_loopback
from dragoman.operate import AdminError
from dragoman.operate.accounts import find_account_problems
from dragoman.operate.configuration.effective import (
    KEY_VARIABLE,
    UNSPECIFIED,
    GatewayTarget,
    client_key_variable,
    find_short_key,
)
from dragoman.operate.gateway.gateway_process import forget_gateway, record_gateway
from dragoman.store import Store, StoreError, make_store
from dragoman.store.shared import make_shared
from dragoman.tenancy.console_sessions import ConsoleSessions, console_address
from dragoman.tenancy.keys import Keyring
from dragoman.translate.hub.failure import describe_cause
from dragoman.upstreams.credentials.stored import make_stored_credentials

NO_VALID_KEY = (
    "Others can reach {host}, and every client key is revoked, so that there is no client key to protect it.\n"
    "Run `dragoman keys create`; or set $DRAGOMAN_API_KEY; or listen on 127.0.0.1."
)

log = logging.getLogger(__name__)


class Keys(Struct, frozen=True):
    """The client keys at the start."""

    created: Secret | None
    stored: int
    has_environment_key: bool
    console_link: str | None = None  # the token of a link that signs in once


async def open_keys(config: Config) -> tuple[Store, Keyring]:
    """Open the store and read its keys; a store that is down does not stop a start with the environment's key."""
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


class Startup:
    """One start of the gateway, as the user sees it."""

    def __init__(self, config: Config, target: GatewayTarget) -> None:
        self._config = config
        self._target = target
        self._keys = Keys(None, 0, config.client_key is not None)
        self._is_shown = False
        self._note: Path | None = None

    def prepare_keys(self) -> None:
        """Create the first key if there is none. The loop and the store are closed again: workers are forked later."""
        problem = find_short_key(self._config, os.environ)
        if problem is not None:
            raise AdminError(problem)
        make_shared(self._config.store, os.environ)  # what is wrong with it is said once, and not by each worker
        self._keys = asyncio.run(self._read_keys())

    def show_banner(self) -> None:
        self._is_shown = True
        try:
            _write_stdout(render_banner(self._config, self._target, self._keys))
        except OSError as error:
            log.warning("the banner could not be written to stdout: %s", describe_cause(error))
            if self._keys.created is not None:
                log.warning("so the new client key is lost; `dragoman keys create` makes another")

    def show_created_key(self) -> None:
        """Show the key that was created if the start failed before the banner: it is stored nowhere else."""
        if self._keys.created is not None and not self._is_shown:
            with suppress(OSError):
                _write_stdout(f"A client key was created, shown only this once:\n  {_export_line(self._keys.created)}")

    def record_gateway(self) -> None:
        """Write down where the gateway listens, so that commands find it on any port."""
        home = home_directory(os.environ)
        if home is None:
            return
        with suppress(OSError):  # on a read-only disk, commands need --url
            self._note = record_gateway(data_directory(os.environ, home), self._target.root)

    def forget_gateway(self) -> None:
        if self._note is not None:
            forget_gateway(self._note)

    async def _read_keys(self) -> Keys:
        store, keyring = await open_keys(self._config)
        try:
            created = await keyring.create_first()
            valid = [row for row in await keyring.list() if row.revoked_at is None]
            link = await self._make_console_link(store, keyring)
            await self._report_accounts(store)
        except StoreError:
            if self._config.client_key is None:
                raise
            return self._keys
        finally:
            await store.close()
        has_environment_key = self._config.client_key is not None and not keyring.environment_key_revoked
        keys = Keys(created.secret if created else None, len(valid), has_environment_key, link)
        if not keys.stored and not has_environment_key and not is_loopback(self._config.server.host):
            raise AdminError(NO_VALID_KEY.format(host=self._config.server.host))
        return keys

    async def _report_accounts(self, store: Store) -> None:
        """Log which credentials in the store cannot be used; nothing is changed."""
        stored = make_stored_credentials(store, self._config.store.url, os.environ)
        for problem in await find_account_problems(self._config, stored):
            log.error("%s", problem)

    async def _make_console_link(self, store: Store, keyring: Keyring) -> str | None:
        if not find_console_state(self._config, os.environ).is_on or not is_loopback(self._config.server.host):
            return None
        return await ConsoleSessions(store, keyring).make_link()


def render_banner(config: Config, target: GatewayTarget, keys: Keys) -> str:
    source = str(config.source) if config.source else "none found: defaults and environment"
    key_title = "Client key, created now and shown only this once" if keys.created is not None else "Client keys"
    parts = [
        f"dragoman {__version__} listens on {target.root}",
        *_open_address_lines(config.server.host, target.root),
        _section("Configuration", [source]),
        _section("Providers", _provider_lines(config)),
        _section(key_title, _key_lines(keys)),
        *([_section("Console", _console_lines(target, keys.console_link))] if keys.console_link else []),
        _section("To paste" if keys.created is None else "To paste, after the line above", _client_lines(target)),
    ]
    return "\n\n".join(parts) + "\n"


def _open_address_lines(host: str, root: str) -> list[str]:
    """Return the addresses for other machines, and a warning, if the gateway listens on all addresses."""
    if host not in UNSPECIFIED:
        return []
    port = root.rpartition(":")[2]
    addresses = [f"http://[{ip}]:{port}" if ":" in ip else f"http://{ip}:{port}" for ip in list_own_addresses()]
    warning = [
        "Every request needs a client key, but the connection is not encrypted:",
        "outside a trusted network, put a proxy with TLS in front, or listen on 127.0.0.1.",
    ]
    return [
        _section("Other machines reach it at", addresses or ["any address of this machine"]),
        _section("Warning", warning),
    ]


def list_own_addresses() -> list[str]:
    """Return the addresses of this machine that others may reach, the one of the default route first."""
    found: list[str] = []
    for family, outside in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))  # sends nothing: it only chooses the address
            found.append(str(probe.getsockname()[0]))
    with suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)]
    return [ip for ip in dict.fromkeys(found) if not is_loopback(ip) and "%" not in ip]


def _export_line(key: Secret) -> str:
    return f"export {KEY_VARIABLE}={key.reveal()}"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _provider_lines(config: Config) -> list[str]:
    rows = [(name, *_describe_provider(name, provider, config)) for name, provider in config.providers.items()]
    name_width = max(len(row[0]) for row in rows)
    place_width = max(len(row[1]) for row in rows)
    return [f"{name.ljust(name_width)}  {place.ljust(place_width)}  {origin}".rstrip() for name, place, origin in rows]


def _describe_provider(name: str, provider: ProviderConfig, config: Config) -> tuple[str, str]:
    origins = config.origins
    origin = origins.get(f"providers.{name}.api_key") or origins.get(f"providers.{name}.kind")
    shown_origin = f"from {origin}" if origin else ""
    if provider.kind == "echo":
        return "built in, needs no account", shown_origin
    return provider.endpoint or provider.kind, shown_origin


def _environment_key_lines(variable: str) -> list[str]:
    if variable == KEY_VARIABLE:
        return [f"the one in ${KEY_VARIABLE}"]
    return [f"the one in ${variable}; set {KEY_VARIABLE} to its value for the lines below"]


def _key_lines(keys: Keys) -> list[str]:
    if keys.created is not None:
        return [_export_line(keys.created)]
    lines = _environment_key_lines(client_key_variable(os.environ)) if keys.has_environment_key else []
    if keys.stored:
        lines.append(f"{keys.stored} in the store; `dragoman keys create` makes another if one is lost")
    return lines or ["none: no request is accepted until `dragoman keys create` has made one"]


def _console_lines(target: GatewayTarget, link: str) -> list[str]:
    return [console_address(target.root, link), "Signs you in once, within 60 s. Later: `dragoman console`."]


def _client_lines(target: GatewayTarget) -> list[str]:
    root, api, key = target.root, target.api, f"${KEY_VARIABLE}"
    model = target.model_or_placeholder
    provider = f'{{name="dragoman",base_url="{api}",env_key="{KEY_VARIABLE}",wire_api="responses"}}'
    lines = {
        "Claude Code": f"ANTHROPIC_BASE_URL={root} ANTHROPIC_AUTH_TOKEN={key} claude --model {model}",
        "Codex": f"codex -m {model} -c model_provider=dragoman -c 'model_providers.dragoman={provider}'",
        "OpenAI SDK": f"export OPENAI_BASE_URL={api} OPENAI_API_KEY={key}",
        "Anthropic SDK": f"export ANTHROPIC_BASE_URL={root} ANTHROPIC_API_KEY={key}",
        "aider": f"OPENAI_API_BASE={api} OPENAI_API_KEY={key} aider --model openai/{model}",
    }
    advice = "`dragoman connect CLIENT --write` writes this into the client's own settings."
    if target.model is None:
        advice += " `dragoman models` lists the models for MODEL."
    return [*(f"{client.ljust(15)}{line}" for client, line in lines.items()), advice]


def _write_stdout(text: str) -> None:
    """Write past Python's buffer, which would retry at exit what it cannot write now, and fail the whole process."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        click.echo(text)
        return
    sys.stdout.flush()
    data = f"{text}\n".encode(sys.stdout.encoding or "utf-8", "replace")
    while data:
        data = data[os.write(descriptor, data) :]
