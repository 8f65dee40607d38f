"""Read the configuration, and show every value that is in effect with its origin."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.discovery import LocalServer, local_ports
from dragoman.config.load import ConfigSource
from dragoman.config.providers import credential_field, list_credentials
from dragoman.config.proxies import read_proxies
from dragoman.config.secret import SHORTEST_OPEN_KEY, Secret, SecretSource
from dragoman.config.settings import Config, ProviderConfig, is_loopback
from dragoman.upstreams.local_servers import discover

KEY_VARIABLE = "DRAGOMAN_API_KEY"
SECTIONS = ("server", "retry", "debug", "store", "responses", "fetch", "effort", "console")
UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # bound to every address, reached at this one
URL_PASSWORD = re.compile(r"(?<=://)([^/:@]*):[^/]*(?=@)")
PASSWORD_PARAMETER = re.compile(r"(?<=[?&]password=)[^&]*")

SHORT_KEY = (
    "the client key in ${variable} has {length}, and others can reach {host}: there a key needs at least {least}.\n"
    "Unset it and run `dragoman keys create`; or set a longer one; or listen on 127.0.0.1."
)

SettingValue = str | int | float | bool | None | list[str]


class EffectiveSetting(Struct, frozen=True):
    """One value that is in effect; secrets are masked."""

    key: str
    value: SettingValue
    origin: str


class ConfigReader(Protocol):
    def __call__(self, *, text: str | None = None) -> Config:
        """Return the checked configuration, of this text or else of the file; raises ConfigError."""


async def read_with_local_servers(source: ConfigSource) -> Config:
    """Read the configuration that a gateway would use, with the model servers that run on this machine."""
    config = source.read()
    servers = await find_local_servers(source, config, config.server.port)
    return source.read(None, servers) if servers else config


async def find_local_servers(source: ConfigSource, config: Config, own_port: int) -> tuple[LocalServer, ...]:
    """Return the model servers that listen on this machine, if the configuration names no provider."""
    if config.has_providers:
        return ()
    return await discover(local_ports(source.environ), own_port=own_port)


def list_settings(config: Config, environ: Mapping[str, str]) -> Iterator[EffectiveSetting]:
    """Yield every value that is in effect, in the order of the file's sections."""
    for section in SECTIONS:
        yield from _list_fields(section, getattr(config, section), config.origins)
    for tool in msgspec.structs.fields(config.tools):
        yield from _list_tool(f"tools.{tool.name}", getattr(config.tools, tool.name), config.origins)
    for name, provider in config.providers.items():
        yield from _list_provider(f"providers.{name}", provider, config.origins)
    for index, route in enumerate(config.models):
        yield from _list_fields(f"models[{index}]", route, config.origins)
    for index, price in enumerate(config.prices):
        yield from _list_fields(f"prices[{index}]", price, config.origins)
    yield from _list_limits(config)
    yield EffectiveSetting("client key", _mask(config.client_key), _client_key_origin(config, environ))
    yield from _list_proxies(environ)


def describe_source(config: Config) -> str:
    return str(config.source) if config.source else "no dragoman.toml: defaults and environment"


def client_key_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable that a configured client key comes from."""
    return "DRAGOMAN_API_KEY" if "DRAGOMAN_API_KEY" in environ else "PROXY_API_KEY"


def find_short_key(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return what is wrong with the environment's key if it is too easy to guess for an open address, or None."""
    key, host = config.client_key, config.server.host
    if key is None or is_loopback(host) or len(key.reveal()) >= SHORTEST_OPEN_KEY:
        return None
    length = len(key.reveal())
    shown = "1 character" if length == 1 else f"{length} characters"
    variable = client_key_variable(environ)
    return SHORT_KEY.format(variable=variable, length=shown, host=host, least=SHORTEST_OPEN_KEY)


class GatewayTarget(Struct, frozen=True):
    """The gateway's address without a path, a model, None where the user must choose one, and its context window."""

    root: str
    model: str | None = None
    window: int | None = None  # in tokens; None: not known

    @property
    def api(self) -> str:
        """The address with the API version, as OpenAI's clients expect it."""
        return f"{self.root}/v1"

    @property
    def model_or_placeholder(self) -> str:
        return self.model or "MODEL"


