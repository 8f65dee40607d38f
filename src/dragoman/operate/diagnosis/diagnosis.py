"""Check configuration, address, stores, keys, providers, tools and clock; find the settings that fit a server."""

import asyncio
import os
import re
import stat
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.config.problems import ConfigError, find_similar
from dragoman.config.providers import split_by_credential
from dragoman.config.settings import Config, ProviderConfig, is_loopback
from dragoman.net.bodies import read_and_close
from dragoman.net.client import ConnectionLost, HttpClient, OutgoingRequest, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.dial import find_bind_error
from dragoman.net.tasks import spawn
from dragoman.operate import AdminError, InvalidArgument, NotFound
from dragoman.operate.clients.settings_file import FileEdit, plan_edit
from dragoman.operate.clients.settings_format import CannotMerge, merge_toml
from dragoman.operate.configuration.config_file import config_path
from dragoman.operate.configuration.effective import describe_source, find_short_key
from dragoman.operate.diagnosis.checks import (
    check_account_search,
    check_provider,
    check_tools,
    find_readable_secrets,
)
from dragoman.operate.gateway.running_gateway import find_gateway, read_version
from dragoman.operate.metrics.catalogue import COOLING_DOWN, FALLBACKS, POOL_CREDENTIALS
from dragoman.store import StoreError, make_store, open_store
from dragoman.store.database import DriverMissing
from dragoman.store.shared import make_shared
from dragoman.store.store import SQLITE
from dragoman.tenancy.keys import Keyring, KeyRow
from dragoman.translate.framing.known_secrets import Secrets, redact_known
from dragoman.translate.framing.redaction import redact
from dragoman.upstreams import Surroundings
from dragoman.upstreams.account_state import BROKEN, OK, WARNING, Finding
from dragoman.upstreams.api_key import expand_quirks, make_compatible
from dragoman.upstreams.credentials.stored import StoredCredentials, open_stored_credentials
from dragoman.upstreams.models import CachedCatalogue
from dragoman.upstreams.probing.probe import ProbeResult, Trait, probe
from dragoman.upstreams.probing.probe_client import ProbeClient
from dragoman.upstreams.probing.probe_trials import CAP, MAX_REQUESTS
from dragoman.upstreams.provider import ModelInfo, Provider
from dragoman.upstreams.section import credential_labels

MAX_SKEW_S = 300
METRICS_TIMEOUT_S = 2.0
SHARED_TIMEOUT_S = 2.0
MAX_METRICS_BYTES = 16 * 1024 * 1024
SAMPLE = re.compile(r'^(\w+)\{provider="((?:[^"\\]|\\.)*)",(?:why|state)="(\w+)"\} (\d+)', re.MULTILINE)
ProviderSettings = dict[str, object]


def report_config_errors(error: ConfigError) -> list[Finding]:
    """Return a finding for each problem of a configuration that cannot be used."""
    to_do = "correct the line; `dragoman config check` checks it again"
    return [Finding("configuration", BROKEN, str(problem), to_do) for problem in error.problems]


async def examine(config: Config, environ: Mapping[str, str], url: str | None = None) -> AsyncGenerator[Finding]:
    """Check everything, all providers at the same time, and yield the findings in a fixed order.

    The gateway is the one at `url`, or the one that runs.
    """
    yield Finding("configuration", OK, describe_source(config))
    for warning in config.warnings:
        yield Finding("configuration", WARNING, warning)
    async with (
        open_stored_credentials(config, environ) as stored,
        aclosing(_examine(config, environ, url, stored)) as findings,
    ):
        async for finding in findings:
            yield finding


