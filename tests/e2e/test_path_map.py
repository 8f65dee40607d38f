"""The measured map in docs/architecture.md: the files and frames of one translated and one passed stream.

Requests are sent over real sockets to a gateway in this process. Both ends are here, so that every event of the reply
is read and written by itself.
"""

import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import raw_http
from dragoman.net.write_batch import QUIET_S
from fakes.kiro import EVENT_STREAM, FakeKiro, tail, words
from gateway import Running, provider_section, running
from path_trace import Step, trace_path
from waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN = "<!-- map: written by tests/e2e/test_path_map.py with DRAGOMAN_WRITE_PAGES=1 -->\n"
END = "<!-- end of the map -->\n"
TIMES = 15  # requests, of which the most frequent count of frames is taken: timers and short waits change single ones
PAUSE_S = 5 * QUIET_S  # before each piece: what is written after a pause is sent at once, however fast this machine is
THE_END = "the end, and its record"  # whose frames depend on timers
TEXTS = ("One", " two", " three", " four", " five", " six")
REQUEST = b'{"model":"%b","max_tokens":64,"stream":true,"messages":[{"role":"user","content":"Count."}]}'
LENGTH = re.compile(rb"content-length: (\d+)")


def write_event(name: str, fields: str) -> bytes:
    return f'event: {name}\ndata: {{"type":"{name}",{fields}}}\n\n'.encode()


def write_delta(text: str) -> bytes:
    return write_event("content_block_delta", f'"index":0,"delta":{{"type":"text_delta","text":"{text}"}}')


