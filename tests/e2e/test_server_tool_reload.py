"""An edit of [tools] takes effect, and MCP servers that nothing uses any more are closed."""

import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from anthropic.types import Message, WebSearchToolResultBlock

from dragoman.config.problems import ConfigError
from e2e.search_scene import CHAT_ANSWERS, CHAT_SEARCHES
from e2e.test_server_tools import ask
from fakes.upstream import Answer, FakeUpstream, Gate
from gateway import KEY, Running, provider_section, running
from sdk_replies import Sdk
from waiting import wait_until

SERVER = Path(__file__).parent.parent / "fakes" / "mcp_stdio.py"


@dataclass
class Scene:
    upstream: FakeUpstream
    directory: Path

    @property
    def mcp(self) -> str:
        """The section of a search by an MCP server that leaves its process id in a file."""
        script = f"echo $$ > {self.pid_file}; exec {sys.executable} {shlex.quote(str(SERVER))}"
        return f"[tools.web_search]\nbackend = \"mcp\"\ncommand = ['sh', '-c', '{script}']\n"

    @property
    def pid_file(self) -> Path:
        return self.directory / "pid"

    def settings(self, tools: str) -> str:
        return "\n".join(["[retry]\nattempts = 1", tools, provider_section("chat", self.upstream.url)])

    def play(self, *rounds: Answer) -> None:
        self.upstream.requests.clear()
        self.upstream.answers = list(rounds)

    def process(self) -> int:
        wait_until(lambda: self.pid_file.exists() and self.pid_file.read_text().strip() != "")
        return int(self.pid_file.read_text())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with FakeUpstream() as upstream:
        yield Scene(upstream, tmp_path)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def read_results(message: Message) -> object:
    [block] = [block for block in message.content if isinstance(block, WebSearchToolResultBlock)]
    content = block.content
    return [item.url for item in content] if isinstance(content, list) else content.error_code


def search(gateway: Running) -> object:
    sdk = Sdk(gateway.url, KEY)
    try:
        with sdk.anthropic.messages.stream(**ask()) as stream:
            return read_results(stream.get_final_message())
    finally:
        sdk.close()


def test_an_edit_of_other_sections_keeps_the_server_and_one_of_tools_closes_it(scene: Scene) -> None:
    scene.play(Answer(CHAT_SEARCHES), Answer(CHAT_ANSWERS), Answer(CHAT_SEARCHES), Answer(CHAT_ANSWERS))
    with running(scene.settings(scene.mcp), scene.directory) as gateway:
        assert search(gateway) == ["https://a.example/pandas"]
        process = scene.process()
        gateway.adopt(scene.settings(scene.mcp) + "\n[server]\nkeep_alive_s = 7\n")
        assert search(gateway) == ["https://a.example/pandas"]
        assert scene.process() == process
        assert is_alive(process)
        gateway.adopt(scene.settings('[tools.web_search]\nbackend = "searxng"\nendpoint = "http://127.0.0.1:9"\n'))
        wait_until(lambda: not is_alive(process))
        scene.play(Answer(CHAT_SEARCHES), Answer(CHAT_ANSWERS))
        assert search(gateway) == "unavailable"


def test_a_server_of_an_old_configuration_lives_as_long_as_a_request_that_uses_it(scene: Scene) -> None:
    adopted = threading.Event()
    scene.play(Answer(CHAT_SEARCHES), Answer(CHAT_ANSWERS, gate=Gate(adopted)))
    with running(scene.settings(scene.mcp), scene.directory) as gateway:
        results: list[object] = []
        client = threading.Thread(target=lambda: results.append(search(gateway)))
        client.start()
        process = scene.process()
        wait_until(lambda: len(scene.upstream.calls) == 2)
        gateway.adopt(scene.settings('[tools.web_search]\nbackend = "off"\n'))
        time.sleep(0.2)
        assert is_alive(process)
        adopted.set()
        client.join()
        assert results == [["https://a.example/pandas"]]
        wait_until(lambda: not is_alive(process))


def test_the_server_is_closed_when_the_gateway_stops(scene: Scene) -> None:
    scene.play(Answer(CHAT_SEARCHES), Answer(CHAT_ANSWERS))
    with running(scene.settings(scene.mcp), scene.directory) as gateway:
        search(gateway)
        process = scene.process()
        assert is_alive(process)
    wait_until(lambda: not is_alive(process))


def test_a_secret_that_cannot_be_read_is_a_warning_at_the_start_and_an_error_in_an_edit(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.play(Answer(CHAT_SEARCHES), Answer(CHAT_ANSWERS))
    unreadable = '[tools.web_search]\nbackend = "brave"\napi_key = "env:NO_SUCH_KEY"\n'
    with running(scene.settings(unreadable), scene.directory) as gateway:
        assert "NO_SUCH_KEY" in caplog.text
        assert search(gateway) == "unavailable"
        with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
            gateway.adopt(scene.settings(unreadable + "results = 3\n"))