async def _examine(
    config: Config, environ: Mapping[str, str], url: str | None, stored: StoredCredentials | None
) -> AsyncGenerator[Finding]:
    http = HttpClient()
    clock, around = ClockCheck(), Surroundings(http.send, environ, stored)
    checks = [
        spawn(check_provider(single, label, around, clock.compare), name=f"check of {single.name}")
        for provider in config.providers.values()
        for single, label in zip(split_by_credential(provider), credential_labels(provider), strict=True)
    ]
    checks.append(spawn(check_tools(config, environ, http), name="check of tools"))
    checks += [
        spawn(check_account_search(provider, config.tools.web_search, around), name="check of an account's search")
        for provider in config.providers.values()
    ]
    try:
        for finding in [*await _check_address(config, environ, url, http), *await _check_store(config, environ)]:
            yield finding
        for finding in await _check_shared(config, environ):
            yield finding
        for check in checks:
            for finding in await check:
                yield finding
        for provider in config.providers.values():
            for finding in find_readable_secrets(provider, environ):
                yield finding
        yield clock.finding()
    finally:
        for check in checks:
            check.cancel()
        await http.close()


class ClockCheck:
    """Compares this machine's clock with the Date headers of upstreams."""

    def __init__(self) -> None:
        self._skews: list[float] = []

    def compare(self, date: bytes | None) -> None:
        try:
            upstream_time = parsedate_to_datetime((date or b"").decode("latin-1"))
        except ValueError:
            return
        self._skews.append(time.time() - upstream_time.timestamp())

    def finding(self) -> Finding:
        if not self._skews:
            return Finding("clock", OK, f"{time.strftime('%Y-%m-%d %H:%M')}, no upstream to compare with")
        skew = min(self._skews, key=abs)
        if abs(skew) <= MAX_SKEW_S:
            return Finding("clock", OK, f"within {max(1, round(abs(skew)))} s of the upstreams'")
        way = "ahead of" if skew > 0 else "behind"
        to_do = "set the clock (NTP): otherwise tokens are rejected or seem expired"
        return Finding("clock", BROKEN, f"{round(abs(skew))} s {way} the upstreams'", to_do)


async def _check_address(
    config: Config, environ: Mapping[str, str], url: str | None, http: HttpClient
) -> list[Finding]:
    server = config.server
    where = f"{server.host}:{server.port}"
    try:
        root = await find_gateway(config, environ, url)
    except AdminError as error:
        return [Finding("address", BROKEN, str(error), "`dragoman status` without --url finds the one that runs")]
    version = None if root is None else await read_version(root)
    if root is not None and version is not None:
        running = Finding("address", OK, f"dragoman {version} is running at {root}")
        return [running, *find_fallbacks(await _read_metrics(root, http))]
    problem = find_bind_error(server.host, server.port)
    if problem is not None:
        to_do = "choose another port: --port, or `port` under [server]"
        return [Finding("address", BROKEN, f"{where}: {problem}, by another program than dragoman", to_do)]
    return [Finding("address", OK, f"{where} is free; `dragoman serve` starts the gateway")]


async def _read_metrics(root: str, http: HttpClient) -> str:
    """Return nothing where the gateway does not respond: it was found a moment ago, and may have stopped since."""
    try:
        response = await http.send(OutgoingRequest("GET", f"{root}/metrics", ()), head_timeout_s=METRICS_TIMEOUT_S)
        text = (await read_and_close(response, MAX_METRICS_BYTES, METRICS_TIMEOUT_S)).decode(errors="replace")
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded):
        return ""
    return text if response.status == 200 else ""


def find_fallbacks(metrics: str) -> Iterator[Finding]:
    """Report why requests went to the next target instead of a provider, from a running gateway's metrics."""
    reasons: dict[str, list[str]] = {}
    for family, provider, label, number in SAMPLE.findall(metrics):
        if family == FALLBACKS.name and number != "0":
            reasons.setdefault(provider, []).append(f"{label.replace('_', ' ')} ({number})")
        elif family == POOL_CREDENTIALS.name and label == COOLING_DOWN and number != "0":
            reasons.setdefault(provider, []).append(f"credentials cooling down now ({number})")
    for provider, why in reasons.items():
        found = f"requests went to another provider since the gateway's start: {', '.join(why)}"
        to_do = "the log and the header `x-dragoman-route` name the provider that was used"
        yield Finding(f"fallbacks from {provider}", WARNING, found, to_do)


