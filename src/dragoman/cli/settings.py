"""Flags come in; the checked configuration of this shell's directory, home and environment goes out."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from dragoman.config import Config, LocalServer, find_file, load, local_ports

Wrapped = TypeVar("Wrapped", bound=Callable[..., object])

UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # bound to everything, reached here


def config_option(command: Wrapped) -> Wrapped:
    option = click.option(
        "--config", "config_file", metavar="FILE", help="Read this file instead of the usual dragoman.toml."
    )
    return option(command)


def json_option(command: Wrapped) -> Wrapped:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def read_settings(
    config_file: str | None, flags: Mapping[str, object] | None = None, servers: Iterable[LocalServer] = ()
) -> Config:
    return load(config_file, os.environ, Path.cwd(), Path.home(), flags, servers)


def settings_file(config_file: str | None) -> Path | None:
    """The file that `read_settings` reads."""
    return find_file(config_file, os.environ, Path.cwd(), Path.home())


def read_found_settings(config_file: str | None) -> Config:
    """The settings with the model servers of this machine, for commands that use what a gateway would."""
    config = read_settings(config_file)
    servers = local_servers(config, config.server.port)
    return read_settings(config_file, None, servers) if servers else config


def local_servers(config: Config, own_port: int) -> tuple[LocalServer, ...]:
    """The model servers that listen on this machine, looked for where no file says which providers there are."""
    if config.has_providers:
        return ()
    import asyncio

    from dragoman.providers.compatible.discovery import discover

    return asyncio.run(discover(local_ports(os.environ), besides=own_port))


def client_key_variable() -> str:
    """Return the name of the variable that a configured client key comes from."""
    return "DRAGOMAN_API_KEY" if "DRAGOMAN_API_KEY" in os.environ else "PROXY_API_KEY"


def named_source(config: Config) -> str:
    return str(config.source) if config.source else "no dragoman.toml: defaults and environment"


def base_url(host: str, port: int) -> str:
    """The address under which a client on this machine reaches a server bound to host and port."""
    name = UNSPECIFIED.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def suggested_model(config: Config) -> str | None:
    """A model name that is certain to be answered, without asking anyone; None where only providers know."""
    for route in config.models:
        if not any(sign in route.name for sign in "*?["):
            return route.name
    for name, provider in config.providers.items():
        if provider.models:
            return f"{name}/{provider.models[0]}"
    kinds = {provider.kind for provider in config.providers.values()}
    return "echo" if kinds == {"echo"} else None
