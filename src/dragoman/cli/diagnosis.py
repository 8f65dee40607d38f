"""A usable configuration comes in; what is found of store, keys, address, providers and clock goes out."""

import asyncio
import os
import socket
import stat
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from msgspec.structs import replace

from dragoman.accounts.keys import Keyring
from dragoman.cli.detours import detours
from dragoman.cli.exposure import exposed
from dragoman.cli.gateway import version_at
from dragoman.cli.serving.opening import short_key_problem
from dragoman.cli.settings import base_url
from dragoman.config import Config, ConfigError, ProviderConfig
from dragoman.config.providers import split_by_credential
from dragoman.config.settings import is_loopback
from dragoman.framing.known_secrets import list_secrets, redact_known
from dragoman.framing.redaction import redact
from dragoman.net.client import ConnectionLost, HttpClient, OutgoingRequest, UpstreamTimeout
from dragoman.net.headers import Header
from dragoman.protocols import PROTOCOLS
from dragoman.providers import KINDS, lacking
from dragoman.providers.account_state import BROKEN, OK, WARNING, Finding
from dragoman.providers.pooled import labels_of
from dragoman.providers.provider import Provider
from dragoman.store import StoreError, make_store, open_store
from dragoman.store.store import SQLITE

PATIENCE_S = 10.0
MAX_SKEW_S = 300


Findings = list[Finding]


async def examine(config: Config) -> Findings:
    http = HttpClient()
    clock = Clock()
    try:
        findings = [*await _address(config, http), *await _store(config)]
        providers = [
            _provider(single, label, http, clock)
            for provider in config.providers.values()
            for single, label in zip(split_by_credential(provider), labels_of(provider), strict=True)
        ]
        for found in await asyncio.gather(*providers):
            findings += found
        for provider in config.providers.values():
            findings += exposed(provider, os.environ)
    finally:
        await http.close()
    return [*findings, clock.finding()]


class Clock:
    """Compares our clock with what upstreams say of theirs."""

    def __init__(self) -> None:
        self._skews: list[float] = []

    def see(self, date: bytes | None) -> None:
        try:
            moment = parsedate_to_datetime((date or b"").decode("latin-1"))
        except ValueError:
            return
        self._skews.append(time.time() - moment.timestamp())

    def finding(self) -> Finding:
        if not self._skews:
            return Finding("clock", OK, f"{time.strftime('%Y-%m-%d %H:%M')}, no upstream to compare with")
        skew = min(self._skews, key=abs)
        if abs(skew) <= MAX_SKEW_S:
            return Finding("clock", OK, f"within {max(1, round(abs(skew)))} s of the upstreams'")
        way = "ahead of" if skew > 0 else "behind"
        to_do = "set the clock (NTP): tokens are refused or seem expired otherwise"
        return Finding("clock", BROKEN, f"{round(abs(skew))} s {way} the upstreams'", to_do)