MESSAGE_START = write_event(
    "message_start",
    '"message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,'
    '"usage":{"input_tokens":5,"output_tokens":1}}',
) + write_event("content_block_start", '"index":0,"content_block":{"type":"text","text":""}')
MESSAGE_END = (
    write_event("content_block_stop", '"index":0')
    + write_event("message_delta", '"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}')
    + b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


@dataclass(frozen=True)
class Stream:
    """A reply of one upstream, in the pieces in which it is sent: one for each text, and the end."""

    title: str
    model: bytes
    content_type: str
    pieces: Sequence[bytes]

    @property
    def head(self) -> bytes:
        return f"HTTP/1.1 200 OK\r\ncontent-type: {self.content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()


KIRO = Stream("Messages → Kiro", b"kiro/claude-sonnet-4.5", EVENT_STREAM, (*map(words, TEXTS), tail()))
PASSED = Stream(
    "Messages → Messages",
    b"up/claude-opus-4-6",
    "text/event-stream",
    (MESSAGE_START + write_delta(TEXTS[0]), *map(write_delta, TEXTS[1:]), MESSAGE_END),
)


def choose_usual(steps: Sequence[Step]) -> Step:
    """Return one of the steps that have as many frames as most of them."""
    [(frames, _)] = Counter(step.frames for step in steps).most_common(1)
    return next(step for step in steps if step.frames == frames)


@dataclass(frozen=True)
class PathMap:
    """The steps of one reply: the request until it is sent, the first event, later ones, and the end."""

    title: str
    steps: Sequence[Step]

    @property
    def rows(self) -> tuple[tuple[str, Step], ...]:
        request, first, second, *later, end = self.steps
        return (
            ("the request, until it is sent", request),
            ("the first event, with the head", first),
            ("the second event", second),
            ("each later event", choose_usual(later)),
            (THE_END, end),
        )

    @property
    def files(self) -> set[str]:
        return {file for _, step in self.rows for file in step.files}

    @property
    def frames_to_first_byte(self) -> int:
        request, first, *_ = self.steps
        return request.frames + first.writes[0]


class Upstream:
    """An upstream of which the test sends every piece itself."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60)
        self._connection: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def read_request(self) -> None:
        if self._connection is None:
            self._connection, _ = self._listener.accept()
            self._connection.settimeout(60)
        received = b""
        while b"\r\n\r\n" not in received or len(received) < _whole_length(received):
            received += self._connection.recv(1 << 16)

    def send(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.sendall(data)

    def close(self) -> None:
        self._listener.close()
        if self._connection is not None:
            self._connection.close()


def _whole_length(received: bytes) -> int:
    head, _, _ = received.partition(b"\r\n\r\n")
    found = LENGTH.search(head)
    assert found is not None
    return len(head) + 4 + int(found[1])


def write_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def play(stream: Stream, client: socket.socket, upstream: Upstream) -> None:
    """Let one request be answered, each piece only after the client has what the piece before it says."""
    time.sleep(PAUSE_S)
    client.sendall(raw_http.request_bytes("/v1/messages", REQUEST % stream.model, "anthropic-version: 2023-06-01"))
    upstream.read_request()
    received = b""
    marks = (*(f'"{text}"'.encode() for text in TEXTS), b"\r\n0\r\n")
    for number, (piece, mark) in enumerate(zip(stream.pieces, marks, strict=True)):
        last = b"0\r\n\r\n" if number == len(TEXTS) else b""
        time.sleep(PAUSE_S)
        upstream.send((b"" if number else stream.head) + write_chunk(piece) + last)
        while mark not in received:
            received += client.recv(1 << 16)
    assert received.startswith(b"HTTP/1.1 200"), received
    assert b"message_stop" in received


def has_more(outcomes: Sequence[object], count: int) -> bool:
    return len(outcomes) > count


def measure(stream: Stream, gateway: Running, upstream: Upstream) -> PathMap:
    with raw_http.dial(gateway.port) as client:
        ports = {client.getsockname()[1]: "client", upstream.port: "upstream"}
        play(stream, client, upstream)  # connects, and fills caches
        traced: list[list[Step]] = []
        for _ in range(TIMES):
            with trace_path(gateway, ports) as trace:
                count = len(gateway.outcomes)
                play(stream, client, upstream)
                wait_until(partial(has_more, gateway.outcomes, count))
            assert [step.reads for step in trace.steps] == ["client", *("upstream" for _ in stream.pieces)]
            traced.append(trace.steps)
    return PathMap(stream.title, [choose_usual(same) for same in zip(*traced, strict=True)])


@contextmanager
def run_gateway(directory: Path) -> Iterator[tuple[Running, Upstream, Upstream]]:
    """Run a gateway with a Kiro and a server that speaks Messages, whose replies the test sends itself."""
    with ExitStack() as stack:
        kiro, passed = Upstream(), Upstream()
        stack.callback(kiro.close)
        stack.callback(passed.close)
        account = stack.enter_context(FakeKiro())
        section = account.section(account.sign_in(directory / "kiro-auth-token.json"), endpoint=kiro.url)
        toml = (
            section + provider_section("messages", passed.url) + 'list_models = false\nmodels = ["claude-opus-4-6"]\n'
        )
        gateway = stack.enter_context(running(toml, directory, stored=("map",)))
        gateway.settle()
        yield gateway, kiro, passed


def list_new_files(path: PathMap) -> Iterator[str]:
    """Yield a line for each step, with the files that no step before it has used, in the order of their first use."""
    seen: set[str] = set()
    for name, step in path.rows:
        packages: dict[str, list[str]] = {}
        for file in dict.fromkeys(step.files):
            if file not in seen:
                package, _, module = file.rpartition("/")
                packages.setdefault(package or "dragoman", []).append(module.removesuffix(".py"))
        seen.update(step.files)
        if packages:
            listed = "; ".join(f"`{package}` {', '.join(modules)}" for package, modules in packages.items())
            yield f"- {name}: {listed}"


def render(paths: Sequence[PathMap]) -> str:
    lines = ["| step | " + " | ".join(f"{path.title}: files | frames" for path in paths) + " |"]
    lines.append("|---|" + "---|---|" * len(paths))
    for rows in zip(*(path.rows for path in paths), strict=True):
        cells = " | ".join(f"{len(set(step.files))} | {'–' if name == THE_END else step.frames}" for name, step in rows)
        lines.append(f"| {rows[0][0]} | {cells} |")
    whole = " | ".join(f"{len(path.files)} | {path.frames_to_first_byte}" for path in paths)
    lines.append(f"| all files; frames until the first byte is sent | {whole} |")
    for path in paths:
        lines += ["", f"{path.title}, the files that each step adds:", "", *list_new_files(path)]
    return "\n".join(lines) + "\n"


@pytest.mark.alone
def test_the_map_is_what_was_measured(tmp_path: Path) -> None:
    with run_gateway(tmp_path) as (gateway, kiro, passed):
        measured = render([measure(KIRO, gateway, kiro), measure(PASSED, gateway, passed)])
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if os.environ.get("DRAGOMAN_WRITE_PAGES"):
        PAGE.write_text(f"{before}{BEGIN}\n{measured}\n{END}{after}")
    assert PAGE.read_text() == f"{before}{BEGIN}\n{measured}\n{END}{after}", "the map is stale: run `make map`"
