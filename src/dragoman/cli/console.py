"""`dragoman console`: open the web console in a browser, signed in."""

import asyncio
import os
import webbrowser

import click

from dragoman.cli.screen import print_note
from dragoman.cli.settings import config_option, read_settings, url_option
from dragoman.config.settings import Config
from dragoman.operate.gateway.running_gateway import require_gateway
from dragoman.operate.keys import make_console_link


@click.command("console")
@url_option
@config_option
@click.option("--print", "only_print", is_flag=True, help="Print the address and open no browser.")
def command(url: str | None, config_file: str | None, only_print: bool) -> None:
    """Open the web console in a browser, signed in as the owner."""
    address = asyncio.run(_make_link(read_settings(config_file), url))
    click.echo(address)
    if only_print or not webbrowser.open(address):
        print_note("Open this address within 60 seconds. It signs in once.")


async def _make_link(config: Config, url: str | None) -> str:
    return await make_console_link(config, await require_gateway(config, os.environ, url))
