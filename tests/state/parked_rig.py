"""A gateway with an upstream of each protocol, and clients that leave in the middle of a reply and come back."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.resume.clients import unchunk
from bench.resume.replies import without_signs

from fakes.upstream import Answer, FakeUpstream, Gate, ReceivedRequest
from gateway import Running, provider_section, running
from raw_http import Answered, ask, request_bytes
from scripting import encode_chat, encode_gemini, encode_messages, encode_responses
from scripting.replies import ScriptedReply, Text
from waiting import wait_until

WORDS = ScriptedReply((Text(" ".join(f"word-{number}" for number in range(40))),))
GEMINI_EVENTS = encode_gemini.encode_stream(WORDS)
GEMINI_ARRAY = b"[" + b"\n,\n".join(line[6:] for line in GEMINI_EVENTS.split(b"\r\n\r\n")[:-1]) + b"\n]\n"


@dataclass(frozen=True)
class Dialect:
    """How clients of a protocol ask for a stream; `{model}` of its path is the model."""

    path: str
    fields: dict[str, object]
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


GEMINI = Dialect(
    "/v1beta/models/{model}:streamGenerateContent?alt=sse",
    {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
    GEMINI_EVENTS,
    encode_gemini.encode_whole(WORDS),
    "gemini",
)
HI = [{"role": "user", "content": "Hi"}]
DIALECTS = {
    "chat": Dialect(
        "/v1/chat/completions",
        {"messages": HI},
        encode_chat.encode_stream(WORDS),
        encode_chat.encode_whole(WORDS),
        "chat",
    ),
    "messages": Dialect(
        "/v1/messages",
        {"max_tokens": 99, "messages": HI},
        encode_messages.encode_stream(WORDS),
        encode_messages.encode_whole(WORDS),
        "messages",
    ),
    "responses": Dialect(
        "/v1/responses",
        {"input": "Hi", "store": False},
        encode_responses.encode_stream(WORDS),
        encode_responses.encode_whole(WORDS),
        "responses",
    ),
    "gemini": GEMINI,
    "gemini-array": replace(GEMINI, path=GEMINI.path.partition("?")[0], stream=GEMINI_ARRAY),
}
UPSTREAMS = ("chat", "messages", "responses", "gemini")
HELD_BYTES = 400  # of the end of a body, while replies are held back


@dataclass
class Parking:
    """A running gateway and its upstreams by protocol."""

    gateway: Running
    upstreams: dict[str, FakeUpstream]
    pace: Answer = field(default_factory=lambda: Answer(cut=160, pause_s=0.004))  # how the upstreams send streams
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
        with self.hold(), socket.create_connection(("127.0.0.1", self.gateway.port), timeout=60) as opened:
            opened.sendall(request)
            received = b""
            while len(received) < size or b"\r\n\r\n" not in received:
                data = opened.recv(64)
                if not data:
                    break
                received += data
        head, _, rest = received.partition(b"\r\n\r\n")
        [run] = [line.split(b": ")[1].decode() for line in head.split(b"\r\n") if line.startswith(b"x-dragoman-run")]
        return run, unchunk(rest)[0]

    def calls(self, upstream: str) -> int:
        return len(self.upstreams[upstream].calls)

    def wait_left(self, count: int = 1) -> None:
        """Wait until the gateway knows that so many clients have left."""
        wait_until(lambda: self.count_clients().count(0) >= count)

    def count_clients(self) -> list[int]:
        """Return how many clients each run has now."""
        return [run.clients for run in list(self.gateway.app.site.parked_runs._index._runs.values())]


@contextmanager
def parking(directory: Path, settings: str = "") -> Iterator[Parking]:
    fakes = {name: FakeUpstream(keep_alive=False) for name in UPSTREAMS}
    sections = []
    try:
        for name, fake in fakes.items():
            fake.__enter__()
            sections.append(provider_section(name, fake.url, name))
        toml = "\n".join(["[retry]\nattempts = 1\n", settings, *sections])
        with running(toml, directory, stored=("alice", "bob")) as gateway:
            rig = Parking(gateway, fakes)
            for name, fake in fakes.items():
                fake.choose = make_choice(rig, name)
            yield rig
    finally:
        for fake in fakes.values():
            fake.__exit__(None, None, None)


def make_choice(rig: Parking, upstream: str) -> Callable[[ReceivedRequest], Answer]:
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
        return replace(rig.pace, body=body, content_type=kind, gate=Gate(rig.opened, len(body) - HELD_BYTES))

    return choose
