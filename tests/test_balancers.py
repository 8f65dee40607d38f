"""HAProxy and nginx, as contrib/ configures them, before two gateways: nothing is held back, and no request is lost."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from bench.budget.scene import KEY, provider_section
from bench.cluster.balancer import fill_haproxy, fill_nginx, start_balancer
from bench.cluster.replica import Replica
from websockets.sync.client import connect

from asking import Reply, ask
from fakes.upstream import Answer, End, FakeUpstream, Gate, ReceivedRequest
from raw_http import dial, get, request_bytes
from scripting import write_reply
from scripting.replies import ScriptedReply, Text
from waiting import wait_until

ROOT = Path(__file__).parents[1]
HELLO = ScriptedReply((Text("Hello"), Text(" and good-bye")))
HELD = b"hold this one"
MODEL = "up/m"
KINDS = ("haproxy", "nginx")
IN_TURN = 30  # requests: by then each of two gateways would have had some


@dataclass
class Front:
    """A balancer before two gateways, each with an upstream of its own that tells which one was asked."""

    port: int
    replicas: list[Replica]
    upstreams: list[FakeUpstream]

    def ask(self) -> Reply:
        return ask(self, "messages", MODEL, key=KEY, stream=True)

    def find_gateway(self, text: bytes) -> int:
        """Return which gateway has got the request with this text, once it has."""

        def list_gateways() -> list[int]:
            return [at for at, fake in enumerate(self.upstreams) if any(text in one.body for one in fake.calls)]

        wait_until(list_gateways)
        return list_gateways()[0]


@contextmanager
def run_front(kind: str, directory: Path, gate: Gate | None = None, held: Answer | None = None) -> Iterator[Front]:
    """Start everything; requests with the text of `HELD` get `held`, else a reply that waits for the gate."""
    plain = write_reply("messages", HELLO)
    waiting = held or write_reply("messages", HELLO, gate=gate, cut=len(plain.body) // 2)

    def choose(request: ReceivedRequest) -> Answer:
        return waiting if HELD in request.body else plain

    with ExitStack() as stack:
        upstreams = [stack.enter_context(FakeUpstream(choose=choose)) for _ in range(2)]
        replicas = [
            stack.enter_context(Replica(directory / str(at), provider_section("messages", fake.url)))
            for at, fake in enumerate(upstreams)
        ]
        for replica in replicas:
            wait_until(lambda: is_ready(replica))  # noqa: B023 - called at once
        port = stack.enter_context(start_balancer(kind, directory / kind, [one.address for one in replicas]))
        wait_until(lambda: get(port, "/ready").status == 200)
        yield Front(port, replicas, upstreams)


def is_ready(replica: Replica) -> bool:
    try:
        return get(replica.address[1], "/ready").status == 200
    except ConnectionError:
        return False


def held_request() -> bytes:
    turns = [{"role": "user", "content": HELD.decode()}]
    body = {"model": MODEL, "stream": True, "max_tokens": 500, "messages": turns}
    return request_bytes("/v1/messages", msgspec.json.encode(body), "connection: close", key=KEY)


def read_all(sock: socket.socket) -> bytes:
    received = b""
    while data := sock.recv(65536):
        received += data
    return received


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rest
def test_the_first_event_arrives_before_the_last_one_is_sent(kind: str, tmp_path: Path) -> None:
    opened = threading.Event()
    plain = write_reply("messages", HELLO).body
    with run_front(kind, tmp_path, Gate(opened, at=len(plain) // 2)) as front, dial(front.port) as sock:
        sock.sendall(held_request())
        received = b""
        while b"event: message_start" not in received:
            received += sock.recv(65536)
        assert all(fake.sent < len(plain) for fake in front.upstreams)
        opened.set()
        assert b"event: message_stop" in received + read_all(sock)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rest
def test_a_gateway_that_stops_gets_no_new_requests_and_ends_its_streams(kind: str, tmp_path: Path) -> None:
    """Each gateway has a stream, so that neither has fewer connections than the other."""
    opened = threading.Event()
    plain = write_reply("messages", HELLO).body
    gate = Gate(opened, at=len(plain) // 2)
    with run_front(kind, tmp_path, gate) as front, dial(front.port) as first, dial(front.port) as second:
        for sock in (first, second):
            sock.sendall(held_request())
        wait_until(lambda: all(fake.calls for fake in front.upstreams))
        stopped, fake = front.replicas[0], front.upstreams[0]
        stopped.stop()
        unasked = 0
        while unasked < IN_TURN:
            before = len(fake.calls)
            assert front.ask().status == 200
            unasked = unasked + 1 if len(fake.calls) == before else 0
        if kind == "haproxy":
            assert get(stopped.address[1], "/ready").status == 503, "it is left out before it refuses connections"
        opened.set()
        for sock in (first, second):
            assert b"event: message_stop" in read_all(sock)
        assert stopped.wait() == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rest
def test_a_killed_gateway_costs_no_new_request(kind: str, tmp_path: Path) -> None:
    with run_front(kind, tmp_path) as front, ThreadPoolExecutor(8) as pool:
        wait_until(lambda: front.ask().status == 200 and all(fake.calls for fake in front.upstreams))
        front.replicas[0].kill()
        replies = [pool.submit(front.ask) for _ in range(IN_TURN * 3)]
        assert {one.result().status for one in replies} == {200}
        front.replicas[0].start()
        before = len(front.upstreams[0].calls)
        wait_until(lambda: front.ask().status == 200 and len(front.upstreams[0].calls) > before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rest
def test_websockets_large_bodies_and_clients_that_leave_pass_the_balancer(kind: str, tmp_path: Path) -> None:
    silent = Answer(headless=True, end=End.HANG)
    with run_front(kind, tmp_path, held=silent) as front:
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"ws://127.0.0.1:{front.port}/v1/responses"
        with connect(url, additional_headers=headers, open_timeout=60, close_timeout=1) as opened:
            opened.send('{"type":"response.create","model":"up/m","input":"Hi","store":false}')
            while '"response.completed"' not in str(opened.recv(timeout=60)):
                pass
        assert ask(front, "messages", MODEL, "word " * 4_000_000, key=KEY).status == 200
        with dial(front.port) as sock:
            sock.sendall(held_request())
            place = front.find_gateway(HELD)
        wait_until(lambda: front.upstreams[place].closed)


def test_the_servers_of_a_configuration_are_replaced() -> None:
    addresses = [("127.0.0.1", 1001), ("127.0.0.1", 1002), ("127.0.0.1", 1003)]
    haproxy = fill_haproxy((ROOT / "contrib/haproxy/haproxy.cfg").read_text(), 1000, addresses)
    nginx = fill_nginx((ROOT / "contrib/nginx/dragoman.conf").read_text(), 1000, addresses)
    assert ("bind 127.0.0.1:1000\n" in haproxy, "listen 127.0.0.1:1000;" in nginx) == (True, True)
    for host, port in addresses:
        assert f" {host}:{port}\n" in haproxy
        assert f"server {host}:{port} max_fails=1" in nginx
    assert "gateway-1:8484" not in haproxy + nginx
