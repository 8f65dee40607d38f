"""The gateways that run on this machine: each notes where it listens and which process it is, so that it can be found.

A pid alone says little: once a process has ended, another one may get its pid. So the note also says when the process
began, and a process that began at another time is not the gateway.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.config.discovery import data_directory, home_directory
from dragoman.operate import AdminError

NOTES = "running"  # the directory of notes, below that of the gateway's data
BOOT = Path("/proc/sys/kernel/random/boot_id")
END_POLL_S = 0.05
QUICK_S = 1.0  # a gateway that takes longer to end waits for requests


class GatewayProcess(Struct, frozen=True):
    """A gateway's process and its address; of several workers it is their parent."""

    root: str
    pid: int
    began: str  # in the system's own words

    @property
    def is_running(self) -> bool:
        return read_beginning(self.pid) == self.began


def record_gateway(directory: Path, root: str) -> Path:
    """Write down where this process's gateway listens, for commands on this machine; raises OSError."""
    pid = os.getpid()
    path = directory / NOTES / f"{pid}.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(GatewayProcess(root, pid, read_beginning(pid) or "")))
    return path


def forget_gateway(note: Path) -> None:
    with suppress(OSError):
        note.unlink()


def list_gateways(environ: Mapping[str, str]) -> list[GatewayProcess]:
    """Return the gateways of this user whose processes run, the newest first; remove the notes of others."""
    home = home_directory(environ)
    found: list[tuple[float, GatewayProcess]] = []
    for path in () if home is None else (data_directory(environ, home) / NOTES).glob("*.json"):
        with suppress(OSError, msgspec.MsgspecError):  # another command may have removed it
            noted = msgspec.json.decode(path.read_bytes(), type=GatewayProcess)
            if noted.is_running:
                found.append((path.stat().st_mtime, noted))
            else:
                forget_gateway(path)
    return [noted for _, noted in sorted(found, key=lambda entry: entry[0], reverse=True)]


def find_process(environ: Mapping[str, str], root: str) -> GatewayProcess | None:
    """Return the process of the gateway at an address; None if it is another machine's or another user's."""
    address = _address(root)
    return next((noted for noted in list_gateways(environ) if _address(noted.root) == address), None)


def stop_process(process: GatewayProcess, on_wait: Callable[[], None]) -> None:
    """Ask a gateway's process to end, as SIGTERM does, and return once it has ended.

    `on_wait` is called if it takes long. Raises AdminError if this user may not stop it.
    """
    try:
        _terminate(process)
    except ProcessLookupError:
        return
    except PermissionError:
        raise AdminError(f"Process {process.pid} belongs to another user, who has to stop it.") from None
    slow_at = time.monotonic() + QUICK_S
    is_explained = False
    while process.is_running:
        if not is_explained and time.monotonic() >= slow_at:
            on_wait()
            is_explained = True
        time.sleep(END_POLL_S)


def _terminate(process: GatewayProcess) -> None:
    """Send SIGTERM to this process and to no other that got its pid; raises ProcessLookupError if it has ended."""
    if hasattr(os, "pidfd_open"):  # on Linux
        # The descriptor stands for one process, whatever becomes of its pid.
        descriptor = os.pidfd_open(process.pid)
        try:
            _check_running(process)
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        finally:
            os.close(descriptor)
    else:
        _check_running(process)
        os.kill(process.pid, signal.SIGTERM)


def _check_running(process: GatewayProcess) -> None:
    if not process.is_running:
        raise ProcessLookupError


def read_beginning(pid: int) -> str | None:
    """Return when a process began, in the system's own words; None if it has ended."""
    try:
        boot = BOOT.read_text().strip()
    except OSError:  # elsewhere than on Linux
        environ = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        return done.stdout.strip() or None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # from the third on: the second is the name, and may hold anything
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{ticks} ticks after boot {boot}"


def _address(root: str) -> tuple[str | None, int | None]:
    """Return what two spellings of one address have in common."""
    parts = urlsplit(root)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # not a port
        port = None
    return host, port
