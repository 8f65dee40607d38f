"""HAProxy and nginx as contrib/ has them, with the addresses of the replicas of a run."""

import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.cluster.replica import Address
from bench.ports import find_free_port
from bench.tools import ROOT

CONTRIB = ROOT / "contrib"
START_S = 30.0
NGINX = """
user root;
worker_processes 1;
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/dragoman.conf;
}}
"""


def fill_haproxy(text: str, port: int, replicas: Sequence[Address]) -> str:
    """Return our configuration of HAProxy with another address to listen on, and these servers."""
    servers = "".join(f"    server gateway-{at} {host}:{port}\n" for at, (host, port) in enumerate(replicas, 1))
    found = re.compile(r"(?:    server gateway-\d gateway-\d:8484\n)+")
    assert len(found.findall(text)) == text.count("bind :8484\n") == 1
    return found.sub(servers, text).replace("bind :8484\n", f"bind 127.0.0.1:{port}\n")


def fill_nginx(text: str, port: int, replicas: Sequence[Address]) -> str:
    """Return our configuration of nginx with another address to listen on, and these servers."""
    found = re.compile(r"(?:    server gateway-\d:8484( [^;]*);\n)+")
    [options] = found.findall(text)
    servers = "".join(f"    server {host}:{port}{options};\n" for host, port in replicas)
    assert text.count("listen 8484;") == 1
    return found.sub(servers, text).replace("listen 8484;", f"listen 127.0.0.1:{port};")


@contextmanager
def start_balancer(kind: str, directory: Path, replicas: Sequence[Address]) -> Iterator[int]:
    """Run `haproxy` or `nginx` before these replicas, and yield its port."""
    port = find_free_port()
    directory.mkdir()
    if kind == "haproxy":
        config = directory / "haproxy.cfg"
        config.write_text(fill_haproxy((CONTRIB / "haproxy" / "haproxy.cfg").read_text(), port, replicas))
        command = ["haproxy", "-db", "-f", str(config)]
    else:
        (directory / "dragoman.conf").write_text(
            fill_nginx((CONTRIB / "nginx" / "dragoman.conf").read_text(), port, replicas)
        )
        config = directory / "nginx.conf"
        config.write_text(NGINX.format(directory=directory))
        command = ["nginx", "-e", str(directory / "start.log"), "-p", str(directory), "-c", str(config)]
    log = directory / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            _wait_for(port, process, log)
            yield port
        finally:
            process.terminate()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), START_S).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < until, f"nothing listens on port {port}"
            time.sleep(0.02)
