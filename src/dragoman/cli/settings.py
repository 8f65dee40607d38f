"""Options that several commands share, and the configuration that they select."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate.configuration.effective import read_with_local_servers

if TYPE_CHECKING:  # which loads the store
    from dragoman.operate.admin_access import AdminPart

Command = TypeVar("Command", bound=Callable[..., object])
T = TypeVar("T")
R = TypeVar("R")


def config_option(command: Command) -> Command:
    option = click.option(
        "--config", "config_file", metavar="FILE", help="Read this file instead of the usual dragoman.toml."
    )
    return option(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def key_option(command: Command) -> Command:
    option = click.option(
        "--key", metavar="KEY", help="The client key. Prefer $DRAGOMAN_API_KEY: other users can see arguments."
    )
    return option(command)


def url_option(command: Command) -> Command:
    option = click.option(
        "--url", metavar="URL", help="The gateway's address. [default: the one that runs, else the configured one]"
    )
    return option(command)


class Option(Protocol):
    def __call__(self, command: Command, /) -> Command: ...


def combine_options(*options: Option) -> Option:
    """Return the decorator that adds several options, which help lists in this order."""

    def add(command: Command, /) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


store_options = combine_options(config_option, json_option)


class CommonOptions:
    """Which gateway or store a command is about, and how it prints."""

    def __init__(self, url: str | None, config_file: str | None, as_json: bool) -> None:
        self.url = url
        self.config_file = config_file
        self.as_json = as_json

    @cached_property
    def config(self) -> Config:
        return read_settings(self.config_file)

    def use(self, part: "AdminPart[T]", action: Callable[[T], Awaitable[R]]) -> R:
        """Do something with the gateway that was named, with the one that runs, or else with the store."""
        return asyncio.run(part.use(self.config, self.url, action))


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to a command, which gets them as `options`."""

    @wraps(command)
    def collect(url: str | None, config_file: str | None, as_json: bool, **others: object) -> None:
        command(options=CommonOptions(url, config_file, as_json), **others)

    return combine_options(url_option, config_option, json_option)(collect)


def config_source(config_file: str | None) -> ConfigSource:
    """Return the configuration of this process's environment, directory and home."""
    return ConfigSource(config_file, os.environ, Path.cwd(), Path.home())


def read_settings(config_file: str | None) -> Config:
    return config_source(config_file).read()


def read_found_settings(config_file: str | None) -> Config:
    """Read the configuration that a gateway would use, with the model servers that run on this machine."""
    source = config_source(config_file)
    config = source.read()
    if config.has_providers:
        return config
    return asyncio.run(read_with_local_servers(source))
