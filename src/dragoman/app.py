"""Build the gateway of one process from a configuration, run it, and reload the configuration."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from msgspec import Struct

from dragoman.config.load import Stamp
from dragoman.config.problems import ConfigError, Problem
from dragoman.config.secret import resolve_secret
from dragoman.config.settings import Config, find_console_state, is_loopback
from dragoman.net.bodies import ByteBudget
from dragoman.net.client import HttpClient
from dragoman.net.limits import limits_for
from dragoman.net.server import Server
from dragoman.net.tasks import spawn
from dragoman.operate.configuration.effective import ConfigReader
from dragoman.operate.configuration.settled_file import read_settled
from dragoman.operate.limit_webhook import LimitWebhook
from dragoman.operate.metrics.registry import SharedCounters, make_registry
from dragoman.operate.prices import Pricing
from dragoman.operate.request_log import RequestLog
from dragoman.operate.usage.cache_watch import CacheWatch
from dragoman.operate.usage.usage_writer import UsageWriter, remove_old_usage_forever
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.memories import make_memories
from dragoman.proxy.outcome import Outcome, OutcomeObserver
from dragoman.proxy.runtime_builder import RuntimeBuilder
from dragoman.server.api.operations import AdminAudit, EveryWorker
from dragoman.server.api.table import AdminApi
from dragoman.server.background import BackgroundApi
from dragoman.server.console.feed import ReplicaView, ShownGateway
from dragoman.server.console.site import Console, make_console
from dragoman.server.handler import RequestHandler, ServedApis
from dragoman.server.metrics import make_metrics_reader, provider_address, read_limits, read_reloads, read_shared_state
from dragoman.server.process_group import ProcessGroup, name_process
from dragoman.server.rejections import HostCheck, render_transport_error
from dragoman.server.responses import ResponsesApi
from dragoman.server.worker_group import GroupMember, WorkerGroup
from dragoman.state.background import BackgroundRuns
from dragoman.state.run_index import MAX_BYTES, MAX_OWNER_BYTES, MAX_RUN_BYTES
from dragoman.state.service import ResponseService, remove_old_responses_forever
from dragoman.store import Store, StoreError
from dragoman.store.shared import make_shared
from dragoman.store.shared_runs import RunBounds
from dragoman.store.store import POSTGRESQL
from dragoman.tenancy.keys import Keyring
from dragoman.tenancy.limit_watch import LimitWatch
from dragoman.tenancy.limiter import Limiter
from dragoman.tenancy.memory_meter import MemoryMeter
from dragoman.tenancy.opened_meter import RunningMeter, count_by_share, make_meter, pair_with_shared
from dragoman.tenancy.shared_meter import ALONE, MeterPlace
from dragoman.upstreams import Surroundings
from dragoman.upstreams.credentials.cooldown_exchange import make_exchange
from dragoman.upstreams.credentials.shared_cooldowns import CooldownBoard
from dragoman.upstreams.credentials.stored import make_stored_credentials
from dragoman.upstreams.kept_rules import KeptRules

log = logging.getLogger(__name__)

RELOAD_POLL_S = 1.0
KEY_POLL_S = 0.5  # how soon a key or rule that another process creates or removes takes effect
QUIET_S = 0.5  # without a connection, after which a stopping gateway closes its listening socket
STOP_POLL_S = 0.02
RENEWAL_S = 35.0  # for renewals of credentials that are under way: none is cut off
LAST_EVENTS_S = 2.0  # for clients that follow background responses which end with the time to drain
ACCEPT_WHILE_STOPPING_S = 5.0  # so that a load balancer sees /ready turn before connections are refused


def _do_nothing() -> None:
    return


class AppSettings(Struct, frozen=True):
    """How to read the configuration again, and whether to: the stamp of now, and of what the app was built from."""

    read: ConfigReader
    take_stamp: Callable[[], Stamp]
    stamp: Stamp
    adopted: Callable[[], None] = _do_nothing  # called after a changed configuration took effect


class Succession(Protocol):
    """An offer of our listening socket to a gateway that replaces this one."""

    is_starting: bool  # the successor has the socket and does not serve yet
    is_taken: bool

    def close(self) -> None: ...


class Listening(Struct, frozen=True):
    """The listening socket, if it exists already, and callbacks for the start and the end of listening."""

    sock: socket.socket | None
    ready: "Callable[[App], None]"
    offer: Callable[[], Succession] | None = None
    released: Callable[[], None] = _do_nothing


class ProcessParts(Struct, frozen=True):
    """What a process gives its gateway: its environment, its log, and what it shares with the other workers."""

    environ: Mapping[str, str]
    observers: Sequence[OutcomeObserver] = ()
    request_log: RequestLog | None = None
    shared_counters: SharedCounters | None = None
    member: GroupMember | None = None


class App:
    """The gateway of one process."""

    def __init__(
        self,
        config: Config,
        keyring: Keyring,
        process: ProcessParts,
        store: Store | None = None,
    ) -> None:
        if keyring.is_empty and not is_loopback(config.server.host):
            problem = "an address that others can reach needs a valid client key; `dragoman keys create` makes one"
            raise ConfigError([Problem("configuration", None, "server.host", problem)])
        self._environ = environ = process.environ
        member, request_log = process.member, process.request_log
        self.keyring = keyring
        keyring.policies.adopt(config.limits, config.teams)
        self._store = store
        self.shared = make_shared(config.store, environ)  # what it is asked, other gateways may have answered to
        self._client = HttpClient()
        self._metrics = make_registry(environ, process.shared_counters)
        self._rules = KeptRules(store)
        cooldowns = CooldownBoard()
        self._exchange = make_exchange(cooldowns, self.shared, store)
        self._stored = None if store is None else make_stored_credentials(store, config.store.url, environ)
        around = Surroundings(self._client.send, environ, self._stored, None if self._exchange is None else cooldowns)
        self._runtimes = RuntimeBuilder(around, self._rules, keyring.policies)
        self._is_replaced = False
        self._console: Console | None = None
        self.reloads = {"good": 0, "bad": 0}
        self._pricing = _make_pricing(config)
        self._request_log = request_log
        self.usage = None if store is None else UsageWriter(store, self._pricing)
        observers = [*self._metrics.observers, *process.observers, CacheWatch().observe]
        if request_log is not None:
            request_log.pricing = self._pricing
            observers.append(request_log.observe)
        if self.usage is not None:
            observers.append(self.usage.observe)
        self.gateway = Gateway(self._runtimes.build(config, self._pricing), make_memories(store), observers)
        self.windows = self._make_window_meter(member)
        self.meter = self._add_shared_limits(self.windows)
        self._limit_watch = LimitWatch(self.meter, store)
        limiter = self.gateway.limiter = self._make_limiter(self.meter)
        server = config.server
        self._budget = ByteBudget(server.max_buffered_bytes)
        self._host = server.host
        host_check = HostCheck(server.host, server.allowed_hosts)
        self.settings: AppSettings | None = None  # set when it is run
        self._workers = EveryWorker(self.gateway, keyring, self)
        self._workers.meter = self.meter
        api = AdminApi(self._workers, environ, self.usage)
        self._responses = None if store is None else self._make_responses(store)
        apis = ServedApis(self._metrics.scrape, api, self._responses)
        self.site = RequestHandler(self.gateway, keyring, host_check, apis)
        self._share_runs()
        self.group = None if member is None else self._join_group(member)
        self.processes = self._join_processes(member)
        self._set_console(config)
        self.server = Server(self.site, limits_for(server), render_transport_error, self._budget)
        self._report_state(limiter)

    def _make_responses(self, store: Store) -> ResponsesApi:
        service = ResponseService(store, lambda: self.gateway.runtime.config.responses)
        service.is_out = lambda: self.keyring.is_store_out
        runs = BackgroundRuns(service, store.runs, lambda: self.gateway.runtime.config.responses)
        background = BackgroundApi(self.gateway, runs, self.keyring, self._budget)
        return ResponsesApi(self.gateway, service, background, self.keyring)

    def _report_state(self, limiter: Limiter) -> None:
        """Let metrics and `/ready` read the state of this gateway."""
        self._metrics.add_source(make_metrics_reader(self.gateway, self.site, self.server, self.usage))
        self._metrics.add_source(partial(read_reloads, self.reloads))
        self._metrics.add_source(partial(read_limits, limiter, self._limit_watch, self.meter))
        self._metrics.add_source(partial(read_shared_state, self._find_shared_state))
        self.site.public_pages.find_shared_state = self._find_shared_state
        if self._store is not None:
            clock = self._store.clock
            self.site.public_pages.find_problem = lambda: clock.problem

    def _find_shared_state(self) -> dict[str, bool]:
        """Return whether each part of what gateways share answers now."""
        parts = {} if self.shared is None else {"shared": not self.shared.is_out}
        if self._store is not None and self._store.is_server:
            parts["store"] = not (self.meter.is_out or self.keyring.is_store_out)
        return parts

    def _add_shared_limits(self, windows: RunningMeter) -> RunningMeter:
        """Return a meter of all limits, whose rates and slots do not depend on whether a server answers."""
        if self._store is None:
            return windows
        if self.shared is not None:
            return pair_with_shared(self.shared, windows)
        return count_by_share(windows) if self._store.is_server else windows

    def _make_window_meter(self, member: GroupMember | None) -> RunningMeter:
        policies, store = self.keyring.policies, self._store
        if store is None:  # of which no other process knows either
            return MemoryMeter(None, lambda: policies.time_zone)
        place = ALONE if member is None else MeterPlace(member.number, member.count, member.directory)
        return make_meter(store, lambda: policies.time_zone, place)

    def _find_webhook(self) -> str | None:
        source = self.gateway.runtime.config.limits.webhook
        return None if source is None else resolve_secret(source, self._environ).reveal()

    def _make_limiter(self, meter: RunningMeter) -> Limiter:
        now = time.time if self._store is None else self._store.clock.now
        limiter, usage = Limiter(meter, self.keyring.policies, now), self.usage
        self._limit_watch.notify = LimitWebhook(self._client, self._find_webhook)
        limiter.on_settled = self._limit_watch
        if usage is None:
            return limiter
        limiter.count_pending = lambda: usage.pending
        usage.on_written = limiter.record_written
        self.gateway.charges = usage
        return limiter

    def _share_runs(self) -> None:
        """Let all replicas that share state find each other's runs."""
        parked = self.site.parked_runs
        if self.shared is None:
            parked.has_unknown_replicas = self._store is not None and self._store.name.startswith(POSTGRESQL)
            return
        from dragoman.store.valkey_runs import ValkeyRuns

        parked.share(ValkeyRuns(self.shared, RunBounds(MAX_RUN_BYTES, MAX_OWNER_BYTES, MAX_BYTES)))

    def _join_group(self, member: GroupMember) -> WorkerGroup:
        group = WorkerGroup(member, self.site, render_transport_error, self._budget)
        self.site.model_requests.join_group(group)
        self._workers.join_group(group)
        return group

    def _join_processes(self, member: GroupMember | None) -> ProcessGroup | None:
        """Join the processes of all replicas; None if there can be no other that is known."""
        if member is None and self.shared is None:
            return None
        own, replicas = name_process(member), None
        if self.shared is not None:
            from dragoman.server.valkey_group import ValkeyGroup  # its driver is installed

            replicas = ValkeyGroup(own, self.shared.address)
        processes = ProcessGroup(own, self.group, replicas)
        self.gateway.join_group(processes)
        return processes

    def _find_replica(self) -> str | None:
        """Return what people call this replica; None if it is the only one."""
        return None if self.shared is None else f"{socket.gethostname()}:{self.server.port}"

    async def start(self, sock: socket.socket | None = None) -> None:
        config = self.gateway.runtime.config
        if self.group is not None:
            self.group.start()
        if self.shared is not None:
            self.shared.start()
        await self._read_store()
        await self.server.start(config.server.host, config.server.port, sock=sock)
        self.keyring.on_ended = self.gateway.running.cancel_of_keys
        self._watching = [
            spawn(self.keyring.watch(KEY_POLL_S), name="key watch"),
            spawn(self._rules.watch(KEY_POLL_S), name="rule watch"),
            spawn(self._start_meter_with_limits(), name="meter start"),
        ]
        if self._store is not None and self._store.is_server:
            self._watching.append(spawn(self._store.clock.watch(), name="store clock"))
        if self._store is not None:
            old_usage = remove_old_usage_forever(self._store, lambda: self.gateway.runtime.config.store.usage_days)
            self._watching.append(spawn(old_usage, name="old usage"))
            old = remove_old_responses_forever(self._store, lambda: self.gateway.runtime.config.responses)
            self._watching.append(spawn(old, name="old responses"))
        self.site.parked_runs.start()
        self.site.start_background()
        self._metrics.start(partial(provider_address, self.gateway))
        if self.usage is not None:
            self.usage.start()
        spawn(asyncio.to_thread(self.gateway.captures.remove_old, config.debug), name="old captures")
        for catalogue in self.gateway.runtime.catalogues.values():
            catalogue.list_known()
        if self._exchange is not None:
            self._exchange.start()
        if self.processes is not None:
            self.processes.start()

    async def _read_store(self) -> None:
        """Read what the first request goes by: rules, and the clock that windows begin and end by.

        What cannot be read now is read once the store answers.
        """
        with suppress(StoreError):
            await self._rules.load()
            if self._store is not None and self._store.is_server:
                await self._store.clock.learn()

    async def _start_meter_with_limits(self) -> None:
        """Start the meter once there is a limit: other workers may ask this one, though it has no such request."""
        while True:
            if self.keyring.policies.has_limits:
                self.meter.start()
                return
            await asyncio.sleep(KEY_POLL_S)

    async def stop(self, accept_s: float = 0.0, listen: Listening | None = None) -> None:
        """Stop accepting, let streams in flight end, then end those that do not with an error event.

        Connections are accepted for another `accept_s`, until a successor accepts them or no more arrive.
        """
        self.site.public_pages.is_ready = False
        if self._responses is not None:
            self._responses.begin_stop()
        if self._console is not None:
            self._console.begin_stop()
        self.server.begin_stop()
        if accept_s and not self.server.is_quiet(QUIET_S):
            await self._accept_while_stopping(accept_s, listen)
        await self.server.stop_listening()
        if listen is not None:
            listen.released()
        await self._drain(self.gateway.runtime.config.server.drain_s)
        await self.site.parked_runs.stop()
        if self._stored is not None:
            await self._stored.finish(RENEWAL_S)
        await self._runtimes.close()
        await self._client.close()
        self.gateway.observers.flush()
        self.site.auth_backoff.close()
        await asyncio.to_thread(self.gateway.captures.close)
        for watching in self._watching:
            watching.cancel()
        await self._metrics.stop()
        if self.usage is not None:
            await self.usage.stop()
        await self._limit_watch.stop()
        await self.meter.stop()
        if self.processes is not None:
            await self.processes.stop()
        if self._exchange is not None:
            await self._exchange.stop()
        with suppress(StoreError):
            await self.keyring.touch()
        if self.shared is not None:
            await self.shared.stop()

    async def _drain(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        runs = None if self._responses is None else self._responses.background.runs
        grace_s = seconds + LAST_EVENTS_S if runs is not None and runs.running else seconds
        draining = [] if runs is None else [runs.drain(seconds, lambda: self.server.is_grace_over)]
        await asyncio.gather(self.server.drain(grace_s), *draining)
        await self.server.close()
        if self.group is not None:  # until now, other workers may have passed requests on to this one
            await self.group.stop(max(0.0, until - time.monotonic()))

    def end_grace(self) -> None:
        """End the time that requests under way have to end, now."""
        self.server.end_grace()
        if self.group is not None:
            self.group.server.end_grace()

    def stop_accepting(self) -> None:
        """Accept no connections after the stop begins: the successor accepts them."""
        self._is_replaced = True

    async def _accept_while_stopping(self, seconds: float, listen: Listening | None) -> None:
        successor = None if listen is None or listen.offer is None else listen.offer()
        until = time.monotonic() + seconds
        try:
            while not self._is_replaced and not self.server.is_grace_over:
                if successor is not None and successor.is_taken:
                    return
                is_awaited = successor is not None and successor.is_starting
                if not is_awaited and (time.monotonic() >= until or self.server.is_quiet(QUIET_S)):
                    return
                await asyncio.sleep(STOP_POLL_S)
        finally:
            if successor is not None:
                successor.close()

    def adopt(self, config: Config) -> None:
        """Use a changed configuration from the next request on; requests in progress keep the old one."""
        old_shared = self.gateway.runtime.config.store.shared
        old, new = self.gateway.runtime.config.server, config.server
        self._pricing = _make_pricing(config)
        self.gateway.runtime = self._runtimes.build(config, self._pricing, self.gateway.runtime)
        self.keyring.policies.adopt(config.limits, config.teams)
        if self.usage is not None:
            self.usage.pricing = self._pricing
        if self._request_log is not None:
            self._request_log.pricing = self._pricing
        self.site.host_check = HostCheck(self._host, new.allowed_hosts)
        self._set_console(config)
        self.server.set_limits(limits_for(new))
        self._budget.limit = new.max_buffered_bytes
        if (old.host, old.port) != (new.host, new.port):
            log.warning("server.host or server.port was edited: restart the gateway to use it")
        if old_shared != config.store.shared:
            log.warning("store.shared was edited: restart the gateway to use it")

    def _set_console(self, config: Config) -> None:
        """Serve the console or not, as a configuration says; sessions outlast a change of it."""
        state = find_console_state(config, self._environ)
        if state.problem:
            log.warning("%s", state.problem)
        if state.is_on:
            self._console = self._console or self._make_console()
            self._console.adopt(config)
        self.site.set_console(self._console if state.is_on else None)

    def _make_console(self) -> Console:
        audit = None if self.usage is None else AdminAudit(self.usage)
        shown = ShownGateway(
            gateway=self.gateway,
            keyring=self.keyring,
            backoff=self.site.auth_backoff,
            store=self._store,
            audit=audit,
            group=self.processes,
            replica=ReplicaView(
                self._find_replica, self._store is not None and self._store.is_server and self.shared is None
            ),
        )
        return make_console(shown, self._cost_of)

    def _cost_of(self, outcome: Outcome) -> int | None:
        return self._pricing.cost_nano(outcome)

    def reload(self, text: str | None = None) -> None:
        """Read the configuration again, of this text or else of the file; an invalid one is logged, nothing more."""
        assert self.settings is not None
        try:
            config = self.settings.read(text=text)
            self.adopt(config)
            for warning in config.warnings:
                log.warning("%s", warning)
        except ConfigError as error:
            self.reloads["bad"] += 1
            log.error("the edited configuration is invalid, so the running one stays in use:\n%s", error)
        except Exception:
            self.reloads["bad"] += 1
            log.exception("the edited configuration could not be used, so the running one stays in use")
        else:
            self.reloads["good"] += 1
            self.settings.adopted()
            log.info("the edited configuration is in effect")


async def run(app: App, settings: AppSettings, listen: Listening, *, ends_with_terminal: bool = False) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends streams in flight, a third one ends the process.

    SIGHUP stops a gateway that ends with its terminal, and makes any other read the configuration again.
    """
    app.settings = settings
    seen = settings.take_stamp()
    if seen != settings.stamp:  # it was changed during the start
        settled = await read_settled(settings.take_stamp)
        seen = settled.stamp
        app.reload(settled.text)
    await app.start(listen.sock)
    loop = asyncio.get_running_loop()
    signals: list[float] = []  # seconds to accept connections, for each stop signal received
    stopping = asyncio.Event()

    def stop(accept_s: float) -> None:
        signals.append(accept_s)
        stopping.set()
        log.info(app.gateway.describe_stop(app.site.under_way, len(signals)))
        if len(signals) == 2:
            app.end_grace()
        elif len(signals) > 2:
            os._exit(1)

    def hang_up() -> None:
        if not signals:  # the kernel, the shell and make may each send one when a terminal is closed
            stop(0.0)

    loop.add_signal_handler(signal.SIGTERM, stop, ACCEPT_WHILE_STOPPING_S)
    loop.add_signal_handler(signal.SIGINT, stop, 0.0)
    must_reload = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hang_up if ends_with_terminal else must_reload.set)
    listen.ready(app)
    spawn(_watch_configuration(app, settings, seen, must_reload), name="configuration watch")
    await stopping.wait()
    await app.stop(signals[0], listen)


async def _watch_configuration(app: App, settings: AppSettings, seen: Stamp, must_reload: asyncio.Event) -> None:
    """Reload the configuration when its file changes, a file appears that takes precedence, or a user signs in.

    `must_reload` makes it read the file again at once, whether it has changed or not.
    """
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(RELOAD_POLL_S):
                await must_reload.wait()
        now = settings.take_stamp()
        if now == seen and not must_reload.is_set():
            continue
        if now.file is None and seen.file is not None and not must_reload.is_set():
            log.warning("%s was removed; the running configuration stays in use", seen.file[0])
            seen = now
            continue
        settled = await read_settled(settings.take_stamp)
        must_reload.clear()  # a signal meanwhile came before the last read
        seen = settled.stamp
        app.reload(settled.text)


def _make_pricing(config: Config) -> Pricing:
    return Pricing(config.providers, config.prices, config.tools.web_search.usd_per_1000)
