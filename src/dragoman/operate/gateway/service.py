"""The gateway as a service of the user's systemd: install, inspect and remove its unit."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from dragoman.operate import AdminError

UNIT = "dragoman.service"
TIMEOUT_S = 60.0
STOP_MARGIN_S = 10  # beyond server.drain_s, before systemd kills the gateway
NO_BUS = re.compile(r"connect to .*bus")  # what systemctl says where the user has no systemd, in all its versions
WITHOUT_BUS = (
    "Log in as this user, at a desktop or with ssh (su and sudo do not start its systemd), and run this again; "
    "or start the gateway yourself: dragoman serve"
)

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


class Removal(Struct, frozen=True):
    """What became of the unit: whether there was one, and why systemd could not be asked to stop it, if so."""

    existed: bool
    problem: str | None = None


class NoUserBus(AdminError):
    """The systemd of this user cannot be reached."""


def unit_path(environ: Mapping[str, str], home: Path) -> Path:
    """Return where the unit of the user's systemd is."""
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user" / UNIT


def make_unit(command: Sequence[str], environment: Path, drain_s: float) -> str:
    """Return the text of the unit; `environment` is a file of variables, which need not exist."""
    quoted = " ".join(map(_quote, command))
    return TEMPLATE.format(command=quoted, environment=_escape(str(environment)), stop_s=int(drain_s) + STOP_MARGIN_S)


def install_service(unit: Path, text: str, environ: Mapping[str, str]) -> ServiceState:
    """Write the unit, and enable and start it; raises AdminError, with the unit as it was, if systemd cannot do it."""
    systemctl = _find_systemctl(environ)
    before = unit.read_text() if unit.exists() else None
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text(text)
    try:
        _run([systemctl, "--user", "daemon-reload"], environ)
        _run([systemctl, "--user", "enable", UNIT], environ)
        _run([systemctl, "--user", "restart", UNIT], environ)  # it may run already, with the unit of before
    except AdminError as error:
        # Undo an installation that failed, as far as systemd lets us.
        if before is None:
            _call([systemctl, "--user", "disable", "--now", UNIT], environ)
            unit.unlink()
        else:
            unit.write_text(before)
        _call([systemctl, "--user", "daemon-reload"], environ)
        left = "Nothing was installed." if before is None else "The unit is as it was before."
        next_step = WITHOUT_BUS if isinstance(error, NoUserBus) else "Its log: journalctl --user -u dragoman"
        raise AdminError(f"{error}\n{left} {next_step}") from error
    return read_state(unit, environ)


def uninstall_service(unit: Path, environ: Mapping[str, str]) -> Removal:
    """Stop and disable the unit, and remove its file; without the user's systemd, only the file is removed."""
    systemctl = _find_systemctl(environ)
    if not unit.exists():
        return Removal(existed=False)
    try:
        _run([systemctl, "--user", "disable", "--now", UNIT], environ)
    except NoUserBus as error:
        (unit.parent / "default.target.wants" / UNIT).unlink(missing_ok=True)  # what `disable` removes
        unit.unlink()
        return Removal(existed=True, problem=str(error))
    unit.unlink()
    _run([systemctl, "--user", "daemon-reload"], environ)
    return Removal(existed=True)


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
        _check_bus(message)
        raise AdminError(f"`{' '.join(command[1:])}` of systemctl failed: {message}")


def _check_bus(message: str) -> None:
    if NO_BUS.search(message):
        raise NoUserBus(f"The systemd of this user cannot be reached: {message.rstrip('.')}.")


def _ask(command: list[str], environ: Mapping[str, str]) -> str:
    """Return the word that systemctl answers with; raises AdminError if this user has no systemd."""
    done = _call(command, environ)
    try:
        _check_bus(done.stderr.strip())
    except NoUserBus as error:
        raise AdminError(f"{error}\n{WITHOUT_BUS}") from error
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
