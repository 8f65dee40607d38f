"""The configuration comes in; what is wrong with it, or every value with its origin, goes out."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.cli.screen import remark, show_json, show_table
from dragoman.cli.settings import client_key_variable, config_option, json_option, named_source, read_found_settings
from dragoman.config import Config, ProviderConfig, Secret, SecretSource
from dragoman.config.providers import credential_field, list_credentials
from dragoman.config.proxies import read_proxies

SECTIONS = ("server", "retry", "debug", "store", "fetch", "effort")
PASSWORD = re.compile(r"(?<=://)([^/:@]*):[^/]*(?=@)")
OPTION = re.compile(r"(?<=[?&]password=)[^&]*")

Shown = str | int | float | bool | None | list[str]


class Value(Struct, frozen=True):
    """One setting as it is shown: secrets are masked."""

    key: str
    value: Shown
    origin: str


@click.group("config")
def command() -> None:
    """Check or show the configuration."""


@command.command("check")
@config_option
def check(config_file: str | None) -> None:
    """Say whether the configuration can be used, and all that is wrong with it."""
    config = read_found_settings(config_file)
    for warning in config.warnings:
        remark(f"Warning: {warning}")
    click.echo(f"{named_source(config)}: fine, {_count(len(config.providers), 'provider')}.")


@command.command("show")
@config_option
@json_option
def show(config_file: str | None, as_json: bool) -> None:
    """Show every value, and who set it."""
    config = read_found_settings(config_file)
    values = list(flattened(config))
    for warning in config.warnings:
        remark(f"Warning: {warning}")
    if as_json:
        show_json(values)
        return
    remark(f"# {named_source(config)}")
    show_table(("KEY", "VALUE", "SET BY"), [(value.key, _text(value.value), value.origin) for value in values])


def flattened(config: Config) -> Iterator[Value]:
    for section in SECTIONS:
        yield from _fields(section, getattr(config, section), config.origins)
    for name, provider in config.providers.items():
        yield from _provider_fields(f"providers.{name}", provider, config.origins)
    for index, route in enumerate(config.models):
        yield from _fields(f"models[{index}]", route, config.origins)
    for index, price in enumerate(config.prices):
        yield from _fields(f"prices[{index}]", price, config.origins)
    yield Value("client key", _shown(config.client_key), _client_key_origin(config))
    yield from _proxies(os.environ)


def _proxies(environ: Mapping[str, str]) -> Iterator[Value]:
    """What leads to providers whose stanza names no proxy."""
    found = read_proxies(environ)
    if found is not None:
        for scheme, proxy in (("http", found.http), ("https", found.https)):
            if proxy is not None:
                yield Value(f"proxy to {scheme}://", _shown(proxy), "environment")
        yield Value("no proxy to", ["this machine", *found.exempt], "environment")


def _provider_fields(prefix: str, provider: ProviderConfig, origins: dict[str, str]) -> Iterator[Value]:
    several = f"{prefix}.{credential_field(provider)}" if provider.extra_credentials else None
    for value in _fields(prefix, provider, origins, skip=("name", "extra_credentials")):
        yield value if value.key != several else replace(value, value=_shown(list_credentials(provider)))


def _fields(prefix: str, struct: Struct, origins: dict[str, str], skip: tuple[str, ...] = ()) -> Iterator[Value]:
    for field in msgspec.structs.fields(struct):
        if field.name in skip:
            continue
        key = f"{prefix}.{field.encode_name}"
        value = getattr(struct, field.name)
        if isinstance(value, dict):
            for name, inner in value.items():
                yield Value(f"{key}.{name}", _shown(inner), origins.get(f"{key}.{name}", "default"))
        elif value is not None or key in origins:
            yield Value(key, _shown(value), origins.get(key, "default"))


def _shown(value: object) -> Shown:
    match value:
        case None | bool() | int() | float():
            return value
        case Secret() | SecretSource() | Path():
            return str(value)
        case tuple():
            return [str(item) for item in value]
        case _:
            return OPTION.sub("***", PASSWORD.sub(r"\1:***", str(value)))


def _text(value: Shown) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(value) or "-"
        case _:
            return str(value)


def _client_key_origin(config: Config) -> str:
    if config.client_key is None:
        return "the store"
    variable = client_key_variable()
    return f"environment {variable}" if variable in os.environ else variable


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
