"""One gateway of a cluster: a process that is started, killed, frozen and stopped as a fault needs it."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen

from msgspec import Struct

from bench.budget.scene import KEY
from bench.ports import find_free_port

Address = tuple[str, int]


class Site(Struct, frozen=True):
    """The machine of a replica: this one, or a network namespace that stands for one of its own."""

    host: str = "127.0.0.1"
    enter: tuple[str, ...] = ()  # the command that runs another one there
    link: str = ""  # of this machine to that one


class Replica:
    """A gateway with a data directory of its own. Leaving the context ends it."""

    def __init__(self, directory: Path, settings: str, site: Site = Site()) -> None:  # noqa: B008
        self.address: Address = (site.host, find_free_port())
        self.directory = directory
        self.site = site
        self._process: Popen[bytes] | None = None
        directory.mkdir()
        (directory / "dragoman.toml").write_text(settings)

    def __enter__(self) -> "Replica":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def start(self, environ: Mapping[str, str] | None = None) -> None:
        """Start it at its address, where it will soon accept connections."""
        assert self._process is None
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        own = {"HOME": str(self.directory), "XDG_DATA_HOME": str(self.directory), "DRAGOMAN_API_KEY": KEY}
        host, port = self.address
        command = [*self.site.enter, sys.executable, "-m", "dragoman", "serve", "--host", host, "--port", str(port)]
        with self.log.open("ab") as log:
            self._process = Popen(
                command, cwd=self.directory, env={**kept, **own, **(environ or {})}, stdout=log, stderr=log
            )

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it at once, frozen or not, with all that it has in memory."""
        self._signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        """Ask it to stop, as a rolling restart does; `wait` returns when it has."""
        self._signal(signal.SIGTERM)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def wait(self) -> int:
        """Return its exit code once it has ended."""
        assert self._process is not None
        code = self._process.wait()
        self._process = None
        return code

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
