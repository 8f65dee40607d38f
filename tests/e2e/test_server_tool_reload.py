"""An edit of [tools] takes effect, and MCP servers that nothing uses any more are closed."""

import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dragoman.config.problems import ConfigError
from e2e.search_scene import ANSWERS, SEARCHES, SearchScene, outcomes, run_scene, to_answer
from fakes.upstream import Answer, Gate
from waiting import wait_until

SERVER = Path(__file__).parent.parent / "fakes" / "mcp_stdio.py"


@dataclass
class Edited:
    """A scene whose tools are edited; its search is an MCP server that leaves its process id in a file."""

    scene: SearchScene
    toml: str

    def adopt(self, tools: str) -> None:
        self.scene.gateway.adopt(f"{self.toml}\n{tools}")

    def search(self, second: Answer | None = None) -> object:
        self.scene.play(SEARCHES, second or ANSWERS)
        [outcome] = outcomes(self.scene.reply())
        return outcome

    @property
    def process(self) -> int:
        file = self.scene.directory / "pid"
        wait_until(lambda: file.exists() and file.read_text().strip())
        return int(file.read_text())


def write_mcp(directory: Path) -> str:
    script = f"echo $$ > {directory}/pid; exec {sys.executable} {shlex.quote(str(SERVER))}"
    return f"[tools.web_search]\nbackend = \"mcp\"\ncommand = ['sh', '-c', '{script}']\n"


@contextmanager
def run_edited(directory: Path, tools: str) -> Iterator[Edited]:
    with run_scene(directory, backend="", settings=tools) as scene:
        toml = (directory / "dragoman.toml").read_text().replace(tools, "")
        yield Edited(scene, toml)


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[Edited]:
    with run_edited(tmp_path, write_mcp(tmp_path)) as own:
        yield own


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


FOUND = ["https://a.example/pandas"]


def test_an_edit_of_other_sections_keeps_the_server_and_one_of_tools_closes_it(edited: Edited, tmp_path: Path) -> None:
    assert edited.search() == FOUND
    process = edited.process
    edited.adopt(write_mcp(tmp_path) + "[server]\nkeep_alive_s = 7\n")
    assert edited.search() == FOUND
    assert edited.process == process
    assert is_alive(process)
    edited.adopt('[tools.web_search]\nbackend = "searxng"\nendpoint = "http://127.0.0.1:9"\n')
    wait_until(lambda: not is_alive(process))
    assert edited.search() == "unavailable"


def test_a_server_of_an_old_configuration_lives_as_long_as_a_request_that_uses_it(edited: Edited) -> None:
    adopted = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(edited.search, replace(to_answer("chat", ANSWERS), gate=Gate(adopted)))
        process = edited.process
        wait_until(lambda: len(edited.scene.sent) == 2)
        edited.adopt('[tools.web_search]\nbackend = "off"\n')
        time.sleep(0.1)
        assert is_alive(process)
        adopted.set()
        assert client.result() == FOUND
    wait_until(lambda: not is_alive(process))


def test_the_server_is_closed_when_the_gateway_stops(tmp_path: Path) -> None:
    with run_edited(tmp_path, write_mcp(tmp_path)) as edited:
        edited.search()
        process = edited.process
        assert is_alive(process)
    wait_until(lambda: not is_alive(process))


def test_a_secret_that_cannot_be_read_is_a_warning_at_the_start_and_an_error_in_an_edit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable = '[tools.web_search]\nbackend = "brave"\napi_key = "env:NO_SUCH_KEY"\n'
    with run_edited(tmp_path, unreadable) as edited:
        assert "NO_SUCH_KEY" in caplog.text
        assert edited.search() == "unavailable"
        with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
            edited.adopt(unreadable + "results = 3\n")
