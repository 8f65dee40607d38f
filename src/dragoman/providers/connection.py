"""Connection settings of a provider's section: proxy, certificates, headers, secrets and API key."""

from collections.abc import Callable, Mapping

from dragoman import __version__
from dragoman.config.proxies import NO_PROXY, parse_proxy, read_proxies
from dragoman.config.secret import resolve_secret
from dragoman.config.settings import ProviderConfig
from dragoman.net.client import DialOptions
from dragoman.net.headers import Header
from dragoman.providers.provider import Catalogue, Endpoint, FirstTokenWait, ModelInfo, SendRequest

USER_AGENT = f"dragoman/{__version__}"


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

    def read() -> bytes | None:
        return resolve_secret(source, environ).reveal().encode() if source else None

    return read


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
