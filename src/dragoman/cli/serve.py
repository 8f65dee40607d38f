"""`dragoman serve`: run the gateway, in one process or several, until it is stopped."""

import gc
import sys

import click

from dragoman.cli.settings import config_option, config_source

MAX_WORKERS = 64


@click.command("serve")
@config_option
@click.option("--host", metavar="H", help="The address to listen on. [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="P",
    help="The port; 0 chooses a free one. [default: 8484]",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MAX_WORKERS),
    default=1,
    metavar="N",
    help="The number of processes. [default: 1]",
)
@click.option("--log-json", is_flag=True, help="Log as JSON.")
@click.option("--verbose", is_flag=True, help="Log debug messages too.")
def command(
    config_file: str | None, host: str | None, port: int | None, workers: int, log_json: bool, verbose: bool
) -> None:
    """Start the gateway."""
    gc.disable()  # until everything is loaded: collections during the start free nothing, and take a tenth of its time
    from dragoman.cli.serving.processes import LogOptions, start  # the whole gateway, which `--help` does not need

    flags = {"server.host": host, "server.port": port}
    sys.exit(start(config_source(config_file), flags, workers, LogOptions(log_json, verbose)))
