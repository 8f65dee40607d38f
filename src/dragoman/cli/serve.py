"""Flags come in; the gateway runs, in one process or several, until it is told to stop."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from dragoman.cli.settings import base_url, config_option, local_servers, read_settings, settings_file, suggested_model
from dragoman.config import Config, ConfigError
from dragoman.config.load import Stamp, stamp_file

if TYPE_CHECKING:
    from dragoman.app import Listening, Settings
    from dragoman.cli.logs import Gathered
    from dragoman.cli.serving.crew import Links
    from dragoman.cli.serving.listener import Bound
    from dragoman.hub.outcome import Outcome
    from dragoman.telemetry.shared_counters import SharedCounters

MAX_WORKERS = 64
OPEN_FILES = 65_536  # per process: each connection may need another one to an upstream
COLLECT_EVERY = 10_000  # objects: requests leave next to no cycles behind

log = logging.getLogger(__name__)


class Order(Struct, frozen=True):
    """What to serve, how to read it anew, and where to listen."""

    config: Config
    stamp: Stamp  # of the file that `config` was read from
    reload: Callable[[], Config]
    find: Callable[[], Path | None]  # where the file is by now
    bound: "Bound"
    log: "Gathered"
    line: "Callable[[Outcome], str]"  # what the log says of a request
    shared_counters: "SharedCounters | None" = None  # the metrics of all workers


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
    from dragoman.observers.request_log import format_json, format_text

    _replace_closed_streams()
    raise_open_files_limit(OPEN_FILES)
    handler = log_to_stderr(JsonLine() if log_json else Line(), logging.DEBUG if verbose else logging.INFO)
    find = partial(settings_file, config_file)
    reload = partial(read_settings, config_file, {"server.host": host, "server.port": port})
    stamp = stamp_file(find)
    config = reload()
    bound = bind(config.server)
    with bound.sock as sock:
        servers = local_servers(config, port_of(sock))
        if servers:
            reload = partial(reload, servers=servers)
            config = reload()
        for warning in config.warnings:
            log.warning("%s", warning)
        code = _serve(
            Order(config, stamp, reload, find, bound, handler, format_json if log_json else format_text), workers
        )
    sys.exit(code)


def _replace_closed_streams() -> None:
    """Open the null device for each standard stream that is closed, before a socket gets its descriptor."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # Python has None for a stream that was closed at its start.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _serve(order: Order, workers: int) -> int:
    from dragoman.admin.clients import Target
    from dragoman.cli.serving.listener import port_of
    from dragoman.cli.serving.opening import Opening

    config = order.config
    url = base_url(config.server.host, port_of(order.bound.sock))
    opening = Opening(config, Target(url, suggested_model(config)))
    opening.see_to_keys()

    def announce() -> None:
        order.bound.release_predecessor()
        opening.announce()

    try:
        if workers == 1:
            _serve_alone(order, announce)
            return 0
        return _share(order, workers, announce)
    finally:
        opening.leave_key()


def _serve_alone(order: Order, announce: Callable[[], None]) -> None:
    from dragoman.app import Listening, Settings
    from dragoman.cli.serving.handover import Offer

    sock = order.bound.sock
    listening = Listening(sock, lambda app: announce(), offer=lambda: Offer(sock, lambda: None))
    _run_loop(order, Settings(order.reload, order.find, order.stamp), listening)


def _share(order: Order, workers: int, announce: Callable[[], None]) -> int:
    import dragoman.app  # noqa: F401  (loaded once, before the workers are forked, so that they share the memory)
    from dragoman.cli.faults import explain
    from dragoman.cli.serving.crew import Crew, Links
    from dragoman.telemetry.shared_counters import SharedCounters

    parent = _Parent(replace(order, shared_counters=SharedCounters(workers)), announce)

    def labour(links: Links) -> int:
        try:
            _serve_shared(parent.order, links)
        except Exception as fault:
            click.echo(f"Error: {explain(fault)}", err=True)
            return 1
        return 0

    return Crew(workers, labour, parent).run()


class _Parent:
    """What the parent process does on behalf of its workers."""

    def __init__(self, order: Order, announce: Callable[[], None]) -> None:
        self.order = order  # with the last configuration that a worker has taken over
        self._announce = announce

    def on_ready(self) -> None:
        self._announce()

    def on_adopted(self) -> None:
        """Read what a worker has taken over, so that a worker that is hired later begins with it."""
        stamp = stamp_file(self.order.find)
        try:
            self.order = replace(self.order, config=self.order.reload(), stamp=stamp)
        except ConfigError as error:
            log.debug("the file was edited again: %s", error)

    def on_stopping(self, accepting: int, replaced: Callable[[], None]) -> None:
        """Offer the socket to a new gateway, and close it when no worker accepts connections any more."""
        from dragoman.cli.serving.handover import Offer

        offer = Offer(self.order.bound.sock, replaced)

        def close_when_unused() -> None:
            os.read(accepting, 1)
            offer.close()
            self.order.bound.sock.close()

        threading.Thread(target=close_when_unused, name="listener", daemon=True).start()


def _serve_shared(order: Order, links: "Links") -> None:
    from dragoman.app import App, Listening, Settings
    from dragoman.cli.serving.crew import ADOPTED, READY, tell_parent

    def ready(app: App) -> None:
        loop = asyncio.get_running_loop()
        _when_readable(loop, links.lifeline, partial(os.kill, os.getpid(), signal.SIGTERM))
        _when_readable(loop, links.replaced, app.stop_accepting)
        tell_parent(READY)

    listening = Listening(order.bound.sock, ready, released=partial(os.close, links.accepting))
    settings = Settings(order.reload, order.find, order.stamp, partial(tell_parent, ADOPTED))
    _run_loop(order, settings, listening)


def _when_readable(loop: asyncio.AbstractEventLoop, descriptor: int, then: Callable[[], None]) -> None:
    """Call `then` once, when the other end of a pipe is closed."""

    def closed() -> None:
        loop.remove_reader(descriptor)
        then()

    loop.add_reader(descriptor, closed)


def _run_loop(order: Order, settings: "Settings", listening: "Listening") -> None:
    from dragoman.cli.serving.loops import new_loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_run(order, settings, listening))


async def _run(order: Order, settings: "Settings", listening: "Listening") -> None:
    from dragoman.app import App, run
    from dragoman.cli.serving.opening import open_keys
    from dragoman.observers.request_log import make_request_log

    observers = [make_request_log(order.line, order.log.tell)]
    store, keyring = await open_keys(order.config)
    try:
        _spare_the_collector()
        app = App(order.config, keyring, os.environ, store, observers, order.shared_counters)
        await run(app, settings, listening)
    finally:
        order.log.drain()
        await store.close()


def _spare_the_collector() -> None:
    """What the start has made stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)
