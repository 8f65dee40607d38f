"""A gateway with an upstream of each protocol, and clients that leave in the middle of a reply and come back."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.resume.clients import unchunk
from bench.resume.replies import without_signs

from asking import find_path, make_body
from dragoman.state.run_index import RunIndex
from fakes.upstream import Answer, FakeUpstream, Gate, ReceivedRequest
from gateway import Running
from raw_http import Answered, ask, request_bytes
from rig import ONCE, run_rig
from scripting import write_reply
from waiting import wait_until
from wire_json import JsonObject

WORDS = " ".join(f"word-{number}" for number in range(40))


@dataclass(frozen=True)
class Dialect:
    """How clients of a protocol ask for a stream; `{model}` of its path is the model."""

    path: str
    fields: JsonObject
    stream: bytes  # of an upstream of the same protocol
    whole: bytes
    protocol: str

    @property
    def events(self) -> bytes:
        """The stream without its signs of life, which are not sent again."""
        return without_signs(self.stream)

    @property
    def is_array(self) -> bool:
        return self.stream.startswith(b"[")

    @property
    def names_model(self) -> bool:
        return "{model}" not in self.path


def make_dialect(protocol: str) -> Dialect:
    fields = {name: value for name, value in make_body(protocol, "").items() if name not in ("model", "stream")}
    fields |= {"store": False} if protocol == "responses" else {}
    stream, whole = (write_reply(protocol, WORDS, stream=stream).body for stream in (True, False))
    return Dialect(find_path(protocol, "{model}", stream=True), fields, stream, whole, protocol)


DIALECTS = {name: make_dialect(name) for name in ("chat", "messages", "responses", "gemini")}
GEMINI = DIALECTS["gemini"]
GEMINI_ARRAY = b"[" + b"\n,\n".join(line[6:] for line in GEMINI.stream.split(b"\r\n\r\n")[:-1]) + b"\n]\n"
DIALECTS["gemini-array"] = replace(GEMINI, path=GEMINI.path.partition("?")[0], stream=GEMINI_ARRAY)
HELD_BYTES = 400  # of the end of a body, while replies are held back


@dataclass
class Parking:
    """A running gateway and its upstreams by protocol."""

    gateway: Running
    upstreams: Mapping[str, FakeUpstream]
    opened: threading.Event = field(default_factory=threading.Event)  # unset: the ends of replies are held back

    def __post_init__(self) -> None:
        self.opened.set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold back the end of every reply, so that none is complete before the block ends."""
        was_open = self.opened.is_set()
        self.opened.clear()
        try:
            yield
        finally:
            if was_open:
                self.opened.set()

    def request(self, client: str, upstream: str = "", *fields: str, key: str = "alice", **body: object) -> bytes:
        dialect, model = DIALECTS[client], f"{upstream or DIALECTS[client].protocol}/m"
        stream = body.pop("stream", True)
        path = dialect.path.replace("{model}", model)
        if not stream:
            path = path.partition(":stream")[0] + ":generateContent" if ":stream" in path else path
        named = {"model": model, "stream": stream} if dialect.names_model else {}
        content = json.dumps({**named, **dialect.fields, **body}).encode()
        return request_bytes(path, content, *fields, key=self.gateway.keys[key])

    def send(self, client: str, upstream: str = "", *fields: str, key: str = "alice", **body: object) -> Answered:
        return ask(self.gateway.port, self.request(client, upstream, *fields, key=key, **body))

    def resume(self, client: str, cursor: str, *fields: str, upstream: str = "", key: str = "alice") -> Answered:
        dialect = DIALECTS[client]
        path = dialect.path.replace("{model}", f"{upstream or dialect.protocol}/m")
        headers = fields or (f"x-dragoman-resume: {cursor}",)
        return ask(self.gateway.port, request_bytes(path, b"", *headers, key=self.gateway.keys[key]))

    def post(self, path: str, body: bytes, *fields: str, key: str = "alice") -> Answered:
        return ask(self.gateway.port, request_bytes(path, body, *fields, key=self.gateway.keys[key]))

    def leave_after(self, size: int, request: bytes) -> tuple[str, bytes]:
        """Read so many bytes of a reply, then leave before its end; return the run and the bytes of the body."""
        with self.hold():  # until the gateway knows: else the end might be sent to a client that is leaving
            with socket.create_connection(("127.0.0.1", self.gateway.port), timeout=60) as opened:
                opened.sendall(request)
                received = b""
                while len(received) < size or b"\r\n\r\n" not in received:
                    data = opened.recv(64)
                    if not data:
                        break
                    received += data
            head, _, rest = received.partition(b"\r\n\r\n")
            [run] = [
                line.split(b": ")[1].decode() for line in head.split(b"\r\n") if line.startswith(b"x-dragoman-run")
            ]
            wait_until(lambda: not self._has_clients(run))
        return run, unchunk(rest)[0]

    def _has_clients(self, run: str) -> bool:
        found = self.gateway.app.site.parked_runs.index.find(run)
        return found is not None and found.clients > 0

    def calls(self, upstream: str) -> int:
        return len(self.upstreams[upstream].calls)

    def wait_left(self, count: int = 1) -> None:
        """Wait until the gateway knows that this many clients have left."""
        wait_until(lambda: self.count_clients().count(0) >= count)

    def count_clients(self) -> list[int]:
        """Return how many clients each run has now."""
        index = self.gateway.app.site.parked_runs.index
        assert isinstance(index, RunIndex)
        return [run.clients for run in list(index._runs.values())]


@contextmanager
def parking(directory: Path, settings: str = "") -> Iterator[Parking]:
    with run_rig(directory, ONCE + settings, keys=("alice", "bob")) as started:
        rig = Parking(started.gateway, started.fakes)
        for name, fake in started.fakes.items():
            fake.choose = make_choice(rig.opened, name)
        yield rig


def make_choice(opened: threading.Event, upstream: str) -> Callable[[ReceivedRequest], Answer]:
    """Return how an upstream answers: with the requested form of reply."""

    def choose(request: ReceivedRequest) -> Answer:
        dialect = DIALECTS[upstream]
        if dialect.names_model:
            is_stream = bool(request.json.get("stream"))
        else:
            is_stream = "stream" in request.path
            dialect = dialect if "alt=sse" in request.path else DIALECTS["gemini-array"]
        body = dialect.stream if is_stream else dialect.whole
        kind = "application/json" if dialect.is_array or not is_stream else "text/event-stream"
        return Answer(body, content_type=kind, cut=160, gate=Gate(opened, len(body) - HELD_BYTES))

    return choose
