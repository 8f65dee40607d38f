"""A gateway process of any checkout, with its memory as the kernel sees it."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.ports import find_free_port
from bench.rig import wait_healthy
from bench.tools import ROOT, extract_commit
from bench.tree import Child

KEY = "sk-fake-client-key-for-the-benchmark-only"
MEGABYTE = 1e6
CORES = os.sched_getaffinity(0)
CONFIG = """
[server]
first_token_timeout_s = {patience_s}
idle_timeout_s = {patience_s}
{more}
[retry]
base_s = 0.0
[providers.chat]
kind = "openai-compatible"
protocol = "chat"
endpoint = "http://127.0.0.1:{upstream}/v1"
api_key = "sk-fake-upstream"
[providers.messages]
kind = "anthropic"
endpoint = "http://127.0.0.1:{upstream}/v1"
api_key = "sk-fake-upstream"
[providers.gemini]
kind = "gemini"
endpoint = "http://127.0.0.1:{upstream}/v1beta"
api_key = "fake-upstream"
[tools.web_search]
backend = ["mcp"]
endpoint = "http://127.0.0.1:{upstream}/mcp"
[store]
url = "sqlite:///{directory}/dragoman.db"
"""


@dataclass(frozen=True)
class Gateway:
    """A running gateway, and the upstream behind it."""

    port: int
    child: Child
    log: Path
    database: Path

    def resident_mb(self) -> float:
        return self._status("VmRSS")

    def peak_mb(self) -> float:
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.child.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> float:
        for line in Path(f"/proc/{self.child.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024 / MEGABYTE
        raise LookupError(name)


@contextmanager
def start_gateway(src: Path, patience_s: float, settings: str = "") -> Iterator[Gateway]:
    """Run the gateway whose package lies in `src`, in front of an upstream of its own; `settings` are of its server."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-survival-")))
        upstream, port = find_free_port(), find_free_port()
        environ = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        command = [sys.executable, "-m", "bench.survival.upstream", "--port", str(upstream)]
        log = directory / "upstream.log"
        child = stack.enter_context(Child(command, CORES, log, {**environ, "PYTHONPATH": str(ROOT)}))
        wait_healthy(child, upstream, "/health", 60.0)
        known = " token_timeout_s" in (src / "dragoman/config/settings.py").read_text()
        more = f"token_timeout_s = {patience_s}\n{settings}" if known else settings
        config = directory / "dragoman.toml"
        more = more.replace("UPSTREAM", str(upstream)).replace("DIRECTORY", str(directory))
        config.write_text(CONFIG.format(upstream=upstream, directory=directory, patience_s=patience_s, more=more))
        environ |= {"PYTHONPATH": str(src), "HOME": str(directory), "DRAGOMAN_API_KEY": KEY}
        environ |= {"ALL_PROXY": f"http://127.0.0.1:{upstream}", "NO_PROXY": "127.0.0.1"}  # it serves the web, too
        command = [sys.executable, "-m", "dragoman", "serve", "--config", str(config), "--port", str(port)]
        log = directory / "gateway.log"
        child = stack.enter_context(Child(command, CORES, log, environ))
        wait_healthy(child, port, "/health", 30.0)
        yield Gateway(port, child, log, directory / "dragoman.db")


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """The package directory of an earlier commit, checked out beside this one."""
    with tempfile.TemporaryDirectory(prefix="dragoman-before-") as directory:
        extract_commit(revision, Path(directory))
        yield Path(directory) / "src"
