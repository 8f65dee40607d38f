"""Start the gateway: read its configuration, listen, and serve in this process or in worker processes of it."""

import asyncio
import gc
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import click
from msgspec import Struct
from msgspec.structs import replace

from dragoman.app import App, AppSettings, Listening, ProcessParts, run
from dragoman.cli.errors import explain_error
from dragoman.cli.logs import BatchingHandler, JsonFormatter, TextFormatter, log_to_stderr
from dragoman.cli.serving.listener import Bound, Offer, bind, port_of
from dragoman.cli.serving.startup import Startup, open_keys
from dragoman.cli.serving.worker_pool import (
    AliveSigns,
    Links,
    WorkerPool,
    accept_signals,
    announce_adopted,
    announce_ready,
)
from dragoman.config.load import ConfigSource, Stamp
from dragoman.config.problems import ConfigError
from dragoman.config.settings import Config
from dragoman.net.limits import raise_open_files_limit
from dragoman.net.socket_directory import make_socket_directory
from dragoman.operate import AdminError
from dragoman.operate.configuration.effective import (
    ConfigReader,
    GatewayTarget,
    base_url,
    find_local_servers,
    suggest_model,
)
from dragoman.operate.metrics.registry import SharedCounters
from dragoman.operate.request_log import FormatLine, RequestLog, format_json, format_text
from dragoman.server.worker_group import GroupMember
from dragoman.store.sealing import BadSecretKey, read_secret_variable
from dragoman.tenancy.shared_meter import SharedMeter
from dragoman.translate.hub.failure import describe_cause

OPEN_FILES = 65_536  # for each process: a client connection may need an upstream connection too
GC_THRESHOLD = 10_000  # objects: requests leave hardly any reference cycles

log = logging.getLogger(__name__)


class ServeOptions(Struct, frozen=True):
    """What to serve, how to read the configuration again, and where to listen."""

    config: Config
    stamp: Stamp  # of what `config` was read from
    reload: ConfigReader
    take_stamp: Callable[[], Stamp]
    bound: Bound
    log: BatchingHandler
    format_request: FormatLine  # the log line of a request
    ends_with_terminal: bool = False  # SIGHUP stops it
    shared_counters: SharedCounters | None = None  # the metrics of all workers
    member: GroupMember | None = None  # which of several workers this process is


class LogOptions(Struct, frozen=True):
    as_json: bool
    verbose: bool  # with debug messages


def start(source: ConfigSource, flags: Mapping[str, object], workers: int, log_options: LogOptions) -> int:
    """Read the configuration, listen, serve until the gateway is stopped, and return the exit code."""
    _replace_closed_streams()
    try:
        read_secret_variable(os.environ)
    except BadSecretKey as wrong:
        raise click.UsageError(str(wrong)) from None
    raise_open_files_limit(OPEN_FILES)
    formatter = JsonFormatter() if log_options.as_json else TextFormatter()
    handler = log_to_stderr(formatter, logging.DEBUG if log_options.verbose else logging.INFO)
    reload = partial(source.read, flags)
    stamp = source.take_stamp()
    config = reload()
    bound = bind(config.server)
    with bound.sock as sock:
        servers = asyncio.run(find_local_servers(source, config, port_of(sock)))
        if servers:
            reload = partial(reload, servers=servers)
            config = reload()
        for warning in config.warnings:
            log.warning("%s", warning)
        format_request = format_json if log_options.as_json else format_text
        options = ServeOptions(
            config, stamp, reload, source.take_stamp, bound, handler, format_request, _ends_with_terminal()
        )
        return _serve(options, workers)


