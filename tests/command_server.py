"""Run commands in forks of one process, because most of the time of a short command goes into starting Python.

Only modules of others are loaded before the fork: each command imports our own modules by itself, as in a new process.
"""

import atexit
import gc
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import msgspec

LARGEST_REQUEST = 1 << 20
ENVIRON = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
READ_AT_START = ("PYTHON", "LANG", "LC_")  # variables that Python itself reads, when a process starts
MODULES = (
    *("apsw", "asyncio", "click", "click.shell_completion", "hmac", "httptools", "logging", "msgspec", "pathlib"),
    *("queue", "secrets", "socket", "ssl", "tomllib", "traceback", "typing", "urllib.parse", "uuid"),
)


class Command(msgspec.Struct):
    """A command line in bytes, which need not be UTF-8."""

    words: list[bytes]
    directory: bytes
    environ: dict[bytes, bytes]

    @classmethod
    def encode(cls, words: Sequence[str], directory: Path, environ: Mapping[str, str]) -> bytes:
        variables = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
        return msgspec.msgpack.encode(cls([os.fsencode(word) for word in words], os.fsencode(directory), variables))


class CommandServer:
    """The process from which commands are forked. It ends with the process that started it."""

    def __init__(self) -> None:
        self._requests, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            words = [sys.executable, __file__, str(other.fileno())]
            self._process = subprocess.Popen(words, env=ENVIRON, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()])

    def close(self) -> None:
        self._requests.close()
        self._process.wait()

    def run(self, command: bytes, stdin: str, timeout_s: float) -> tuple[int, str, str]:
        """Return the exit code, the output and the errors of an encoded command."""
        (read_in, write_in), (read_out, write_out), (read_err, write_err) = os.pipe(), os.pipe(), os.pipe()
        status, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = [read_in, write_out, write_err, other.detach()]
        socket.send_fds(self._requests, [command], given)
        for descriptor in given:
            os.close(descriptor)
        with status, ThreadPoolExecutor(2) as readers:
            out, err = readers.submit(_read, read_out), readers.submit(_read, read_err)
            status.settimeout(timeout_s)
            pid = int(status.recv(32))
            try:
                with suppress(BrokenPipeError), open(write_in, "w") as text:
                    text.write(stdin)
                code = int(status.recv(32))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
            return code, out.result(timeout_s), err.result(timeout_s)


def _read(descriptor: int) -> str:
    with open(descriptor) as stream:
        return stream.read()


@cache
def start_command_server() -> CommandServer:
    server = CommandServer()
    atexit.register(server.close)
    return server


def needs_new_process(environ: Mapping[str, str]) -> bool:
    """Return whether these variables change how Python starts."""
    return any(name.startswith(READ_AT_START) and ENVIRON.get(name) != value for name, value in environ.items())


def serve(requests: socket.socket) -> None:
    """Fork for every request; return in the process that runs a command, when that is to begin."""
    for name in MODULES:
        import_module(name)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that wait for the commands are not waited for
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 4)
        if not data:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run_and_report(msgspec.msgpack.decode(data, type=Command), descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _run_and_report(command: Command, descriptors: Sequence[int]) -> None:
    """Fork once more; return in the new process, and report its end in the other."""
    *streams, status = descriptors
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        os.write(status, b"%d" % pid)
        os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(status)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(command.directory)
    os.environb.clear()
    os.environb.update(command.environ)
    sys.argv[1:] = [os.fsdecode(word) for word in command.words]
    sys.path[0] = os.fsdecode(command.directory)


def main() -> None:
    serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("dragoman", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
