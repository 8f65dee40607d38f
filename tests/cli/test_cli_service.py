"""`dragoman service`: the unit that it writes, what it asks systemctl to do, and what it says without systemd."""

import shutil
import subprocess
from pathlib import Path

import pytest

from shell import Shell

SYSTEMCTL = """#!/bin/sh
echo "$@" >> {log}
case "$2" in
  is-enabled) test -f {unit} && echo enabled || {{ echo disabled; exit 1; }} ;;
  is-active) test -f {unit} && echo active || {{ echo inactive; exit 3; }} ;;
  {broken}) echo "Failed to connect to bus" >&2; exit 1 ;;
esac
"""


class Systemd:
    """A shell whose `systemctl` notes how it is called."""

    def __init__(self, shell: Shell, broken: str = "nothing") -> None:
        self.shell = shell
        self.log = shell.home / "calls"
        self.unit = shell.home / ".config/systemd/user/dragoman.service"
        programs = shell.home / "bin"
        programs.mkdir()
        (programs / "systemctl").write_text(SYSTEMCTL.format(log=self.log, unit=self.unit, broken=broken))
        (programs / "dragoman").write_text("#!/bin/sh\n")
        for program in programs.iterdir():
            program.chmod(0o755)
        shell.environ["PATH"] = f"{programs}:/usr/bin:/bin"

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_install_writes_the_unit_and_starts_it(shell: Shell) -> None:
    systemd = Systemd(shell)
    done = shell.run("service", "install")
    assert done.code == 0, done.err
    assert f"dragoman.service is active ({systemd.unit})" in done.out
    text = systemd.unit.read_text()
    assert f"ExecStart={shell.home}/bin/dragoman serve\n" in text
    assert f"EnvironmentFile=-{shell.home}/.config/dragoman/environment\n" in text
    assert "TimeoutStopSec=130\n" in text
    assert systemd.calls()[:3] == [
        "--user daemon-reload",
        "--user enable dragoman.service",
        "--user restart dragoman.service",
    ]


def test_status_and_uninstall(shell: Shell) -> None:
    systemd = Systemd(shell)
    before = shell.run("service", "status", "--json")
    assert before.json == {
        "unit": str(systemd.unit),
        "installed": False,
        "enabled": "disabled",
        "active": "inactive",
    }
    shell.run("service", "install")
    assert "active" in shell.run("service", "status").out
    assert shell.run("service", "uninstall").code == 0
    assert not systemd.unit.exists()
    assert "--user disable --now dragoman.service" in systemd.calls()
    assert "nothing to do" in shell.run("service", "uninstall").out


def test_the_unit_names_the_configuration_and_can_be_printed(shell: Shell) -> None:
    systemd = Systemd(shell)
    file = shell.home / "my file.toml"
    file.write_text("[server]\ndrain_s = 5\n")
    printed = shell.run("service", "install", "--print", "--config", str(file))
    assert printed.code == 0, printed.err
    assert f'serve --config "{file}"\n' in printed.out
    assert "TimeoutStopSec=15\n" in printed.out
    assert not systemd.unit.exists()


def test_systemd_accepts_the_units(shell: Shell) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:  # a machine without systemd has nothing to ask
        return
    Systemd(shell)
    unit = shell.home / "dragoman.service"
    unit.write_text(shell.run("service", "install", "--print").out)
    shipped = Path(__file__).parents[2] / "contrib/systemd/dragoman.service"
    system = shell.home / "system" / "dragoman.service"
    system.parent.mkdir()
    system.write_text(shipped.read_text().replace("/usr/local/bin/dragoman", f"{shell.home}/bin/dragoman"))
    for path in (unit, system):
        done = subprocess.run([analyze, "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_without_systemd_it_says_so(shell: Shell) -> None:
    shell.environ["PATH"] = str(shell.home)
    for words in (("install",), ("status",), ("uninstall",)):
        done = shell.run("service", *words)
        assert done.code == 1
        assert "systemctl" in done.err or "not on the PATH" in done.err


def test_a_failed_install_leaves_nothing_behind_and_names_the_next_step(shell: Shell) -> None:
    systemd = Systemd(shell, broken="*")
    done = shell.run("service", "install")
    assert done.code == 1
    assert "Failed to connect to bus" in done.err
    assert "Nothing was installed" in done.err
    assert "dragoman serve" in done.err
    assert not systemd.unit.exists()
    removed = shell.run("service", "uninstall")
    assert (removed.code, "nothing to do" in removed.out) == (0, True)


def test_a_unit_is_removed_without_a_user_bus_too(shell: Shell) -> None:
    systemd = Systemd(shell, broken="*")
    link = systemd.unit.parent / "default.target.wants" / systemd.unit.name
    link.parent.mkdir(parents=True)
    systemd.unit.write_text("[Service]\n")
    link.symlink_to(systemd.unit)
    done = shell.run("service", "uninstall")
    assert (done.code, f"{systemd.unit} is removed" in done.out) == (0, True)
    assert "Failed to connect to bus" in done.err
    assert "dragoman stop" in done.err
    assert not systemd.unit.exists()
    assert not link.is_symlink()
