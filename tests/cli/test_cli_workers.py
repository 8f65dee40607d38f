"""`serve --workers 2` as one gateway: runs and idempotency keys, whichever worker a connection reaches."""

import json
import os
import signal
import socket
import time

import pytest

from fakes.upstream import Answer, End, FakeUpstream
from gateway import provider_section
from raw_http import Answered, ask, dial, request_bytes
from scripting import encode_chat
from scripting.replies import ScriptedReply, Text
from shell import Served, Shell
from waiting import wait_until

CHAT = "/v1/chat/completions"
STREAM = encode_chat.encode_stream(ScriptedReply((Text(" ".join(f"word-{number}" for number in range(40))),)))
BODY = json.dumps({"model": "up/m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}).encode()
REQUESTS = 12  # of which two workers get some each


def send(served: Served, *fields: str, body: bytes = BODY) -> Answered:
    return ask(served.port, request_bytes(CHAT, body, *fields, key=served.key))


def begin(served: Served, *fields: str) -> tuple[socket.socket, str]:
    """Begin a reply; return its connection and its run."""
    opened = dial(served.port)
    opened.sendall(request_bytes(CHAT, BODY, *fields, key=served.key))
    received = b""
    while b"\r\n\r\n" not in received:
        received += opened.recv(64)
    [line] = [line for line in received.split(b"\r\n") if line.startswith(b"x-dragoman-run")]
    return opened, line.split(b": ")[1].decode()


def test_any_worker_resumes_any_run_and_knows_every_idempotency_key(shell: Shell) -> None:
    with FakeUpstream(keep_alive=False, answers=[Answer(STREAM, cut=200)]) as fake:
        path = shell.write("two.toml", provider_section("chat", fake.url))
        with shell.serve("--config", str(path), "--workers", "2") as served:
            wait_until(lambda: len(served.workers) == 2)
            replies = [send(served, "idempotency-key: one") for _ in range(REQUESTS)]
            assert {reply.body for reply in replies} == {STREAM}
            opened, run = begin(served, "x-dragoman-park: 1")
            opened.close()
            resumed = [send(served, f"x-dragoman-resume: {run}:-1", body=b"") for _ in range(REQUESTS)]
            assert {(reply.status, reply.body) for reply in resumed} == {(200, STREAM)}
            assert len(fake.calls) == 2
            assert served.end() == 0


def test_a_worker_that_is_killed_breaks_its_replies_and_the_one_that_replaces_it_is_found(shell: Shell) -> None:
    with FakeUpstream(keep_alive=False, answers=[Answer(STREAM[:1500], end=End.HANG)]) as fake:
        path = shell.write("two.toml", provider_section("chat", fake.url))
        with shell.serve("--config", str(path), "--workers", "2") as served:
            wait_until(lambda: len(served.workers) == 2)
            begun = [begin(served, "idempotency-key: one") for _ in range(REQUESTS)]
            run = begun[0][1]
            assert {found for _, found in begun} == {run}
            victim = sorted(served.workers)[int(run[4:6], 16)]
            os.kill(victim, signal.SIGKILL)
            for opened, _ in begun:
                assert not read_to_end(opened).endswith(b"0\r\n\r\n")
            fake.answers = [Answer(STREAM)]
            wait_until(lambda: len(served.workers - {victim}) == 2)
            replies = [send(served, "idempotency-key: one") for _ in range(REQUESTS)]
            assert {(reply.status, reply.body) for reply in replies} == {(200, STREAM)}
            assert send(served, f"x-dragoman-resume: {run}:-1", body=b"").status == 404
            assert len(fake.calls) == 2
            assert served.end() == 0


@pytest.mark.rest
def test_the_status_counts_the_streams_of_all_workers(shell: Shell) -> None:
    with FakeUpstream(keep_alive=False, answers=[Answer(STREAM[:1500], end=End.HANG)]) as fake:
        path = shell.write("two.toml", "[responses]\npark_s = 0.05\n" + provider_section("chat", fake.url))
        with shell.serve("--config", str(path), "--workers", "2") as served:
            begun = [begin(served, "x-dragoman-park: 1") for _ in range(2)]
            while len(begun) < 200 and len({run[:6] for _, run in begun}) < 2:
                begun.append(begin(served, "x-dragoman-park: 1"))
            wait_until(lambda: shell.run("status", "--json").json["streams"] == len(begun))
            for opened, _ in begun:
                opened.close()


@pytest.mark.rest
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_gateway_with_an_open_tab_stops_at_once(shell: Shell, workers: str) -> None:
    with shell.serve("--workers", workers) as served:
        opened = [dial(served.port) for _ in range(4)]
        for one in opened:
            one.sendall(request_bytes("/api/v1/feed?watch=live", b"", method="GET", key=served.key))
            assert one.recv(64).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        assert served.end() == 0
        assert time.monotonic() - began < 30  # drain_s is 120
        for one in opened:
            assert read_to_end(one).endswith(b"0\r\n\r\n")


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_sockets_of_the_workers_are_removed_however_the_gateway_ends(shell: Shell, number: signal.Signals) -> None:
    with shell.serve("--workers", "2", TMPDIR=str(shell.home)) as served:
        [directory] = shell.home.glob("dragoman-*")
        wait_until(lambda: len(list(directory.iterdir())) == 2)
        assert directory.stat().st_mode & 0o777 == 0o700
        served.end(number)
        wait_until(lambda: not directory.exists())


def test_one_worker_has_no_socket_of_its_own(shell: Shell) -> None:
    with shell.serve(TMPDIR=str(shell.home)):
        assert list(shell.home.glob("dragoman-*")) == []


def read_to_end(opened: socket.socket) -> bytes:
    received = b""
    with opened:
        try:
            while piece := opened.recv(65536):
                received += piece
        except ConnectionResetError:
            return received
    return received