async def _address(config: Config, http: HttpClient) -> Findings:
    server = config.server
    where = f"{server.host}:{server.port}"
    root = base_url(server.host, server.port)
    version = await version_at(root)
    if version is not None:
        return [Finding("address", OK, f"dragoman {version} is running at {root}"), *await detours(root, http)]
    try:
        with socket.socket(socket.AF_INET6 if ":" in server.host else socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((server.host, server.port))
    except OSError as error:
        to_do = "choose another: --port, or `port` under [server]"
        return [Finding("address", BROKEN, f"{where}: {error.strerror}, by something that is no dragoman", to_do)]
    return [Finding("address", OK, f"{where} is free; `dragoman serve` starts the gateway")]


async def _store(config: Config) -> Findings:
    if not config.store.url.startswith(SQLITE):
        return await _database(config)
    path = Path(config.store.url.removeprefix(SQLITE))
    findings = _file(path)
    if not os.access(path, os.F_OK):
        return [*findings, _keys(config, 0)]
    try:
        store = await open_store(config.store.url)
    except StoreError as error:
        return [Finding("store", BROKEN, str(error), "another path in store.url, or the file from a backup")]
    try:
        rows = await Keyring(store).list()
    except StoreError as error:
        return [Finding("store", BROKEN, str(error), "move the file away: a new one is made, with new keys")]
    finally:
        await store.close()
    live = sum(row.revoked_at is None for row in rows)
    return [*findings, _keys(config, live)]


async def _database(config: Config) -> Findings:
    store = make_store(config.store.url)
    try:
        rows = await store.keys()
    except StoreError as error:
        to_do = "start the server, or mend user, password and address in store.url"
        return [Finding("store", BROKEN, str(error), to_do)]
    finally:
        await store.close()
    return [Finding("store", OK, store.name), _keys(config, sum(row.revoked_at is None for row in rows))]


def _file(path: Path) -> Findings:
    """Looked at before the store is opened, since opening mends the file's mode."""
    if not path.exists():
        return [_absent(path)]
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return [Finding("store", WARNING, f"{path} was readable by others (mode {mode:o})", "nothing: it is 600 now")]
    folder = path.parent
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o022:
        return [Finding("store", WARNING, f"{folder} is writable by others (mode {mode:o})", f"chmod 700 {folder}")]
    return [Finding("store", OK, str(path))]


def _absent(path: Path) -> Finding:
    around = next(folder for folder in path.parents if folder.exists())
    if os.access(around, os.W_OK | os.X_OK):
        return Finding("store", OK, f"{path} does not exist yet; the first start makes it")
    return Finding("store", BROKEN, f"{around} cannot be written to", "mend its mode, or set store.url")


def _keys(config: Config, live: int) -> Finding:
    problem = short_key_problem(config)
    if problem is not None:
        found, _, to_do = problem.partition("\n")
        return Finding("client keys", BROKEN, found, to_do)
    outside = ["one from the environment"] if config.client_key is not None else []
    stored = [f"{live} in the store"] if live else []
    if stored or outside:
        return Finding("client keys", OK, " and ".join([*stored, *outside]))
    if is_loopback(config.server.host):
        return Finding("client keys", WARNING, "none", "the first start makes one, or `dragoman keys create`")
    to_do = "`dragoman keys create`, or listen on 127.0.0.1"
    return Finding("client keys", BROKEN, f"none, and {config.server.host} can be reached by others", to_do)


async def _provider(config: ProviderConfig, label: str, http: HttpClient, clock: Clock) -> Findings:
    whole = f"provider {config.name}"
    what = f"{whole}, credential {label}" if label else whole
    if (lack := lacking(config)) is not None:
        return [Finding(what, WARNING, f"{lack} is not in this version yet", "it is left out")]
    try:
        provider = KINDS[config.kind](config, http.send, os.environ)
        if provider.account.inspect is not None:
            findings = [_hide_secrets(finding, provider) for finding in await provider.account.inspect()]
            return [replace(finding, what=finding.what.replace(whole, what, 1)) for finding in findings]
        if not provider.catalogue.has_list:
            return [Finding(what, OK, "built in" if config.kind == "echo" else "ready")]
        headers = await provider.auth.authorize(provider.endpoint.protocols[0])
    except ConfigError as error:
        return [Finding(what, BROKEN, str(error), "set it, or take the provider out")]
    return [await _asked(what, provider, headers, http, clock)]


def _hide_secrets(finding: Finding, provider: Provider) -> Finding:
    """An account's server may repeat what it was sent, a secret of `headers` for example."""
    found = redact_known(finding.found.encode(errors="replace"), list_secrets((), provider.auth.secrets)).decode()
    return replace(finding, found=redact(found))


async def _asked(
    what: str, provider: Provider, credential: tuple[Header, ...], http: HttpClient, clock: Clock
) -> Finding:
    upstream = PROTOCOLS[provider.endpoint.protocols[0]].upstream
    assert upstream is not None
    headers = (*provider.endpoint.headers, *upstream.required_headers, *credential)
    out = OutgoingRequest("GET", f"{provider.endpoint.url}/models", headers)
    try:
        answer = await http.send(out, provider.endpoint.dial, head_timeout_s=PATIENCE_S)
    except (ConnectionLost, UpstreamTimeout, ValueError) as fault:
        to_do = f"is {provider.endpoint.url} right, and the server up? A proxy goes into `proxy`"
        return Finding(what, BROKEN, redact(str(fault)), to_do)
    clock.see(answer.headers.get(b"date"))
    answer.close()
    return _judged(what, provider, answer.status)


def _judged(what: str, provider: Provider, status: int) -> Finding:
    where = provider.endpoint.url
    if status == 200:
        return Finding(what, OK, f"{where} answers and takes the credential")
    if status in (401, 403):
        return Finding(what, BROKEN, f"{where} refuses the credential (HTTP {status})", "renew `api_key`")
    if status == 404:
        to_do = "list them in `models`, and look whether the endpoint's path is right"
        return Finding(what, WARNING, f"{where} answers, but lists no models (HTTP 404)", to_do)
    return Finding(what, WARNING, f"{where} answers with HTTP {status}", "try again later")
