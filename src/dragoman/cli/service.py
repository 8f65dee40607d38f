"""`dragoman service`: run the gateway as a systemd service of the user."""

import os
import sys
from pathlib import Path

import click
import msgspec

from dragoman.cli.screen import print_note, show_json, show_table
from dragoman.cli.settings import config_option, json_option, read_settings
from dragoman.config.load import user_config_file
from dragoman.operate.gateway.service import (
    UNIT,
    find_program,
    install_service,
    make_unit,
    read_state,
    uninstall_service,
    unit_path,
)


@click.group("service")
def command() -> None:
    """Run the gateway as a systemd service of your user: it starts when you log in, and again if it fails."""


@command.command("install")
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and change nothing.")
@config_option
def install(only_print: bool, config_file: str | None) -> None:
    """Write the unit, enable it and start it. Run it again after an update."""
    config = read_settings(config_file)
    words = [str(find_program(os.environ, sys.argv[0])), "serve"]
    if config_file is not None:
        words += ["--config", str(Path(config_file).absolute())]
    environment = user_config_file(os.environ, Path.home()).with_name("environment")
    text = make_unit(words, environment, config.server.drain_s)
    if only_print:
        click.echo(text, nl=False)
        return
    state = install_service(unit_path(os.environ, Path.home()), text, os.environ)
    click.echo(f"{UNIT} is {state.active} ({state.unit}).")
    print_note(f"Its API keys: write NAME=VALUE lines into {environment}, then run: systemctl --user restart dragoman")
    print_note("Its log: journalctl --user -u dragoman -f")
    print_note("To start it at boot, without a login: loginctl enable-linger")


@command.command("status")
@json_option
def status(as_json: bool) -> None:
    """Show whether the service is installed, enabled and running."""
    state = read_state(unit_path(os.environ, Path.home()), os.environ)
    if as_json:
        show_json(msgspec.to_builtins(state))
        return
    installed = "yes" if state.installed else "no"
    show_table(("UNIT", "INSTALLED", "ENABLED", "ACTIVE"), [(state.unit, installed, state.enabled, state.active)])


@command.command("uninstall")
def uninstall() -> None:
    """Stop the service and remove its unit. Configuration and data stay."""
    path = unit_path(os.environ, Path.home())
    removal = uninstall_service(path, os.environ)
    if not removal.existed:
        click.echo(f"There is no {path}: nothing to do.")
    elif removal.problem is None:
        click.echo(f"{UNIT} is stopped, and {path} is removed.")
    else:
        click.echo(f"{path} is removed.")
        print_note(f"{removal.problem} If the gateway still runs, stop it: dragoman stop")