async def _check_store(config: Config, environ: Mapping[str, str]) -> list[Finding]:
    if not config.store.url.startswith(SQLITE):
        return await _check_database(config, environ)
    path = Path(config.store.url.removeprefix(SQLITE))
    findings = _check_file(path)
    if not os.access(path, os.F_OK):
        return [*findings, _check_keys(config, (), environ)]
    try:
        store = await open_store(config.store.url)
    except StoreError as error:
        return [
            Finding("store", BROKEN, str(error), "set another path in store.url, or restore the file from a backup")
        ]
    try:
        rows = await Keyring(store).list()
    except StoreError as error:
        return [Finding("store", BROKEN, str(error), "move the file away: a new one is created, with new keys")]
    finally:
        await store.close()
    return [*findings, _check_keys(config, rows, environ)]


async def _check_shared(config: Config, environ: Mapping[str, str]) -> list[Finding]:
    try:
        shared = make_shared(config.store, environ)
    except ConfigError as error:
        return report_config_errors(error)
    except DriverMissing as missing:
        found, _, to_do = str(missing).partition(". Run: ")
        return [Finding("store.shared", BROKEN, found, to_do)]
    if shared is None:
        return []
    from dragoman.store.valkey import SharedStateError  # its driver is installed

    shared.deadline_s = SHARED_TIMEOUT_S
    try:
        await shared.execute("PING", "doctor")
    except SharedStateError as error:
        to_do = "start the server, or correct user, password and address in store.shared"
        return [Finding("store.shared", BROKEN, str(error), to_do)]
    finally:
        await shared.stop()
    return [Finding("store.shared", OK, shared.address.name)]


async def _check_database(config: Config, environ: Mapping[str, str]) -> list[Finding]:
    store = make_store(config.store.url)
    try:
        async with store:
            rows = await store.list_keys()
    except StoreError as error:
        to_do = "start the server, or correct user, password and address in store.url"
        return [Finding("store", BROKEN, str(error), to_do)]
    return [Finding("store", OK, store.name), _check_keys(config, rows, environ)]


def _check_file(path: Path) -> list[Finding]:
    """Check the file before the store is opened, since opening corrects its mode."""
    if not path.exists():
        return [_check_parent(path)]
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return [
            Finding(
                "store",
                WARNING,
                f"{path} was readable by others (mode {mode:o})",
                "nothing: the mode has been set to 600",
            )
        ]
    directory = path.parent
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o022:
        found = f"{directory} is writable by others (mode {mode:o})"
        return [Finding("store", WARNING, found, f"chmod 700 {directory}")]
    return [Finding("store", OK, str(path))]


def _check_parent(path: Path) -> Finding:
    parent = next(directory for directory in path.parents if directory.exists())
    if os.access(parent, os.W_OK | os.X_OK):
        return Finding("store", OK, f"{path} does not exist yet; the first start creates it")
    return Finding("store", BROKEN, f"{parent} is not writable", "change its mode, or set store.url")


def _check_keys(config: Config, rows: Sequence[KeyRow], environ: Mapping[str, str]) -> Finding:
    problem = find_short_key(config, environ)
    if problem is not None:
        found, _, to_do = problem.partition("\n")
        return Finding("client keys", BROKEN, found, to_do)
    valid = sum(row.revoked_at is None for row in rows)
    keys = [f"{valid} in the store"] if valid else []
    keys += ["one from the environment"] if config.client_key is not None else []
    if keys:
        return Finding("client keys", OK, " and ".join(keys))
    if not rows:
        return Finding("client keys", WARNING, "none", "the first start creates one; so does `dragoman keys create`")
    if is_loopback(config.server.host):
        return Finding("client keys", WARNING, "all are revoked", "`dragoman keys create`")
    to_do = "`dragoman keys create`, or listen on 127.0.0.1"
    return Finding("client keys", BROKEN, f"all are revoked, and others can reach {config.server.host}", to_do)


