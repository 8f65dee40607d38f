"""A gateway in a process of its own, with upstreams that report known counts and a store of either kind."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from gateway import provider_section
from usage.client_requests import KEY, PATHS
from usage.counting_upstreams import CountingKiro, CountingUpstream
from waiting import wait_until

PATIENCE_S = 90.0
PROGRAM = (sys.executable, "-m", "dragoman")


class Rig:
    """Upstreams, and the configuration that names them."""

    def __init__(self, directory: Path, upstream: CountingUpstream, kiro: CountingKiro) -> None:
        self.directory = directory
        tokens = kiro.issue()
        file = directory / "kiro.json"
        file.write_text(
            f'{{"accessToken": "{tokens["accessToken"]}", "refreshToken": "{tokens["refreshToken"]}",'
            ' "expiresAt": "2099-01-01T00:00:00Z", "authMethod": "social"}'
        )
        self.toml = "[retry]\nattempts = 2\nbase_s = 0\n" + kiro.section(str(file))
        self.toml += "".join(provider_section(protocol, upstream.url, protocol) for protocol in PATHS)

    def serve(self, store_url: str, *words: str, before: Sequence[str] = (), more: str = "") -> "GatewayProcess":
        """Start a gateway; `more` are further settings of the store."""
        (self.directory / "dragoman.toml").write_text(f'{self.toml}[store]\nurl = "{store_url}"\n{more}')
        return GatewayProcess(self.directory, [*before, *PROGRAM, "serve", "--port", "0", *words])


@contextmanager
def start_upstreams(directory: Path) -> Iterator[Rig]:
    with CountingUpstream() as upstream, CountingKiro() as kiro:
        yield Rig(directory, upstream, kiro)


class GatewayProcess:
    """A running gateway, from its banner to its end."""

    def __init__(self, directory: Path, command: list[str]) -> None:
        environ = {"HOME": str(directory), "PATH": os.environ["PATH"], "DRAGOMAN_LOCAL_PORTS": ""}
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env=environ | {"DRAGOMAN_API_KEY": KEY, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.pid = self._process.pid
        self._log = b""
        # Read through a pipe: a log file could not grow on a full disk.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "GatewayProcess":
        wait_until(lambda: self._process.poll() is not None or "listens on http" in self.log)
        address = re.search(r"listens on http://\S+:(\d+)", self.log)
        assert address is not None, self.log
        self.port = int(address[1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.end(signal.SIGINT)

    @property
    def log(self) -> str:
        return self._log.decode()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._log += line

    def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
