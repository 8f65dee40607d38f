"""Run commands as real processes, with a home directory of their own and without this machine's environment."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from command_server import Command, needs_new_process, start_command_server
from waiting import wait_until
from wire_json import Json

PROGRAM = (sys.executable, "-m", "dragoman")
PATIENT = """
from dragoman.cli.main import main
from dragoman.upstreams import local_servers
local_servers.LIST_TIMEOUT_S = local_servers.ROOT_TIMEOUT_S = 20.0
local_servers.DIAL = local_servers.DialOptions(connect_timeout_s=20.0)
main()
"""
KEY = re.compile(r"dgm_[A-Za-z0-9]{43}")
PATIENCE_S = 60.0


class Done(msgspec.Struct, frozen=True):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.out)


class Shell:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ: dict[str, str] = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
        self.environ["DRAGOMAN_LOCAL_PORTS"] = ""  # servers that run on this machine are not part of a test
        self._program: tuple[str, ...] = PROGRAM

    def add_local_server(self, name: str, port: int) -> None:
        """Let commands discover a model server, and give it time to respond on a busy machine."""
        self.environ["DRAGOMAN_LOCAL_PORTS"] = f"{name}={port}"
        self._program = (sys.executable, "-c", PATIENT)

    def start_with(self, *words: str) -> None:
        """Start every command from now on by these words, to which its own are added."""
        self._program = (*words, *self._program)

    def limit_open_files(self, soft: int, hard: int) -> None:
        """Start every command from now on with these limits of open files."""
        self.start_with("sh", "-c", f'ulimit -S -n {soft}; ulimit -H -n {hard}; exec "$@"', "sh")

    def run(self, *words: str, stdin: str = "", **environ: str) -> Done:
        variables = self.environ | environ
        if self._program == PROGRAM and not needs_new_process(variables):
            command = Command.encode(words, self.home, variables)
            done = Done(*start_command_server().run(command, stdin, PATIENCE_S))
        else:
            done = self.run_new_process(words, stdin, variables)
        assert "Traceback" not in done.err, done.err
        return done

    def run_new_process(self, words: Sequence[str], stdin: str, environ: Mapping[str, str]) -> Done:
        ended = subprocess.run(
            [*self._program, *words],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.home,
            env=environ,
            timeout=PATIENCE_S,
        )
        return Done(ended.returncode, ended.stdout, ended.stderr)

    def start(self, *words: str, **environ: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self._program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env=self.environ | environ,
            start_new_session=True,
        )

    def serve(self, *words: str, **environ: str) -> "Served":
        """Start a gateway on a free port, and write that port into this shell's configuration."""
        return Served(self, self.start("serve", "--port", "0", *words, **environ))

    def write(self, name: str, text: str) -> Path:
        """Write a file at once: a gateway that follows it never reads half of it."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.new")
        unfinished.write_text(text)
        return unfinished.replace(path)

    def read(self, name: str) -> str:
        return (self.home / name).read_text()


class Served:
    """A gateway process. `out` and `err` are complete once it has ended."""

    def __init__(self, shell: Shell, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._shell = shell
        self.pid = process.pid
        self.out = ""
        self.err = ""
        self._readers = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("out", "err")]

    def __enter__(self) -> "Served":
        for reader in self._readers:
            reader.start()
        wait_until(lambda: "listens on http" in self.out or self._process.poll() is not None)
        address = re.search(r"listens on (http://\S+:(\d+))", self.out)
        assert address is not None, f"the gateway did not start:\n{self.out}{self.err}"
        self.url, self.port = address[1], int(address[2])
        self._shell.write("dragoman.toml", f"[server]\nport = {self.port}\n")
        wait_until(lambda: "--write" in self.out)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.end()

    @property
    def key(self) -> str:
        found = KEY.search(self.out)
        assert found is not None, self.out
        return found[0]

    @property
    def workers(self) -> set[int]:
        """Return the processes that it has started."""
        return {int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()}

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stop it; after SIGTERM it accepts connections for another half a second."""
        self.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        assert "Traceback" not in self.err, self.err
        return code

    def _read(self, name: str) -> None:
        stream = self._process.stdout if name == "out" else self._process.stderr
        assert stream is not None
        for line in stream:
            setattr(self, name, getattr(self, name) + line)
