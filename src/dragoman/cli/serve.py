"""Flags come in; the gateway runs, in one process or several, until it is told to stop."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from dragoman.cli.settings import base_url, config_option, local_servers, read_settings, settings_file, suggested_model
from dragoman.config import Config, ConfigError

if TYPE_CHECKING:
    from dragoman.cli.logs import Gathered
    from dragoman.hub.outcome import Outcome
    from dragoman.telemetry.board import Board

MAX_WORKERS = 64
OPEN_FILES = 65_536  # per process: each connection may need another one to an upstream
COLLECT_EVERY = 10_000  # objects: requests leave next to no cycles behind

log = logging.getLogger(__name__)


class Order(Struct, frozen=True):
    """What to serve, how to read it anew, and where to listen."""

    config: Config
    reload: Callable[[], Config]
    find: Callable[[], Path | None]  # where the file is by now
    sock: socket.socket
    log: "Gathered"
    line: "Callable[[Outcome], str]"  # what the log says of a request
    board: "Board | None" = None  # where workers share their metrics


@click.command("serve")
@config_option
@click.option("--host", metavar="H", help="Listen on this address (127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), metavar="P", help="Listen on this port (8484); 0 takes any.")
@click.option("--workers", type=click.IntRange(1, MAX_WORKERS), default=1, metavar="N", help="Processes to run (1).")
@click.option("--log-json", is_flag=True, help="Log as JSON.")
@click.option("--verbose", is_flag=True, help="Log more.")
def command(
    config_file: str | None, host: str | None, port: int | None, workers: int, log_json: bool, verbose: bool
) -> None:
    """Start the gateway."""
    from dragoman.cli.logs import JsonLine, Line, log_to_stderr
    from dragoman.cli.serving.listener import bind, port_of
    from dragoman.net.limits import raise_open_files_limit
    from dragoman.observers.request_log import as_json, readable

    raise_open_files_limit(OPEN_FILES)
    handler = log_to_stderr(JsonLine() if log_json else Line(), logging.DEBUG if verbose else logging.INFO)
    find = partial(settings_file, config_file)
    reload = partial(read_settings, config_file, {"server.host": host, "server.port": port})
    config = reload()
    with bind(config.server) as sock:
        servers = local_servers(config, port_of(sock))
        if servers:
            reload = partial(reload, servers=servers)
            config = reload()
        for warning in config.warnings:
            log.warning("%s", warning)
        code = _serve(Order(config, reload, find, sock, handler, as_json if log_json else readable), workers)
    sys.exit(code)


def _serve(order: Order, workers: int) -> int:
    from dragoman.cli.clients.target import Target
    from dragoman.cli.serving.listener import port_of
    from dragoman.cli.serving.opening import Opening

    config = order.config
    opening = Opening(config, Target(base_url(config.server.host, port_of(order.sock)), suggested_model(config)))
    opening.see_to_keys()
    try:
        if workers == 1:
            _labour(order, opening.announce)
            return 0
        return _share(order, workers, opening.announce)
    finally:
        opening.leave_key()


def _share(order: Order, workers: int, announce: Callable[[], None]) -> int:
    import dragoman.app  # noqa: F401  (loaded once, before the workers are forked, so that they share the memory)
    from dragoman.cli.faults import explain
    from dragoman.cli.serving.crew import Crew, tell_parent
    from dragoman.telemetry.board import Board

    order = replace(order, board=Board(workers))

    def labour(lifeline: int) -> int:
        def ready() -> None:
            _stop_at_the_end_of(lifeline)
            tell_parent()

        try:
            _labour(_as_it_is_now(order), ready)
        except Exception as fault:
            click.echo(f"Error: {explain(fault)}", err=True)
            return 1
        return 0

    sys.stdout.flush()
    return Crew(workers, labour, announce).run()


def _as_it_is_now(order: Order) -> Order:
    """A worker that takes the place of another begins with the edits that the others have taken over."""
    try:
        return replace(order, config=order.reload())
    except ConfigError:
        return order


def _labour(order: Order, ready: Callable[[], None]) -> None:
    from dragoman.cli.serving.loops import new_loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_run(order, ready))


async def _run(order: Order, ready: Callable[[], None]) -> None:
    from dragoman.app import App, Listening, Settings, run
    from dragoman.cli.serving.opening import open_keys
    from dragoman.observers.request_log import request_log

    observers = [request_log(order.line, order.log.tell)]
    store, keyring = await open_keys(order.config)
    try:
        _spare_the_collector()
        listening = Listening(order.sock, lambda app: ready())
        app = App(order.config, keyring, os.environ, store, observers, order.board)
        await run(app, Settings(order.reload, order.find), listening)
    finally:
        order.log.drain()
        await store.close()


def _spare_the_collector() -> None:
    """What the start has made stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)


def _stop_at_the_end_of(lifeline: int) -> None:
    """A worker whose parent is gone stops as if it had been told to."""
    loop = asyncio.get_running_loop()

    def parent_gone() -> None:
        loop.remove_reader(lifeline)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(lifeline, parent_gone)
