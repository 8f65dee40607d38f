"""`dragoman replay`: run a captured exchange through the current code and show what differs."""

import asyncio
import errno
import signal
import sys

import click
import msgspec

from dragoman.cli.capture import choose_capture
from dragoman.cli.completion import complete_captures
from dragoman.cli.screen import ELLIPSIS, count, fit, remove_control, show_json
from dragoman.cli.settings import store_options
from dragoman.net.headers import JSON, Header
from dragoman.net.limits import ConnectionLimits
from dragoman.net.server import Server
from dragoman.operate import AdminError
from dragoman.operate.captures.replay.difference import ComparedPart, Difference, compare_captures
from dragoman.operate.captures.replay.recorded_services import HOST, UpstreamServer, config_for_upstream
from dragoman.operate.captures.replay.rerun import rerun, write_fixture
from dragoman.proxy.capture.format import Capture
from dragoman.server.handler import replay_site
from dragoman.translate.hub.failure import describe_cause

WIDTH = 120
NAME = 40
CONTEXT = 30
MAX_BODY_BYTES = 64 * 1024 * 1024
KEEP_ALIVE_S = 75.0
ECHO_HAS_NO_SERVER = (
    "This exchange was answered by echo, which is part of the gateway: there is no upstream to serve. "
    'A provider of kind = "echo" answers the same way.'
)


@click.command("replay")
@click.argument("which", metavar="ID|FILE", shell_complete=complete_captures)
@click.option("--as-fixture", "fixture", metavar="NAME|DIR", help="Write a fixture that expects the current result.")
@click.option("--serve", "is_served", is_flag=True, help="Serve the recorded upstream responses at their pace.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="The port of --serve. [default: a free one]",
)
@store_options
def command(
    which: str, fixture: str | None, is_served: bool, port: int, config_file: str | None, as_json: bool
) -> None:
    """Run a captured exchange through the current code, and show what differs.

    The exit code is 0 if nothing differs, else 1.
    """
    capture = choose_capture(which, config_file)
    if is_served:
        if not capture.upstream_requests:
            raise AdminError("This exchange has no upstream request, so there is no response to serve.")
        if capture.upstream_requests[0].kind == "echo":
            raise AdminError(ECHO_HAS_NO_SERVER)
        asyncio.run(_serve(capture, port))
        return
    replayed = rerun(capture, replay_site)
    parts = compare_captures(capture, replayed)
    is_same = not any(part.changes for part in parts)
    if as_json:
        show_json({"same": is_same, "parts": parts})
    else:
        _show(parts, is_same)
    if fixture is not None:
        click.echo(f"fixture: {write_fixture(capture, replayed, fixture)}")
        return
    sys.exit(0 if is_same else 1)


def _show(parts: list[ComparedPart], is_same: bool) -> None:
    for part in parts:
        verdict = count(len(part.changes), "difference") if part.changes else "same"
        click.echo(f"{part.name[:NAME]:{NAME}}  {part.size:>14}  {verdict}")
        for change in part.changes:
            click.echo(f"    {change.place}" if change.place else "    recorded (-) and now (+):")
            start = _start(change)
            for sign, text in (("-", change.was), ("+", change.now)):
                if text is not None:
                    click.echo(_line(f"    {sign} {ELLIPSIS if start else ''}{text[start:]}"))
    click.echo("same" if is_same else "different")


def _start(change: Difference) -> int:
    """Return how many characters at the start of two long texts are left out because they are the same in both."""
    pairs = enumerate(zip(change.was or "", change.now or "", strict=False))
    same_until = next((place for place, (was, now) in pairs if was != now), 0)
    return same_until - CONTEXT if same_until > 2 * CONTEXT else 0


def _line(text: str) -> str:
    return fit(remove_control(text.replace("\n", " ").rstrip()), WIDTH)


async def _serve(capture: Capture, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    try:
        server = await serve_upstream(capture, port)
    except OSError as error:
        where = f"{HOST}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise AdminError(
                f"{where} is in use by another program. Choose another --port, or leave it out for a free one."
            ) from None
        raise AdminError(f"Cannot listen on {where}: {describe_cause(error)}") from None
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    click.echo(
        f"The upstream of {capture.request_id} listens on http://{HOST}:{server.port}. A dragoman.toml for it:\n"
    )
    click.echo(config_for_upstream(capture, server.port))
    await stopped.wait()
    await server.close()


async def serve_upstream(capture: Capture, port: int) -> Server:
    """Listen on a port of this machine and replay the upstream responses of a capture."""
    # No request has a key here, so the keep-alive of requests without one is as long as any.
    limits = ConnectionLimits(max_body_bytes=MAX_BODY_BYTES, unauthenticated_keep_alive_s=KEEP_ALIVE_S)
    server = Server(UpstreamServer(capture), limits, _render_error)
    await server.start(HOST, port)
    return server


def _render_error(path: str, status: int, message: str) -> tuple[list[Header], bytes]:
    return [JSON], msgspec.json.encode({"error": {"message": message}})
