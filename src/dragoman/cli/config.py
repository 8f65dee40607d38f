"""`dragoman config`: create the configuration, check it, or show every value with its origin."""

import asyncio
import os
from pathlib import Path

import click

from dragoman.cli.screen import count, print_note, show_json, show_table
from dragoman.cli.settings import config_option, config_source, read_found_settings, store_options
from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate import AdminError, InvalidArgument
from dragoman.operate.clients.settings_file import FileEdit
from dragoman.operate.configuration.config_file import (
    ProviderChoice,
    find_choices,
    find_vendor,
    list_providers,
    make_choice,
    new_file_path,
    render_config,
)
from dragoman.operate.configuration.effective import (
    SettingValue,
    describe_source,
    list_settings,
    read_with_local_servers,
)


@click.group("config")
def command() -> None:
    """Create, check or show the configuration."""


@command.command("init")
@click.option("--here", is_flag=True, help="Write ./dragoman.toml instead of the user's file.")
@click.option("--yes", is_flag=True, help="Ask nothing, and use everything that was found.")
@config_option
def init(here: bool, yes: bool, config_file: str | None) -> None:
    """Ask which providers to use, and write a commented dragoman.toml."""
    source = config_source(config_file)
    path = new_file_path(source, in_directory=here)
    if path.exists():
        raise AdminError(f"{path} already exists. Edit it, or add to it with `dragoman providers add`.")
    # What a gateway without a file would use.
    nowhere = {**source.environ, "XDG_CONFIG_HOME": os.devnull}
    nowhere.pop("DRAGOMAN_CONFIG", None)
    elsewhere = ConfigSource(None, nowhere, Path(os.devnull), source.home)
    found = asyncio.run(read_with_local_servers(elsewhere))
    choices = [choice for choice in find_choices(found) if yes or _confirm_choice(choice)]
    if not yes:
        choices += _ask_for_vendors({choice.name for choice in choices})
    capture = "errors" if yes or click.confirm("Keep failed exchanges for debugging?", default=True) else "off"
    FileEdit(path, None, render_config(choices, found.server.port, capture)).create()
    click.echo(f"\nWrote {path}.")
    for warning in config_source(str(path)).read().warnings:
        print_note(f"Warning: {warning}")
    print_note("Next: `dragoman serve`, or `dragoman launch claude`.")


def _confirm_choice(choice: ProviderChoice) -> bool:
    return click.confirm(f"{choice.title} was found ({choice.origin}). Use it?", default=True)


def _ask_for_vendors(taken: set[str]) -> list[ProviderChoice]:
    """Ask for further vendors until the answer is empty."""
    choices: list[ProviderChoice] = []
    while True:
        kind = click.prompt(
            "Another vendor (`dragoman providers presets` lists them; empty: none)", default="", show_default=False
        ).strip()
        if not kind:
            return choices
        try:
            preset = find_vendor(kind)
        except InvalidArgument as problem:
            click.echo(problem)
            continue
        if kind in taken:
            click.echo(f"{kind} is already configured.")
            continue
        taken.add(kind)
        answers: dict[str, str] = {}
        for parameter in () if preset is None else preset.used_parameters({}):
            set_by = next((name for name in parameter.variables if os.environ.get(name)), None)
            if set_by is None:
                answers[parameter.name] = click.prompt(f"  {parameter.name}", default=parameter.default)
        for key in () if preset is None else preset.keys[:1]:
            if not os.environ.get(key):
                click.echo(f"  Set ${key} where the gateway starts.")
        choices.append(make_choice(kind, answers))


@command.command("check", short_help="Check the configuration.")
@config_option
def check(config_file: str | None) -> None:
    """Check the configuration and report everything that is wrong with it."""
    config = read_found_settings(config_file)
    _show_warnings(config)
    for provider in list_providers(config, os.environ):
        if provider.problem:
            print_note(f'Warning: provider "{provider.name}" cannot be used here: {provider.problem}')
    click.echo(f"{describe_source(config)}: valid, {count(len(config.providers), 'provider')}.")


@command.command("show")
@store_options
def show(config_file: str | None, as_json: bool) -> None:
    """Show every value and where it is set."""
    config = read_found_settings(config_file)
    settings = list(list_settings(config, os.environ))
    _show_warnings(config)
    if as_json:
        show_json(settings)
        return
    print_note(f"# {describe_source(config)}")
    rows = [(setting.key, _format_value(setting.value), setting.origin) for setting in settings]
    show_table(("KEY", "VALUE", "SET BY"), rows)


def _show_warnings(config: Config) -> None:
    for warning in config.warnings:
        print_note(f"Warning: {warning}")


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
