"""Starts the real model's server on a loopback port, and ends it."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model.install import Model

PATIENCE_S = 60.0
CONTEXT = 4096
ALIAS = "smollm2"


@contextmanager
def serving(model: Model, directory: Path, *options: str) -> Iterator[str]:
    """The address of a server that answers; `options` are further words of its command line."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}/v1"
    where = ("--host", "127.0.0.1", "--port", str(port))
    size = options or ("--n_ctx", str(CONTEXT), "--n_threads", "2")
    words = [str(model.python), "-m", "llama_cpp.server", "--model", str(model.weights), "--model_alias", ALIAS]
    with (directory / "server.log").open("w") as log:
        server = subprocess.Popen([*words, *where, *size], stdout=log, stderr=log, cwd=directory)
        try:
            _await(server, url, directory / "server.log")
            yield url
        finally:
            server.terminate()
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _await(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/models", timeout=1).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"the model's server does not answer:\n{log.read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
