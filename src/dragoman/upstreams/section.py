"""Make the provider of a section of the configuration; with several credentials, one that stands for all of them.

What all kinds of providers read from their sections is here too: proxy, certificates, headers, secrets and API key.
"""

import asyncio
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from dragoman import __version__
from dragoman.config.problems import ConfigError
from dragoman.config.providers import Credential, find_stored_name, list_credentials, split_by_credential
from dragoman.config.proxies import NO_PROXY, parse_proxy, read_proxies
from dragoman.config.secret import STORE, SecretSource, resolve_secret
from dragoman.config.settings import ProviderConfig
from dragoman.net.client import DialOptions
from dragoman.net.headers import Header
from dragoman.translate.hub.caching import CacheMode
from dragoman.upstreams import KINDS, Surroundings
from dragoman.upstreams.credentials.credential import PATH_ENDS, find_named_file
from dragoman.upstreams.credentials.pool import Member, Pool
from dragoman.upstreams.credentials.shared_cooldowns import SharedCooldowns
from dragoman.upstreams.credentials.stored import push_command
from dragoman.upstreams.models import fetch_models
from dragoman.upstreams.provider import Catalogue, Endpoint, FirstTokenWait, ModelInfo, Provider, SendRequest

# Vendors, by kind or preset, whose prompt caches take a session's key, or explicit breakpoints.
KEYED_VENDORS = frozenset(("openai", "azure-openai", "codex", "kiro", "openrouter", "xai"))
KEY_HEADERS: Mapping[str, Mapping[str, bytes]] = {"xai": {"chat": b"x-grok-conv-id"}}  # by vendor and protocol
BREAKPOINT_VENDORS = frozenset(("openai", "azure-openai"))
USER_AGENT = f"dragoman/{__version__}"


def make_provider(config: ProviderConfig, around: Surroundings, old: Provider | None = None) -> Provider:
    """Make a provider; take over the state of credentials that stay from `old`, which it replaces."""
    sections, board = split_by_credential(config), around.board
    members = tuple(make_member(section, around) for section in sections)
    labels = credential_labels(config)
    ids = [_id(credential) for credential in list_credentials(config)] or [""]
    shared = None if board is None else SharedCooldowns(board, config.name)
    pool = Pool(tuple(Member(id, label) for id, label in zip(ids, labels, strict=True)), cooldowns=shared)
    if old is not None and old.account.cooldowns is not None:
        pool.inherit(old.account.cooldowns)
    if len(members) == 1:
        return replace(members[0], account=replace(members[0].account, cooldowns=pool))
    pooled = tuple(
        replace(member, account=replace(member.account, pool=pool, cooldowns=pool, slot=slot, label=label))
        for slot, (member, label) in enumerate(zip(members, labels, strict=True))
    )
    union = PooledCatalogue(pooled)
    catalogue = replace(pooled[0].catalogue, list_models=union.models, rename=union.rename)
    return replace(pooled[0], catalogue=catalogue, members=pooled)


def make_member(config: ProviderConfig, around: Surroundings) -> Provider:
    """Make the provider of a section with one credential, with the settings that all kinds have."""
    provider, vendor = KINDS[config.kind](config, around), config.preset or config.kind
    name = find_stored_name(next(iter(list_credentials(config)), None))
    return replace(
        provider,
        auth=provider.auth if name is None else replace(provider.auth, login_command=push_command(name)),
        catalogue=replace(provider.catalogue, default_window=config.context_window),
        requests=replace(
            provider.requests,
            default_thinking=config.default_thinking,
            cache=CacheMode(config.cache),
            cache_keys=vendor in KEYED_VENDORS,
            cache_key_headers=KEY_HEADERS.get(vendor, {}),
            cache_breakpoints=vendor in BREAKPOINT_VENDORS,
            cache_ttl=None if config.cache_ttl == "auto" else config.cache_ttl,
        ),
    )


def credential_labels(config: ProviderConfig) -> tuple[str, ...]:
    """Return what each of several credentials is called in messages, without the secret."""
    credentials = list_credentials(config)
    if len(credentials) < 2:
        return ("",)
    return tuple(
        f"{number} of {len(credentials)}{_describe_place(credential)}"
        for number, credential in enumerate(credentials, 1)
    )


