"""Replicas that share a Valkey, in front of one upstream: what a client begins on one, another one finishes."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.resume.clients import unchunk

from dragoman.proxy.steps.parked_runs import Replicas as SharedParking
from dragoman.state.run_index import RunIndex
from dragoman.store.shared_runs import RunBounds
from dragoman.store.valkey_runs import ValkeyRuns
from fakes.upstream import FakeUpstream
from gateway import Running, provider_section
from raw_http import Answered, ask, dial, request_bytes
from state.parked_rig import DIALECTS, make_choice
from valkey_server import ValkeyServer

PARK = "x-dragoman-park: 1"
SETTINGS = "[retry]\nattempts = 1\n[responses]\npark_s = 20\n"
PROTOCOLS = ("chat", "messages", "responses", "gemini")


@dataclass
class Replicas:
    """Gateways that share a Valkey and a database, and their upstreams by protocol."""

    gateways: list[Running]
    upstreams: dict[str, FakeUpstream]
    opened: threading.Event = field(default_factory=threading.Event)  # unset: the ends of replies are held back
    keys: dict[str, str] = field(default_factory=dict)

    def request(self, client: str, *fields: str, upstream: str = "", key: str = "alice", stream: bool = True) -> bytes:
        dialect, model = DIALECTS[client], f"{upstream or DIALECTS[client].protocol}/m"
        path = dialect.path.replace("{model}", model)
        if not stream:
            path = path.partition(":stream")[0] + ":generateContent" if ":stream" in path else path
        named = {"model": model, "stream": stream} if dialect.names_model else {}
        body = json.dumps({**named, **dialect.fields}).encode()
        return request_bytes(path, body, *fields, key=self.keys[key])

    def send(self, place: int, data: bytes) -> Answered:
        return ask(self.gateways[place].port, data)

    def resume(
        self, place: int, client: str, cursor: str, *fields: str, upstream: str = "", key: str = "alice"
    ) -> Answered:
        dialect = DIALECTS[client]
        path = dialect.path.replace("{model}", f"{upstream or dialect.protocol}/m")
        headers = fields or (f"x-dragoman-resume: {cursor}",)
        return self.send(place, request_bytes(path, b"", *headers, key=self.keys[key]))

    def leave_after(self, place: int, size: int, request: bytes) -> tuple[str, bytes]:
        """Read so many bytes of a reply, then leave; return the run and the bytes of the body."""
        with dial(self.gateways[place].port) as client:
            client.sendall(request)
            received = b""
            while len(received) < size or b"\r\n\r\n" not in received:
                received += client.recv(64)
        head, _, rest = received.partition(b"\r\n\r\n")
        [run] = [line.split(b": ")[1].decode() for line in head.split(b"\r\n") if line.startswith(b"x-dragoman-run:")]
        return run, unchunk(rest)[0]

    def calls(self, upstream: str) -> int:
        return len(self.upstreams[upstream].calls)

    def find_owner(self, place: int, run: str) -> str:
        """Return whose a run of this replica is."""
        found = self.gateways[place].app.site.parked_runs.index.find(run)
        assert found is not None
        return found.origin.owner

    def count_clients(self, place: int) -> int:
        """Return how many clients the runs under way of this replica have here."""
        index = self.gateways[place].app.site.parked_runs.index
        assert isinstance(index, RunIndex)
        return sum(run.clients for run in list(index._runs.values()) if not run.is_done)

    def is_out(self, place: int) -> bool:
        """Return whether this replica knows that Valkey does not answer."""
        shared = self.gateways[place].app.shared
        return shared is not None and shared.is_out

    def set_bounds(self, place: int, bounds: RunBounds) -> None:
        runs = self.find_replicas(place).copies._shared
        assert isinstance(runs, ValkeyRuns)
        runs.bounds = bounds

    def limit_memory(self, place: int, size: int) -> None:
        """Let the runs of each client key have this many bytes."""
        index = self.gateways[place].app.site.parked_runs.index
        assert isinstance(index, RunIndex)
        index._max_owner_bytes = size

    def find_replicas(self, place: int) -> SharedParking:
        replicas = self.gateways[place].app.site.parked_runs.replicas
        assert replicas is not None
        return replicas

    def count_readings(self, place: int) -> int:
        """Return how many runs of other replicas this one reads now."""
        return len(self.find_replicas(place).remote._readings)


@contextmanager
def replicas(
    directory: Path, valkey: ValkeyServer | None, count: int = 2, settings: str = SETTINGS, store_url: str = ""
) -> Iterator[Replicas]:
    with ExitStack() as stack:
        upstreams = {name: stack.enter_context(FakeUpstream(keep_alive=False)) for name in PROTOCOLS}
        sections = "".join(provider_section(name, fake.url, name) for name, fake in upstreams.items())
        shared = "" if valkey is None else '[store]\nshared = "env:SHARED"\n'
        environ = {} if valkey is None else {"SHARED": valkey.url}
        rig = Replicas([], upstreams)
        rig.opened.set()
        for number in range(count):
            home = directory / str(number)
            home.mkdir()
            names = ("alice", "bob") if not number else (f"key-{number}",)
            url = store_url or f"sqlite:///{directory}/store.db"
            gateway = stack.enter_context(Running(settings + shared + sections, home, environ, names, store_url=url))
            rig.gateways.append(gateway)
            rig.keys |= gateway.keys
        for name, fake in upstreams.items():
            fake.choose = make_choice(rig.opened, name)
        yield rig