class ProbeReport(Struct, frozen=True):
    """What was found, and the settings that follow from it."""

    provider: ProviderConfig
    profile: ProbeResult
    settings: ProviderSettings


def choose_provider(config: Config, name: str) -> ProviderConfig:
    """Return the provider of that name; only one of kind openai-compatible can be probed."""
    provider = config.providers.get(name)
    if provider is None:
        similar = find_similar(name, config.providers)
        hint = f'Did you mean "{similar[0]}"?' if similar else f"Configured: {', '.join(config.providers)}."
        raise NotFound(f'There is no provider "{name}". {hint}')
    if provider.kind != "openai-compatible":
        raise InvalidArgument(
            f'Provider "{name}" is of kind {provider.kind}, which needs no probing: '
            "`dragoman doctor` without a name checks it."
        )
    return provider


async def probe_provider(
    config: ProviderConfig, model: str | None, report_progress: Callable[[str], None]
) -> ProbeReport:
    """Send small requests to a provider's server and report what it supports."""
    async with HttpClient() as http:
        provider = make_compatible(config, Surroundings(http.send, os.environ))
        model = model or next((info.id for info in await _list_models(provider)), None)
        if model is None:
            raise AdminError(f"{config.name} lists no models. Is its server up? `--model M` names a model.")
        report_progress(
            f"Probing {model} at {provider.endpoint.url}: at most {MAX_REQUESTS} small requests, "
            f"each for at most {CAP} tokens if the server respects the limit."
        )
        profile = await probe(ProbeClient(provider, model), model)
        secrets = await provider.list_secrets()
    profile = _redact_profile(profile, secrets)
    return ProbeReport(config, profile, choose_settings(profile, config))


def choose_settings(profile: ProbeResult, provider: ProviderConfig) -> ProviderSettings:
    """Return the protocols, the configured ones first, and the quirks, if there are or were any."""
    configured = [name for name in provider.protocols if name in profile.protocols]
    protocols = [*configured, *(name for name in profile.protocols if name not in configured)]
    known = expand_quirks(provider.quirks)
    quirks = [*profile.quirks, *sorted(known & profile.undecided)]
    settings: ProviderSettings = {"protocol": protocols[0] if len(protocols) == 1 else protocols}
    if set(quirks) == known and provider.quirks:
        settings["quirks"] = provider.quirks[0] if len(provider.quirks) == 1 else list(provider.quirks)
    elif quirks or provider.quirks:
        settings["quirks"] = quirks
    return settings


def plan_probed_settings(config: Config, report: ProbeReport, environ: Mapping[str, str]) -> FileEdit:
    """Return the change of dragoman.toml that a report calls for."""
    provider = report.provider
    path = config_path(config, environ, Path.home())
    # A server that was discovered is not in the file yet.
    own: ProviderSettings = {} if config.has_providers else {"kind": provider.kind, "endpoint": provider.endpoint}
    if provider.preset and own:
        own = {"kind": provider.preset}
    try:
        settings = {"providers": {provider.name: {**own, **report.settings}}}
        return plan_edit(path, lambda text: merge_toml(text, settings))
    except CannotMerge as reason:
        raise AdminError(f"{path} was not changed: {reason}.\nAdd the lines above yourself.") from reason


def _redact_profile(profile: ProbeResult, secrets: Secrets) -> ProbeResult:
    """Remove secrets from a server's messages, which may repeat what it was sent."""

    def redact_trait(trait: Trait) -> Trait:
        message = redact_known(trait.message.encode(errors="replace"), secrets).decode()
        return msgspec.structs.replace(trait, message=redact(message))

    return msgspec.structs.replace(profile, traits=tuple(map(redact_trait, profile.traits)))


async def _list_models(provider: Provider) -> tuple[ModelInfo, ...]:
    return provider.catalogue.models or await CachedCatalogue(provider, asyncio.get_running_loop().time).wait_for_list()