class PooledCatalogue:
    """The catalogue of a provider with several credentials: what any of them can use."""

    def __init__(self, members: tuple[Provider, ...]) -> None:
        self._members = members

    async def models(self) -> tuple[ModelInfo, ...]:
        """Return the models that any account has. Raises the first account's error if none can list them."""
        fetching = [fetch_models(member) for member in self._members]
        lists = await asyncio.gather(*fetching, return_exceptions=True)
        fetched = [models for models in lists if not isinstance(models, BaseException)]
        if not fetched:
            assert isinstance(lists[0], BaseException)
            raise lists[0]
        by_id: dict[str, ModelInfo] = {}
        for model in (model for models in fetched for model in models):
            by_id.setdefault(model.id, model)
        return tuple(by_id.values())

    def rename(self, name: str) -> str:
        renamed = (member.catalogue.rename(name) for member in self._members)
        return next((own for own in renamed if own != name), name)


def _describe_place(credential: Credential) -> str:
    """Return where it comes from, without directories."""
    if isinstance(credential, SecretSource):
        if credential.text.startswith(("env:", STORE)):
            return f" ({credential.text})"
        file = credential.text.startswith("file:")
        path = Path(credential.text.removeprefix("file:")) if file else find_named_file(credential, PATH_ENDS)
        return f" ({path.name})" if path is not None else ""
    return f" ({credential.name})"


def _id(credential: Credential) -> str:
    text = credential.text if isinstance(credential, SecretSource) else str(credential)
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def read_dial(config: ProviderConfig, environ: Mapping[str, str]) -> DialOptions:
    """Return the section's own proxy or else the environment's, and the certificates to trust."""
    ca_file = str(config.ca_file) if config.ca_file else None
    if config.proxy is None:
        return DialOptions(ca_file=ca_file, environment_proxies=read_proxies(environ))
    proxy = resolve_secret(config.proxy, environ).reveal()
    if proxy == NO_PROXY:
        return DialOptions(ca_file=ca_file)
    try:
        parse_proxy(proxy)
    except ValueError as error:
        raise config.proxy.make_error(str(error)) from None
    return DialOptions(proxy=proxy, ca_file=ca_file)


def read_user_agent(config: ProviderConfig) -> Header:
    return (b"user-agent", (config.user_agent or USER_AGENT).encode())


def read_headers(config: ProviderConfig, environ: Mapping[str, str]) -> tuple[Header, ...]:
    """Return the user agent and the configured headers."""
    return (read_user_agent(config), *configured_headers(config, environ))


def configured_headers(config: ProviderConfig, environ: Mapping[str, str]) -> tuple[Header, ...]:
    return tuple(
        (name.lower().encode(), resolve_secret(source, environ).reveal().encode())
        for name, source in config.headers.items()
    )


def read_secrets(config: ProviderConfig, environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return what must be redacted besides the credential: configured headers, and passwords of proxies."""
    dial = read_dial(config, environ)
    found = [value for _, value in configured_headers(config, environ)]
    urls = (
        dial.proxy,
        *((dial.environment_proxies.http, dial.environment_proxies.https) if dial.environment_proxies else ()),
    )
    for proxy in (parse_proxy(url) for url in urls if url is not None):
        basic = proxy.authorization()
        found += [] if basic is None else [proxy.password.encode(), basic.rpartition(b" ")[2]]
    return tuple(found)


def api_key_reader(config: ProviderConfig, environ: Mapping[str, str]) -> Callable[[], bytes | None]:
    """Return a function that reads the configured key at each use, so that a rotated key is noticed."""
    source = config.api_key
    if source is None:
        return lambda: None

    def read() -> bytes:
        return resolve_secret(source, environ).reveal().encode()

    if not source.is_literal:
        return read
    try:
        literal = read()
    except ConfigError:
        return read  # it fails at each use
    return lambda: literal


def configured_models(config: ProviderConfig) -> tuple[ModelInfo, ...]:
    return tuple(ModelInfo(name) for name in config.models)


def read_endpoint(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Endpoint:
    """Return the endpoint at the section's own address, with its protocols, proxy and headers."""
    return Endpoint(
        url=config.endpoint or "",
        protocols=config.protocols,
        send=send,
        dial=read_dial(config, environ),
        headers=read_headers(config, environ),
        first_token=FirstTokenWait(config.first_token_timeout_s),
    )


def read_catalogue(config: ProviderConfig) -> Catalogue:
    """Return the catalogue of a provider that lists its models with GET /models."""
    return Catalogue(
        models=configured_models(config),
        has_list=config.list_models,
        list_url=config.models_endpoint or "",
        ttl_s=config.model_cache_ttl_s,
    )
