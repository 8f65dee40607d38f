"""A gateway started beside one that drains takes over its port without losing a connection."""

import http.client
import itertools
import signal
import socket
import threading
import time
from types import TracebackType

import msgspec
import pytest

from shell import Served, Shell
from waiting import wait_until

PATIENCE_S = 60.0
SLOW = {"model": "echo/slow", "max_tokens": 99, "stream": True}


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


def start_stream(served: Served, key: str, text: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_S)
    body = msgspec.json.encode(SLOW | {"messages": [{"role": "user", "content": text}]})
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection.request("POST", "/v1/messages", body, headers)
    reply = connection.getresponse()
    assert reply.status == 200
    return connection, reply


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def successor(shell: Shell, port: int, workers: int) -> Served:
    return Served(shell, shell.start("serve", "--port", str(port), "--workers", str(workers)))


@pytest.mark.alone
@pytest.mark.parametrize("keep_alive", [False, True])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 2), (2, 1)])
def test_a_gateway_beside_a_draining_one_loses_no_connection(
    shell: Shell, before: int, after: int, keep_alive: bool
) -> None:
    with (
        shell.serve("--workers", str(before)) as old,
        Visitors(old.port, keep_alive=keep_alive) as visitors,
    ):
        connection, stream = start_stream(old, old.key, "one two three four five six")
        old.send_signal(signal.SIGTERM)
        with successor(shell, old.port, after) as new:
            assert b"message_stop" in stream.read()
            connection.close()
            assert old.wait() == 0
            answered = visitors.answered
            wait_until(lambda: visitors.answered > answered + 50)
            assert visitors.failures == []
            visitors.__exit__(None, None, None)
            assert new.end() == 0


@pytest.mark.alone  # two commands must start within the seconds for which a draining gateway still accepts
@pytest.mark.parametrize("workers", [1, 2])
def test_a_successor_that_fails_to_start_leaves_the_connections_where_they_are(shell: Shell, workers: int) -> None:
    with shell.serve("--workers", str(workers)) as old, Visitors(old.port) as visitors:
        wrong_store = shell.write(
            "wrong.toml", f'[server]\nport = {old.port}\n[store]\nurl = "sqlite:////proc/no.db"\n'
        )
        old.send_signal(signal.SIGTERM)
        done = shell.run("serve", "--config", str(wrong_store))
        assert done.code == 1, done.err
        assert "in use" not in done.err
        with successor(shell, old.port, workers) as new:
            assert old.wait() == 0
            assert visitors.failures == []
            visitors.__exit__(None, None, None)
            assert new.end() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gateway_that_is_not_draining_keeps_its_port(shell: Shell, workers: int) -> None:
    with shell.serve("--workers", str(workers)) as first:
        second = shell.run("serve", "--port", str(first.port), "--workers", str(workers))
        assert second.code == 1
        assert f"127.0.0.1:{first.port} is in use" in second.err
        assert "a gateway runs there already" in second.err
        assert "--port" in second.err
        assert is_listening(first.port)
        assert first.end() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_gateway_listens_no_more_while_its_streams_go_on(shell: Shell, workers: int) -> None:
    with shell.serve("--workers", str(workers)) as served:
        connection, stream = start_stream(served, served.key, " ".join(["word"] * 40))
        served.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_listening(served.port))
        assert b"message_stop" in stream.read()
        connection.close()
        assert served.wait() == 0


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_streams_with_an_error_event_and_leaves_their_rows(
    shell: Shell, workers: int, sign: signal.Signals
) -> None:
    with shell.serve("--workers", str(workers)) as served:
        connection, stream = start_stream(served, served.key, " ".join(["word"] * 2000))
        assert stream.read(10)
        served.send_signal(sign)
        wait_until(lambda: "a second signal" in served.err)  # two signals at once would be one
        begun = time.monotonic()
        served.send_signal(sign)
        rest = stream.read()
        connection.close()
        assert served.wait() == 0
        assert time.monotonic() - begun < PATIENCE_S / 3
    assert b"event: error" in rest
    assert b"shutting down" in rest
    assert b"message_stop" not in rest
    [row] = msgspec.json.decode(shell.run("usage", "--rows", "--json").out, type=list[dict[str, object]])
    assert row["outcome"] == "shutdown"
    assert "shutdown" in served.err
