"""The unit of the user's systemd, and the message on a machine without systemd."""

from pathlib import Path

import pytest

from dragoman.operate import AdminError
from dragoman.operate.gateway.service import (
    STOP_MARGIN_S,
    find_program,
    install_service,
    make_unit,
    read_state,
    uninstall_service,
    unit_path,
)


def test_the_unit_is_below_the_configuration_directory(tmp_path: Path) -> None:
    assert unit_path({}, tmp_path) == tmp_path / ".config" / "systemd" / "user" / "dragoman.service"
    assert unit_path({"XDG_CONFIG_HOME": "/x"}, tmp_path) == Path("/x/systemd/user/dragoman.service")


def test_the_unit_waits_for_streams_and_quotes_what_systemd_expands() -> None:
    unit = make_unit(["/opt/my tools/dragoman", "serve", "--config", "/a%b$c"], Path("/env%file"), 120)
    assert 'ExecStart="/opt/my tools/dragoman" serve --config /a%%b$$c\n' in unit
    assert "EnvironmentFile=-/env%%file\n" in unit
    assert f"TimeoutStopSec={120 + STOP_MARGIN_S}\n" in unit


def test_without_systemd_nothing_is_written(tmp_path: Path) -> None:
    environ, unit = {"PATH": str(tmp_path)}, tmp_path / "user" / "dragoman.service"
    for call in (
        lambda: install_service(unit, "", environ),
        lambda: uninstall_service(unit, environ),
        lambda: read_state(unit, environ),
    ):
        with pytest.raises(AdminError, match="dragoman serve"):
            call()
    assert not unit.parent.exists()


def make_systemctl(directory: Path, script: str) -> dict[str, str]:
    """Put a `systemctl` into a directory, and return the environment that has it on its path."""
    systemctl = directory / "systemctl"
    systemctl.write_text(f"#!/bin/sh\n{script}\n")
    systemctl.chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


@pytest.mark.parametrize("step", ["daemon-reload", "enable", "restart"])
def test_a_failed_step_is_named_and_the_unit_is_as_it_was(tmp_path: Path, step: str) -> None:
    environ = make_systemctl(tmp_path, f'[ "$2" = {step} ] || exit 0\necho cannot do that >&2\nexit 1')
    unit = tmp_path / "dragoman.service"
    with pytest.raises(AdminError, match=rf"{step}.*cannot do that\nNothing was installed"):
        install_service(unit, "new", environ)
    assert not unit.exists()
    unit.write_text("before")
    with pytest.raises(AdminError, match=rf"{step}.*cannot do that\nThe unit is as it was"):
        install_service(unit, "new", environ)
    assert unit.read_text() == "before"


@pytest.mark.parametrize(
    "message",
    [
        "Failed to connect to bus: No medium found",
        "Failed to connect to user scope bus via local transport: $DBUS_SESSION_BUS_ADDRESS is not defined",
    ],
)
def test_without_a_user_bus_the_next_step_is_named(tmp_path: Path, message: str) -> None:
    environ = make_systemctl(tmp_path, f"echo '{message}' >&2\nexit 1")
    unit = tmp_path / "dragoman.service"
    with pytest.raises(AdminError, match=r"cannot be reached.*\n.*dragoman serve"):
        install_service(unit, "", environ)
    with pytest.raises(AdminError, match=r"cannot be reached.*\n.*dragoman serve"):
        read_state(unit, environ)
    unit.write_text("")
    removal = uninstall_service(unit, environ)
    assert (removal.existed, message in (removal.problem or "")) == (True, True)
    assert not unit.exists()


def test_the_program_is_the_one_that_runs_or_the_one_on_the_path(tmp_path: Path) -> None:
    program = tmp_path / "dragoman"
    with pytest.raises(AdminError, match=r"pipx install \.$"):
        find_program({"PATH": str(tmp_path)}, "-c")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_program({"PATH": ""}, str(program)) == program
    assert find_program({"PATH": str(tmp_path)}, "-m") == program
