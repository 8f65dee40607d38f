"""`dragoman config`: check the configuration, or show every value with its origin."""

import os

import click

from dragoman.admin.configuration import SettingValue, describe_source, list_settings
from dragoman.cli.screen import count, remark, show_json, show_table
from dragoman.cli.settings import config_option, json_option, read_found_settings
from dragoman.config import Config


@click.group("config")
def command() -> None:
    """Check or show the configuration."""


@command.command("check")
@config_option
def check(config_file: str | None) -> None:
    """Check the configuration and report everything that is wrong with it."""
    config = read_found_settings(config_file)
    _show_warnings(config)
    click.echo(f"{describe_source(config)}: valid, {count(len(config.providers), 'provider')}.")


@command.command("show")
@config_option
@json_option
def show(config_file: str | None, as_json: bool) -> None:
    """Show every value and where it is set."""
    config = read_found_settings(config_file)
    settings = list(list_settings(config, os.environ))
    _show_warnings(config)
    if as_json:
        show_json(settings)
        return
    remark(f"# {describe_source(config)}")
    rows = [(setting.key, _format_value(setting.value), setting.origin) for setting in settings]
    show_table(("KEY", "VALUE", "SET BY"), rows)


def _show_warnings(config: Config) -> None:
    for warning in config.warnings:
        remark(f"Warning: {warning}")


def _format_value(value: SettingValue) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(value) or "-"
        case _:
            return str(value)
