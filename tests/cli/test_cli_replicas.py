"""Several `serve` that share a Valkey: replicas that have workers, one that is killed, and a server that freezes."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fakes.upstream import Answer, End, FakeUpstream
from gateway import KEY, provider_section
from raw_http import Answered, ask, dial, request_bytes
from scripting import encode_chat
from scripting.replies import ScriptedReply, Text
from shell import Served, Shell
from valkey_server import ValkeyServer
from waiting import wait_until

pytestmark = pytest.mark.rest
CHAT = "/v1/chat/completions"
STREAM = encode_chat.encode_stream(ScriptedReply((Text(" ".join(f"word-{number}" for number in range(40))),)))
BODY = json.dumps({"model": "up/m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}).encode()
FROZEN_S = 20.0  # longer than a run lives that is not renewed


@contextmanager
def serve_replicas(directory: Path, valkey: ValkeyServer, fake: FakeUpstream, *words: str) -> Iterator[list[Served]]:
    """Run two gateways with homes of their own, which share the server and the client key of the environment."""
    with ExitStack() as stack:
        served: list[Served] = []
        for name in ("a", "b"):
            (directory / name).mkdir()
            shell = Shell(directory / name)
            shell.environ |= {"SHARED": valkey.url, "DRAGOMAN_API_KEY": KEY}
            path = shell.write("own.toml", f'[store]\nshared = "env:SHARED"\n{provider_section("chat", fake.url)}')
            served.append(stack.enter_context(shell.serve("--config", str(path), *words)))
        yield served


def send(served: Served, *fields: str, body: bytes = BODY) -> Answered:
    return ask(served.port, request_bytes(CHAT, body, *fields))


def send_to_all(both: list[Served], *fields: str, body: bytes = BODY) -> list[Answered]:
    """Send a request to both gateways many times at once, so that each worker gets some."""
    with ThreadPoolExecutor(24) as pool:
        return list(pool.map(lambda place: send(both[place % 2], *fields, body=body), range(24)))


def begin(served: Served, *fields: str) -> tuple[socket.socket, str]:
    """Begin a reply; return its connection and its run."""
    opened = dial(served.port)
    opened.sendall(request_bytes(CHAT, BODY, *fields))
    received = b""
    while b"\r\n\r\n" not in received:
        received += opened.recv(64)
    [line] = [line for line in received.split(b"\r\n") if line.startswith(b"x-dragoman-run:")]
    return opened, line.split(b": ")[1].decode()


def test_a_replica_that_is_killed_ends_its_replies_elsewhere_with_an_error_and_frees_the_key(
    tmp_path: Path, valkey: ValkeyServer
) -> None:
    with (
        FakeUpstream(keep_alive=False, answers=[Answer(STREAM[:1500], end=End.HANG)]) as fake,
        serve_replicas(tmp_path, valkey, fake) as (first, second),
        ThreadPoolExecutor(2) as pool,
    ):
        opened, run = begin(first, "idempotency-key: one")
        joined = pool.submit(send, second, "idempotency-key: one")
        resumed = pool.submit(send, second, f"x-dragoman-resume: {run}:0", body=b"")
        time.sleep(0.5)
        first.kill()
        began = time.monotonic()
        for answered in (joined.result(60), resumed.result(60)):
            assert answered.get("x-dragoman-run") == run
            *events, error, rest = answered.body.split(b"\n\n")
            assert (len(events) > 3, b"safe to send the request again" in error, rest) == (True, True, b"")
        assert time.monotonic() - began < 35
        opened.close()
        fake.answers = [Answer(STREAM)]
        again = send(second, "idempotency-key: one")
        assert (again.status, again.body, len(fake.calls)) == (200, STREAM, 2)
        assert again.get("x-dragoman-run") != run
        assert send(second, f"x-dragoman-resume: {run}:0", body=b"").status == 404


def test_a_key_is_one_call_over_replicas_that_have_workers(tmp_path: Path, valkey: ValkeyServer) -> None:
    with (
        FakeUpstream(keep_alive=False, answers=[Answer(STREAM, cut=200, pause_s=0.01)]) as fake,
        serve_replicas(tmp_path, valkey, fake, "--workers", "2") as both,
    ):
        wait_until(lambda: all(len(served.workers) == 2 for served in both))
        for key in ("a", "b", "c"):
            replies = send_to_all(both, f"idempotency-key: {key}")
            assert {reply.body for reply in replies} == {STREAM}
            [run] = {reply.get("x-dragoman-run") for reply in replies}
            resumed = send_to_all(both, f"x-dragoman-resume: {run}:-1", body=b"")
            assert {(reply.status, reply.body) for reply in resumed} == {(200, STREAM)}
        assert len(fake.calls) == 3


def test_a_key_is_not_paid_twice_though_valkey_stood_still(tmp_path: Path, valkey: ValkeyServer) -> None:
    with (
        FakeUpstream(keep_alive=False, answers=[Answer(STREAM, cut=len(STREAM) // 15 + 1, pause_s=1.6)]) as fake,
        serve_replicas(tmp_path, valkey, fake) as (first, second),
    ):
        opened, run = begin(first, "idempotency-key: one")
        valkey.freeze()
        time.sleep(FROZEN_S)
        valkey.thaw()
        wait_until(lambda: send(second, f"x-dragoman-resume: {run}:-1", body=b"").status != 503)
        replies = [
            send(second, "idempotency-key: one"),
            send(second, f"x-dragoman-resume: {run}:-1", body=b""),
        ]
        assert [(reply.body, reply.get("x-dragoman-run")) for reply in replies] == [(STREAM, run)] * 2
        assert len(fake.calls) == 1
        opened.close()
