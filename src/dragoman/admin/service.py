"""The gateway as a service of the user's systemd: install, inspect and remove its unit."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from dragoman.admin import AdminError

UNIT = "dragoman.service"
TIMEOUT_S = 60.0
STOP_MARGIN_S = 10  # beyond server.drain_s, before systemd kills the gateway

TEMPLATE = """\
[Unit]
Description=dragoman, an LLM protocol gateway
Documentation=man:systemd.service(5)
After=network-online.target

[Service]
Type=simple
ExecStart={command}
EnvironmentFile=-{environment}
Restart=on-failure
RestartSec=2
TimeoutStopSec={stop_s}
NoNewPrivileges=yes
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""


class ServiceState(Struct, frozen=True):
    """What systemd says of the unit."""

    unit: str  # the path of its file
    installed: bool
    enabled: str  # as `systemctl is-enabled` says it: enabled, disabled, ...
    active: str  # as `systemctl is-active` says it: active, inactive, failed, ...


def unit_path(environ: Mapping[str, str], home: Path) -> Path:
    """Return where the unit of the user's systemd is."""
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user" / UNIT


def make_unit(command: Sequence[str], environment: Path, drain_s: float) -> str:
    """Return the text of the unit; `environment` is a file of variables, which need not exist."""
    quoted = " ".join(map(_quote, command))
    return TEMPLATE.format(command=quoted, environment=_escape(str(environment)), stop_s=int(drain_s) + STOP_MARGIN_S)


def install_service(unit: Path, text: str, environ: Mapping[str, str]) -> ServiceState:
    """Write the unit, and enable and start it; raises AdminError if systemd cannot be used."""
    systemctl = _find_systemctl(environ)
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text(text)
    _run([systemctl, "--user", "daemon-reload"], environ)
    _run([systemctl, "--user", "enable", UNIT], environ)
    _run([systemctl, "--user", "restart", UNIT], environ)  # it may run already, with the unit of before
    return read_state(unit, environ)


def uninstall_service(unit: Path, environ: Mapping[str, str]) -> bool:
    """Stop and disable the unit, and remove its file; return whether there was one."""
    systemctl = _find_systemctl(environ)
    if not unit.exists():
        return False
    _run([systemctl, "--user", "disable", "--now", UNIT], environ)
    unit.unlink()
    _run([systemctl, "--user", "daemon-reload"], environ)
    return True


def read_state(unit: Path, environ: Mapping[str, str]) -> ServiceState:
    """Return the state of the unit; raises AdminError if there is no systemd."""
    systemctl = _find_systemctl(environ)
    enabled, active = (_ask([systemctl, "--user", word, UNIT], environ) for word in ("is-enabled", "is-active"))
    return ServiceState(str(unit), unit.exists(), enabled, active)


def find_program(environ: Mapping[str, str], argument: str) -> Path:
    """Return the program to start: the one that runs now, or the one on the path."""
    running = Path(argument)
    if running.name == "dragoman" and running.is_file() and os.access(running, os.X_OK):
        return running.absolute()
    found = shutil.which("dragoman", path=environ.get("PATH"))
    if found is None:
        raise AdminError(
            "The program `dragoman` is not on the PATH. Install it first, for example in a checkout: pipx install ."
        )
    return Path(found).absolute()


def _find_systemctl(environ: Mapping[str, str]) -> str:
    found = shutil.which("systemctl", path=environ.get("PATH"))
    if found is None:
        advice = "Start the gateway with `dragoman serve`, or with your system's own service manager."
        raise AdminError(f"There is no systemd here (systemctl is not on the PATH). {advice}")
    return found


def _run(command: list[str], environ: Mapping[str, str]) -> None:
    done = _call(command, environ)
    if done.returncode:
        message = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise AdminError(f"`{' '.join(command[1:])}` of systemctl failed: {message}")


def _ask(command: list[str], environ: Mapping[str, str]) -> str:
    """Return the word that systemctl answers with; raises AdminError if this user has no systemd."""
    done = _call(command, environ)
    if "connect to bus" in done.stderr:
        raise AdminError(f"The systemd of this user cannot be reached: {done.stderr.strip()}. Are you logged in?")
    return done.stdout.strip() or "not-found"


def _call(command: list[str], environ: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise AdminError(f"`{' '.join(command[1:])}` of systemctl did not end within {TIMEOUT_S:g} s.") from None


def _escape(text: str) -> str:
    """Escape what systemd expands: specifiers."""
    return text.replace("%", "%%")


def _quote(word: str) -> str:
    escaped = _escape(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"' if any(character.isspace() or character in "\"'\\;" for character in word) else escaped
