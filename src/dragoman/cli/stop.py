"""`dragoman stop`: end the gateway that runs on this machine."""

import asyncio
import os

import click

from dragoman.cli.screen import print_note
from dragoman.cli.settings import config_option, read_settings, url_option
from dragoman.operate.gateway.gateway_process import stop_process
from dragoman.operate.gateway.running_gateway import find_gateway_process


@click.command("stop")
@url_option
@config_option
def command(url: str | None, config_file: str | None) -> None:
    """Stop the running gateway, and wait until it has ended.

    Requests in progress may end first, for at most server.drain_s; a second `dragoman stop` ends them at once. The exit
    code is 1 if no gateway is running.
    """
    process = asyncio.run(find_gateway_process(read_settings(config_file), os.environ, url))
    which = f"The gateway at {process.root} (process {process.pid})"

    def explain_wait() -> None:
        print_note(f"{which} waits for requests in progress. To end them now: dragoman stop --url {process.root}")

    stop_process(process, explain_wait)
    click.echo(f"{which} has ended.")