def _ends_with_terminal() -> bool:
    """Return whether SIGHUP means that our terminal was closed: there is one, and `nohup` does not protect us."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


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


def _serve(options: ServeOptions, workers: int) -> int:
    config = options.config
    url = base_url(config.server.host, port_of(options.bound.sock))
    startup = Startup(config, GatewayTarget(url, suggest_model(config) or next(iter(config.found_models), None)))
    startup.prepare_keys()

    def announce() -> None:
        options.bound.release_predecessor()
        startup.show_banner()
        startup.record_gateway()

    try:
        if workers == 1:
            _serve_in_one_process(options, announce)
            return 0
        return _serve_with_workers(options, workers, announce)
    finally:
        startup.show_created_key()
        startup.forget_gateway()


def _serve_in_one_process(options: ServeOptions, announce: Callable[[], None]) -> None:
    sock = options.bound.sock
    listening = Listening(sock, lambda app: announce(), offer=lambda: Offer(sock, lambda: None))
    settings = AppSettings(options.reload, options.take_stamp, options.stamp)
    _run_loop(options, settings, listening)


def _serve_with_workers(options: ServeOptions, workers: int, announce: Callable[[], None]) -> int:
    import shutil  # 1 MB, only for several workers

    gc.enable()
    parent = _Parent(replace(options, shared_counters=SharedCounters(workers)), announce)
    try:
        directory = make_socket_directory(str(workers))
    except OSError as error:
        raise AdminError(f"The workers cannot reach each other: {describe_cause(error)}") from error
    secret, pid = secrets.token_hex(32).encode(), os.getpid()

    def work(number: int, links: Links) -> int:
        try:
            _run_worker(replace(parent.options, member=GroupMember(number, workers, directory, secret)), links)
        except Exception as error:
            click.echo(f"Error: {explain_error(error)}", err=True)
            return 1
        finally:
            if os.getppid() != pid:  # the parent was killed: the last worker removes the directory
                with suppress(OSError):
                    os.rmdir(directory)
        return 0

    try:
        return WorkerPool(workers, work, parent, ends_with_terminal=options.ends_with_terminal).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Parent:
    """What the parent process does for its workers."""

    def __init__(self, options: ServeOptions, announce: Callable[[], None]) -> None:
        self.options = options  # with the last configuration that a worker has adopted
        self._announce = announce

    def on_ready(self) -> None:
        self._announce()

    def on_adopted(self) -> None:
        """Read what a worker has adopted, so that a worker that is started later begins with it."""
        stamp = self.options.take_stamp()
        try:
            self.options = replace(self.options, config=self.options.reload(), stamp=stamp)
        except ConfigError as error:
            log.debug("the file was edited again: %s", error)
        else:
            log.debug("workers that start from now on begin with the edited configuration")

    def on_stopping(self, accepting: int, replaced: Callable[[], None]) -> None:
        """Offer the socket to a new gateway, and close it once no worker accepts connections."""
        offer = Offer(self.options.bound.sock, replaced)

        def close_when_unused() -> None:
            os.read(accepting, 1)
            offer.close()
            self.options.bound.sock.close()

        threading.Thread(target=close_when_unused, name="listener", daemon=True).start()


def _run_worker(options: ServeOptions, links: Links) -> None:
    def ready(app: App) -> None:
        loop = asyncio.get_running_loop()
        _when_readable(loop, links.lifeline, partial(os.kill, os.getpid(), signal.SIGTERM))
        _when_readable(loop, links.replaced, app.stop_accepting)
        if isinstance(app.windows, SharedMeter):
            app.windows.on_alive = AliveSigns(links).send  # called only by the worker that the others ask
        accept_signals()
        announce_ready(links)

    listening = Listening(options.bound.sock, ready, released=partial(os.close, links.accepting))
    settings = AppSettings(options.reload, options.take_stamp, options.stamp, announce_adopted)
    _run_loop(options, settings, listening)


def _when_readable(loop: asyncio.AbstractEventLoop, descriptor: int, then: Callable[[], None]) -> None:
    """Call `then` once, when the other end of a pipe is closed."""

    def on_closed() -> None:
        loop.remove_reader(descriptor)
        then()

    loop.add_reader(descriptor, on_closed)


def _run_loop(options: ServeOptions, settings: AppSettings, listening: Listening) -> None:
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_run(options, settings, listening))


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest event loop that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _run(options: ServeOptions, settings: AppSettings, listening: Listening) -> None:
    request_log = RequestLog(options.format_request, options.log.write)
    store, keyring = await open_keys(options.config)
    try:
        # Exempt what the start has made from garbage collection: it lives as long as the process.
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        gc.enable()
        process = ProcessParts(
            os.environ,
            request_log=request_log,
            shared_counters=options.shared_counters,
            member=options.member,
        )
        app = App(options.config, keyring, process, store)
        ends_with_terminal = options.ends_with_terminal and options.member is None  # workers do as their parent says
        await run(app, settings, listening, ends_with_terminal=ends_with_terminal)
    finally:
        options.log.drain()
        await store.close()
