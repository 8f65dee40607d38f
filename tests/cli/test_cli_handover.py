"""A gateway started beside one that drains takes over its port without losing a connection."""

import http.client
import itertools
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec
import pytest

from asking import PATHS, make_body
from fakes.upstream import FakeUpstream, Gate
from gateway import provider_section
from scripting import write_reply
from shell import Served, Shell
from waiting import wait_until

PATIENCE_S = 60.0


class Visitors:
    """Clients that request /health again and again, and collect errors."""

    def __init__(self, port: int, *, keep_alive: bool = False, count: int = 4) -> None:
        self._port = port
        self._keep_alive = keep_alive
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._visit, daemon=True) for _ in range(count)]
        self.answered = 0
        self.failures: list[str] = []

    def __enter__(self) -> "Visitors":
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.answered > 20)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _visit(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        for _ in itertools.count():
            if self._over.is_set():
                break
            try:
                connection.request("GET", "/health")
                reply = connection.getresponse()
                reply.read()
                assert reply.status == 200
                self.answered += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            if not self._keep_alive:
                connection.close()
            time.sleep(0.005)
        connection.close()


class HeldStream:
    """A gateway's stream whose end the upstream sends only when it is released."""

    def __init__(self, served: Served, opened: threading.Event) -> None:
        self._opened = opened
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_S)
        headers = {"authorization": f"Bearer {served.key}", "content-type": "application/json"}
        body = msgspec.json.encode(make_body("messages", "up/m", stream=True))
        self._connection.request("POST", PATHS["messages"], body, headers)
        self._reply = self._connection.getresponse()
        assert self._reply.status == 200

    def release(self) -> None:
        self._opened.set()

    def read_to_end(self) -> bytes:
        rest = self._reply.read()
        self._connection.close()
        return rest


class Upstream:
    """The upstream of gateways whose streams are held."""

    def __init__(self, shell: Shell, url: str, opened: threading.Event) -> None:
        self._shell = shell
        self._opened = opened
        self._config = shell.write("held.toml", provider_section("chat", url))

    def serve(self, workers: int) -> Served:
        return self._shell.serve("--config", str(self._config), "--workers", str(workers))

    def succeed(self, served: Served, workers: int) -> Served:
        """Start a gateway on the port of another one."""
        words = ("--config", str(self._config), "--port", str(served.port), "--workers", str(workers))
        return Served(self._shell, self._shell.start("serve", *words))

    def start_stream(self, served: Served) -> HeldStream:
        return HeldStream(served, self._opened)


@pytest.fixture
def upstream(shell: Shell) -> Iterator[Upstream]:
    opened = threading.Event()
    answer = write_reply("chat", "Held until it is released.", gate=Gate(opened, at=600), cut=100)
    with FakeUpstream([answer]) as fake:
        yield Upstream(shell, fake.url, opened)
        opened.set()


def is_listening(port: int) -> bool:
    """Look into the kernel's table: a connection would be one that the gateway still accepts."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("before", "after", "keep_alive"),
    [
        pytest.param(
            before, after, keep_alive, marks=() if (before, after, keep_alive) == (1, 2, False) else pytest.mark.rest
        )
        for before, after in ((1, 1), (2, 2), (1, 2), (2, 1))
        for keep_alive in (False, True)
    ],
)
def test_a_gateway_beside_a_draining_one_loses_no_connection(
    upstream: Upstream, before: int, after: int, keep_alive: bool
) -> None:
    with upstream.serve(before) as old, Visitors(old.port, keep_alive=keep_alive) as visitors:
        stream = upstream.start_stream(old)
        old.send_signal(signal.SIGTERM)
        with upstream.succeed(old, after) as new:
            stream.release()
            assert b"message_stop" in stream.read_to_end()
            assert old.wait() == 0
            answered = visitors.answered
            wait_until(lambda: visitors.answered > answered + 50)
            assert visitors.failures == []
            visitors.__exit__(None, None, None)
            assert new.end() == 0


@pytest.mark.alone  # two commands must start within the seconds for which a draining gateway still accepts
@pytest.mark.rest
@pytest.mark.parametrize("workers", [1, 2])
def test_a_successor_that_fails_to_start_leaves_the_connections_where_they_are(
    shell: Shell, upstream: Upstream, workers: int
) -> None:
    with upstream.serve(workers) as old, Visitors(old.port) as visitors:
        wrong_store = shell.write(
            "wrong.toml", f'[server]\nport = {old.port}\n[store]\nurl = "sqlite:////proc/no.db"\n'
        )
        old.send_signal(signal.SIGTERM)
        done = shell.run("serve", "--config", str(wrong_store))
        assert done.code == 1, done.err
        assert "in use" not in done.err
        with upstream.succeed(old, workers) as new:
            assert old.wait() == 0
            assert visitors.failures == []
            visitors.__exit__(None, None, None)
            assert new.end() == 0


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.rest)])
def test_a_gateway_that_is_not_draining_keeps_its_port(shell: Shell, workers: int) -> None:
    with shell.serve("--workers", str(workers)) as first:
        second = shell.run("serve", "--port", str(first.port), "--workers", str(workers))
        assert second.code == 1
        assert f"127.0.0.1:{first.port} is in use" in second.err
        assert "a gateway is already running there" in second.err
        assert "--port" in second.err
        assert is_listening(first.port)
        assert first.end() == 0


@pytest.mark.parametrize(
    ("workers", "sign"),
    [
        (1, signal.SIGINT),
        pytest.param(1, signal.SIGTERM, marks=pytest.mark.rest),  # after which it accepts connections for 5 seconds
        pytest.param(2, signal.SIGTERM, marks=pytest.mark.rest),
    ],
)
def test_a_stopped_gateway_listens_no_more_while_its_streams_go_on(
    upstream: Upstream, workers: int, sign: signal.Signals
) -> None:
    with upstream.serve(workers) as served:
        stream = upstream.start_stream(served)
        assert is_listening(served.port)
        served.send_signal(sign)
        wait_until(lambda: not is_listening(served.port))
        stream.release()
        assert b"message_stop" in stream.read_to_end()
        assert served.wait() == 0


@pytest.mark.parametrize(
    ("workers", "sign"),
    [
        (1, signal.SIGTERM),
        pytest.param(1, signal.SIGINT, marks=pytest.mark.rest),
        pytest.param(2, signal.SIGTERM, marks=pytest.mark.rest),
        pytest.param(2, signal.SIGINT, marks=pytest.mark.rest),
    ],
)
def test_a_second_signal_ends_streams_with_an_error_event_and_leaves_their_rows(
    shell: Shell, upstream: Upstream, workers: int, sign: signal.Signals
) -> None:
    with upstream.serve(workers) as served:
        stream = upstream.start_stream(served)
        served.send_signal(sign)
        wait_until(lambda: "a second signal" in served.err)  # two signals at once would be one
        served.send_signal(sign)
        rest = stream.read_to_end()  # which the upstream never ends
        assert served.wait() == 0
    assert b"event: error" in rest
    assert b"shutting down" in rest
    assert b"message_stop" not in rest
    [row] = msgspec.json.decode(shell.run("usage", "--rows", "--json").out, type=list[dict[str, object]])
    assert row["outcome"] == "shutdown"
    assert "shutdown" in served.err
