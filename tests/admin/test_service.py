"""The unit of the user's systemd, and the message on a machine without systemd."""

from pathlib import Path

import pytest

from dragoman.admin import AdminError
from dragoman.admin.service import (
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


def test_a_failure_of_systemctl_is_shown(tmp_path: Path) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\necho no bus >&2\nexit 1\n")
    systemctl.chmod(0o755)
    with pytest.raises(AdminError, match=r"daemon-reload.*no bus"):
        install_service(tmp_path / "dragoman.service", "", {"PATH": str(tmp_path)})


def test_the_program_is_the_one_that_runs_or_the_one_on_the_path(tmp_path: Path) -> None:
    program = tmp_path / "dragoman"
    with pytest.raises(AdminError, match=r"pipx install \.$"):
        find_program({"PATH": str(tmp_path)}, "-c")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_program({"PATH": ""}, str(program)) == program
    assert find_program({"PATH": str(tmp_path)}, "-m") == program
