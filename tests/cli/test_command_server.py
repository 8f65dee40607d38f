"""A command that is forked from the command server behaves like one in a process of its own."""

import os

import pytest

from command_server import MODULES, needs_new_process
from shell import Shell


@pytest.mark.parametrize(
    "words", [("--version",), ("unknown",), ("config", "show"), ("keys", "list"), ("doctor", "\udcff")]
)
@pytest.mark.rest
def test_a_forked_command_gives_what_a_new_process_gives(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell.run(*words) == shell.run_new_process(words, "", shell.environ)


def test_the_server_loads_no_module_of_ours_for_the_commands() -> None:
    assert not [name for name in MODULES if name.partition(".")[0] == "dragoman"]


def test_a_variable_that_python_reads_at_its_start_needs_a_new_process() -> None:
    assert needs_new_process({"PYTHONUNBUFFERED": "1", "LC_ALL": "C"})
    assert needs_new_process({"PYTHONUTF8": "0"})
    assert not needs_new_process({"PYTHONUNBUFFERED": "1", "PATH": os.environ["PATH"], "HOME": "/"})
