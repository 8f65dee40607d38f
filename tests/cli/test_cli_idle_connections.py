"""Idle connections without a key, up to the limit of open files: requests with a key are still served."""

import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec

from raw_http import Answered, dial, read_answer, request_bytes
from shell import Served, Shell

NO_DESCRIPTOR_LEFT = """
import asyncio, os
from dragoman.net.server import ConnectionLimits, Server

async def main():
    server = Server(None, ConnectionLimits(), lambda path, status, message: ([], b'{"error":{}}'))
    await server.start("127.0.0.1", 0)
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        os.write(1, b"%d\\n" % server.port)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def request(key: str | None, path: str = "/v1/models") -> bytes:
    return request_bytes(path, b"", method="GET", key=key)


def ask(sock: socket.socket, data: bytes) -> Answered:
    sock.sendall(data)
    return read_answer(sock)


def open_files_limit(served: Served) -> int:
    found = re.search(r"Max open files +(\d+)", Path(f"/proc/{served.pid}/limits").read_text())
    assert found is not None
    return int(found[1])


def test_the_soft_limit_of_open_files_is_raised_at_the_start(shell: Shell) -> None:
    shell.limit_open_files(256, 1000)
    with shell.serve() as served:
        assert open_files_limit(served) == 1000


def test_idle_connections_without_a_key_up_to_the_limit_of_open_files_block_no_client(shell: Shell) -> None:
    shell.limit_open_files(192, 192)
    with shell.serve() as served, ExitStack() as stack:
        for number in range(400):
            idle = stack.enter_context(dial(served.port))
            if number % 2:
                idle.sendall(request(None, "/health"))
        for _ in range(5):
            with dial(served.port) as sock:
                assert ask(sock, request(served.key)).status == 200
        assert served.end() == 0
    assert served.err.count("too many connections") + served.err.count("no file descriptor") == 1


def test_connections_with_a_key_are_limited_with_a_clear_503(shell: Shell) -> None:
    shell.limit_open_files(192, 192)
    statuses = []
    with shell.serve() as served, ExitStack() as stack:
        for _ in range(100):
            sock = stack.enter_context(dial(served.port))
            answered = ask(sock, request(served.key))
            statuses.append(answered.status)
            if answered.status == 200:
                sock.sendall(request_bytes("/v1/messages", b"{}", key=served.key)[:-1])  # it is not idle
            else:
                assert "Too many connections" in msgspec.json.decode(answered.body)["error"]["message"]
        assert statuses == [200] * statuses.count(200) + [503] * statuses.count(503)
        assert statuses.count(200) == (192 - 64) // 2


def test_a_connection_for_which_no_descriptor_is_left_gets_an_error() -> None:
    script = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-c", NO_DESCRIPTOR_LEFT)
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        port = int(process.stdout.readline())
        for _ in range(10):
            with dial(port) as sock:
                answered = ask(sock, request(None))
                assert (answered.status, answered.body) == (503, b'{"error":{}}')
        process.kill()
        assert process.stderr.read().count("no file descriptor is left") == 1
