"""The commands in README.md print what it shows, and its settings for clients are those of `dragoman connect`."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import KEY, Running, running
from raw_http import ask, request_bytes
from shell import Shell

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
CODE = re.compile(r"```sh\n(.*?)```|`([^`\n]+)`", re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
ID = re.compile(r"(?<=msg_)[0-9a-f]+|(?<=req_)[0-9a-f]+")
LEFT_OUT = "…"
ADDRESS = "http://127.0.0.1:8484"


def commands() -> list[tuple[str, str]]:
    """Return each command of the page with the output that it shows."""
    return [(command[1], command[2]) for block in BLOCK.findall(README) for command in COMMAND.finditer(block)]


def commands_of(program: str) -> list[tuple[str, str]]:
    return [(line, shown) for line, shown in commands() if line.startswith(program)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running('[providers.echo]\nkind = "echo"\n', tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


def run_curl(line: str, port: int) -> str:
    words = shlex.split(line.replace("\\\n", " ").replace("$DRAGOMAN_API_KEY", KEY))
    [url] = [word for word in words if word.startswith(ADDRESS)]
    fields = [words[at + 1] for at, word in enumerate(words) if word == "-H"]
    body = words[words.index("-d") + 1].encode()
    answered = ask(port, request_bytes(url.removeprefix(ADDRESS), body, *fields, key=None))
    if "-si" not in words:
        return answered.body.decode()
    assert answered.status == 200
    head = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in answered.headers)]
    return "\n".join([*head, "", answered.body.decode()])


@pytest.mark.parametrize(("line", "shown"), commands_of("curl "))
def test_a_request_gets_the_response_that_the_page_shows(gateway: Running, line: str, shown: str) -> None:
    begins = ID.sub("0", shown.partition(LEFT_OUT)[0])
    assert len(begins) > 100
    assert ID.sub("0", run_curl(line, gateway.port)).startswith(begins)


def test_the_command_prints_what_the_page_shows(gateway: Running, tmp_path: Path) -> None:
    [(line, shown)] = commands_of("dragoman ")
    (tmp_path / "dragoman.toml").write_text(f"[server]\nport = {gateway.port}\n")
    done = Shell(tmp_path).run(*shlex.split(line)[1:], DRAGOMAN_API_KEY=KEY)
    assert (done.code, done.out) == (0, shown)


@pytest.mark.parametrize(
    ("client", "label"),
    [("claude-code", "Claude Code"), ("openai", "OpenAI SDK"), ("anthropic", "Anthropic SDK"), ("aider", "aider")],
)
def test_the_settings_of_a_client_are_those_that_connect_prints(tmp_path: Path, client: str, label: str) -> None:
    [row] = [line for line in README.splitlines() if line.startswith(f"| {label} |")]
    printed = Shell(tmp_path).run("connect", client).out
    settings = re.findall(r"^export (\S+)$", printed, re.MULTILINE)
    assert len(settings) == 2
    assert all(setting in row for setting in settings)


def test_the_commands_that_the_page_names_exist(tmp_path: Path) -> None:
    overview = Shell(tmp_path).run("--help").out
    code = "\n".join(block + span for block, span in CODE.findall(README))
    named = set(re.findall(r"^dragoman ([a-z]+)", code, re.MULTILINE))
    assert len(named) > 6
    assert all(re.search(rf"^  {name} ", overview, re.MULTILINE) for name in named)
