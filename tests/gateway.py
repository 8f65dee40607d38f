"""The real gateway, started in this process on a port of its own, for tests that talk to it over HTTP."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from dragoman.app import App, AppSettings, ProcessParts
from dragoman.config.load import ConfigSource, Stamp
from dragoman.config.secret import Secret
from dragoman.operate import NotFound
from dragoman.operate.captures.files import find_capture, list_captures
from dragoman.proxy.capture.format import Capture
from dragoman.proxy.outcome import Outcome
from dragoman.server.worker_group import GroupMember
from dragoman.store import open_store
from dragoman.store.usage_rows import UsageRow
from dragoman.tenancy.keys import Keyring
from waiting import wait_until

KEY = "dgm_fake-client-key-for-tests-only"


class Running:
    """A gateway in a thread of its own."""

    def __init__(
        self,
        toml: str,
        directory: Path,
        environ: Mapping[str, str] | None = None,
        stored: Sequence[str] = (),  # names of client keys to create in a store of its own
        member: GroupMember | None = None,  # of several workers
        store_url: str = "",  # of a store that others have too; empty: a file in the directory
    ) -> None:
        self.member = member
        self._store_url = store_url or f"sqlite:///{directory}/store.db"
        self._has_store = bool(stored or store_url or member)
        self._toml = toml
        self._stored = stored
        self.keys: dict[str, str] = {}  # the stored keys by name
        self._environ = environ or {}
        self.outcomes: list[Outcome] = []
        self._directory = directory

    def __enter__(self) -> "Running":
        file = self._directory / "dragoman.toml"
        file.write_text(self._toml)
        read = partial(ConfigSource(str(file), {}, self._directory, self._directory).read, {"server.port": 0})
        config = read()
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        problems: list[BaseException] = []

        async def start() -> None:
            self._store = await open_store(self._store_url) if self._has_store else None
            keyring = Keyring(self._store, Secret(KEY))
            for name in self._stored:
                self.keys[name] = (await keyring.create(name)).secret.reveal()
            process = ProcessParts(self._environ, [self.outcomes.append], member=self.member)
            self.app = App(config, keyring, process, self._store)
            self.app.settings = AppSettings(read, lambda: Stamp(None), Stamp(None))
            await self.app.start()

        def run() -> None:
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(start())
            except BaseException as problem:
                problems.append(problem)
                started.set()
                raise
            started.set()
            self.loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        started.wait()
        if problems:
            raise problems[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result(timeout=60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def stop_soon(self, accept_s: float = 0.0) -> "Future[None]":
        """Stop the gateway, as a signal would."""
        return asyncio.run_coroutine_threadsafe(self.app.stop(accept_s), self.loop)

    def outcome(self, request_id: str) -> Outcome:
        """Of this request, by our id or the client's: a client has its reply a moment earlier."""

        def find() -> list[Outcome]:
            return [one for one in self.outcomes if request_id in (one.request_id, one.client_request_id)]

        wait_until(lambda: bool(find()))
        [found] = find()
        return found

    def settle(self) -> None:
        """Waits until the first lists of models have come: they use credentials too, and would be counted."""
        for catalogue in self.app.gateway.runtime.catalogues.values():
            asyncio.run_coroutine_threadsafe(catalogue.wait_for_list(), self.loop).result(timeout=60)

    def capture(self, request_id: str) -> Capture:
        """Of this request, by our id or the client's, once it is written."""
        debug, found = self.app.gateway.runtime.config.debug, list[Capture]()

        def is_written() -> bool:
            named = [
                one.summary.request_id for one in list_captures(debug) if one.summary.client_request_id == request_id
            ]
            with suppress(NotFound):
                found.append(find_capture(debug, named[-1] if named else request_id))
            return bool(found)

        wait_until(is_written)
        return found[0]

    def store_usage(self, rows: Sequence[UsageRow]) -> None:
        """Adds rows of requests to the store, as an earlier run of the gateway would have left them."""
        assert self._store is not None
        asyncio.run_coroutine_threadsafe(self._store.append_usage(rows), self.loop).result(60)

    def make_console_link(self) -> str:
        """Returns the token of a link that signs in to the console once."""
        assert self.app.site.console is not None
        token = asyncio.run_coroutine_threadsafe(self.app.site.console.sessions.make_link(), self.loop).result(60)
        assert token is not None
        return token

    async def _stop(self) -> None:
        await self.app.server.close()
        await self.app.stop()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._store is not None:
            await self._store.close()

    def adopt(self, toml: str) -> None:
        """The configuration has been edited to this."""
        file = self._directory / "dragoman.toml"
        file.write_text(toml)
        config = ConfigSource(str(file), {}, self._directory, self._directory).read({"server.port": 0})

        async def take_over() -> None:
            self.app.adopt(config)

        asyncio.run_coroutine_threadsafe(take_over(), self.loop).result(timeout=60)

    @property
    def port(self) -> int:
        return self.app.server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running(
    toml: str,
    directory: Path,
    environ: Mapping[str, str] | None = None,
    stored: Sequence[str] = (),
    store_url: str = "",
) -> Iterator[Running]:
    with Running(toml, directory, environ, stored, store_url=store_url) as gateway:
        yield gateway


@contextmanager
def running_workers(
    toml: str, directory: Path, environ: Mapping[str, str] | None = None, stored: Sequence[str] = ()
) -> Iterator[tuple[Running, Running]]:
    """Run two workers of one gateway, each on a port of its own, so that a test chooses which one it asks.

    The first one has the stored keys.
    """
    with tempfile.TemporaryDirectory(prefix="dragoman-") as sockets:
        members = [GroupMember(number, 2, sockets, b"secret-of-this-test") for number in (0, 1)]
        first = Running(toml, directory, environ, stored, members[0])
        with first, Running(toml, directory, environ, (), members[1]) as other:
            yield first, other


@contextmanager
def running_replicas(
    toml: str, directory: Path, store_url: str, shared_url: str = "", count: int = 2
) -> Iterator[list[Running]]:
    """Run gateways with the same configuration on one database, and on one Valkey if it is given."""
    toml += f'\n[store]\nurl = "{store_url}"\n' + (f'shared = "{shared_url}"\n' if shared_url else "")
    with ExitStack() as stack:
        gateways = []
        for number in range(count):
            folder = directory / f"replica-{number}"
            folder.mkdir()
            gateways.append(stack.enter_context(Running(toml, folder, store_url=store_url)))
        yield gateways


def provider_section(protocol: str, url: str, name: str = "up") -> str:
    """Return the section of a provider with one protocol, or of kind `openai`, at a loopback address."""
    kinds = {"messages": "anthropic", "gemini": "gemini", "openai": "openai"}
    kind = kinds.get(protocol, "openai-compatible")
    protocol_line = f'protocol = "{protocol}"\n' if kind == "openai-compatible" else ""
    return f'[providers.{name}]\nkind = "{kind}"\nendpoint = "{url}"\napi_key = "sk-fake-upstream"\n{protocol_line}'
