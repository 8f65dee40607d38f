"""`dragoman console`: open the web console in a browser, signed in."""

import asyncio
import webbrowser

import click

from dragoman.admin.keys import make_console_link
from dragoman.cli.screen import print_note
from dragoman.cli.settings import config_option, read_settings


@click.command("console")
@config_option
@click.option("--print", "only_print", is_flag=True, help="Print the address and open no browser.")
def command(config_file: str | None, only_print: bool) -> None:
    """Open the web console in a browser, signed in as the owner."""
    address = asyncio.run(make_console_link(read_settings(config_file)))
    click.echo(address)
    if only_print or not webbrowser.open(address):
        print_note("Open this address within 60 seconds. It signs in once.")