def base_url(host: str, port: int) -> str:
    """Return the address at which a client on this machine reaches a server that is bound to host and port."""
    name = UNSPECIFIED.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def suggest_model(config: Config) -> str | None:
    """Return a model that is certain to exist without a request to a provider; None where only providers know."""
    for route in config.models:
        if not any(sign in route.name for sign in "*?["):
            return route.name
    for name, provider in config.providers.items():
        if provider.models:
            return f"{name}/{provider.models[0]}"
    kinds = {provider.kind for provider in config.providers.values()}
    return "echo" if kinds == {"echo"} else None


def _list_proxies(environ: Mapping[str, str]) -> Iterator[EffectiveSetting]:
    """Yield the proxies of the environment, which apply to providers whose section names none."""
    proxies = read_proxies(environ)
    if proxies is None:
        return
    for scheme, proxy in (("http", proxies.http), ("https", proxies.https)):
        if proxy is not None:
            yield EffectiveSetting(f"proxy to {scheme}://", _mask(proxy), "environment")
    yield EffectiveSetting("no proxy to", ["this machine", *proxies.exempt], "environment")


def _list_provider(prefix: str, provider: ProviderConfig, origins: dict[str, str]) -> Iterator[EffectiveSetting]:
    several = f"{prefix}.{credential_field(provider)}" if provider.extra_credentials else None
    for setting in _list_fields(prefix, provider, origins, skip=("name", "extra_credentials", "preset")):
        if setting.key == f"{prefix}.kind" and provider.preset:
            setting = replace(setting, value=provider.preset)
        yield setting if setting.key != several else replace(setting, value=_mask(list_credentials(provider)))


def _list_limits(config: Config) -> Iterator[EffectiveSetting]:
    limits, origins = config.limits, config.origins
    yield from _list_fields("limits", limits, origins, skip=("user", "key", "providers"))
    yield from _list_fields("limits.user", limits.user, origins)
    yield from _list_fields("limits.key", limits.key, origins)
    for index, group in enumerate(limits.providers):
        yield from _list_fields(f"limits.providers[{index}]", group, origins)
    for index, team in enumerate(config.teams):
        yield from _list_fields(f"teams[{index}]", team, origins, skip=("limits", "each_user"))
        yield from _list_fields(f"teams[{index}].limits", team.limits, origins)
        yield from _list_fields(f"teams[{index}].each_user", team.each_user, origins)


def _list_tool(prefix: str, tool: Struct, origins: dict[str, str]) -> Iterator[EffectiveSetting]:
    """Yield the settings of a tool; the arguments of a command are masked, since tokens are passed so."""
    for setting in _list_fields(prefix, tool, origins):
        if setting.key == f"{prefix}.command" and isinstance(setting.value, list) and len(setting.value) > 1:
            setting = replace(setting, value=[setting.value[0], "***"])
        yield setting


def _list_fields(
    prefix: str, struct: Struct, origins: dict[str, str], skip: tuple[str, ...] = ()
) -> Iterator[EffectiveSetting]:
    for field in msgspec.structs.fields(struct):
        if field.name in skip:
            continue
        key = f"{prefix}.{field.encode_name}"
        value = getattr(struct, field.name)
        if isinstance(value, dict):
            for name, inner in value.items():
                yield EffectiveSetting(f"{key}.{name}", _mask(inner), origins.get(f"{key}.{name}", "default"))
        elif value is not None or key in origins:
            yield EffectiveSetting(key, _mask(value), origins.get(key, "default"))


def _mask(value: object) -> SettingValue:
    """Return a value as it may be shown: secrets and passwords in addresses are masked."""
    match value:
        case None | bool() | int() | float():
            return value
        case Secret() | SecretSource() | Path():
            return str(value)
        case tuple():
            return [str(item) for item in value]
        case _:
            return PASSWORD_PARAMETER.sub("***", URL_PASSWORD.sub(r"\1:***", str(value)))


def _client_key_origin(config: Config, environ: Mapping[str, str]) -> str:
    if config.client_key is None:
        return "the store"
    variable = client_key_variable(environ)
    return f"environment {variable}" if variable in environ else variable
