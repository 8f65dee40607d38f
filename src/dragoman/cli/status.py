"""`dragoman status`: what the running gateway does now."""

import asyncio
import os
import sys

import click

from dragoman.cli.screen import count, print_note, show_json, show_table
from dragoman.cli.settings import config_option, json_option, key_option, read_found_settings, url_option
from dragoman.operate.gateway.gateway_status import GatewayStatus, ProviderState, read_status
from dragoman.operate.gateway.running_gateway import choose_key

UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
HEADINGS = ("PROVIDER", "KIND", "STATE", "REQUESTS TODAY", "FAILED", "DETAIL")


@click.command("status")
@url_option
@config_option
@key_option
@json_option
def command(url: str | None, config_file: str | None, key: str | None, as_json: bool) -> None:
    """Show the running gateway: address, uptime, streams, providers, and what was spent today.

    The exit code is 1 if no gateway is running.
    """
    config = read_found_settings(config_file)
    status = asyncio.run(read_status(config, os.environ, choose_key(config, key), url))
    if as_json:
        show_json(status)
    else:
        _show(status)
    sys.exit(0 if status.running else 1)


def _show(status: GatewayStatus) -> None:
    if not status.running:
        print_note(f"No gateway is running at {status.address}. `dragoman serve` starts one.")
    else:
        state = "running" if status.ready else "draining: it accepts no new requests"
        process = "" if status.pid is None else f", process {status.pid}"
        click.echo(f"dragoman {status.version or '(version unknown)'} at {status.address}{process}: {state}")
        uptime = "" if status.uptime_s is None else f", up for {format_duration(status.uptime_s)}"
        streamed = f" ({status.streams} streamed)" if status.requests_under_way else ""
        click.echo(f"{count(status.requests_under_way, 'request')} in progress{streamed}{uptime}")
    unpriced = f", {count(status.unpriced, 'request')} without a known price" if status.unpriced else ""
    failed = f", {status.failed} failed" if status.failed else ""
    click.echo(f"Today: {count(status.requests, 'request')}{failed}, ${status.cost_usd:.4f}{unpriced}\n")
    show_table(HEADINGS, [_format_row(provider) for provider in status.providers])


def _format_row(provider: ProviderState) -> tuple[str, ...]:
    counts = str(provider.requests), str(provider.failed)
    return (provider.name, provider.kind, provider.state, *counts, provider.detail)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    left, parts = int(seconds), []
    for length, unit in UNITS:
        amount, left = divmod(left, length)
        if amount:
            parts.append(count(amount, unit))
    return " ".join(parts[:2]) or "0 seconds"
