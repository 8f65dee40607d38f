"""Every command of README.md runs in an empty environment, and prints what the page shows.

The ways to install are in `test_readme_installs.py`, the container is in `tests/deployment/test_container.py`.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.kiro import FakeKiro
from raw_http import ask, request_bytes
from readme import CONTAINER, INSTALLS, ROOT, TEXT, list_commands, list_shown
from shell import Done, Served, Shell
from waiting import wait_until

ADDRESS = "http://127.0.0.1:8484"
ID = re.compile(r"(?<=msg_)[0-9a-f]+|(?<=req_)[0-9a-f]+")
LEFT_OUT = "…"
CLIENT = '#!/bin/sh\necho "arguments: $*"\nenv\n'  # a client that only shows how it was started
CURLS = [(line, shown) for line, shown in list_shown() if line.startswith("curl ")]
# Each with a text of its output. They run beside one gateway, whose key is exported.
BESIDE_GATEWAY = {
    "dragoman keys create": "export DRAGOMAN_API_KEY=dgm_",
    "dragoman models": "echo",
    "dragoman status": "running",
    "dragoman doctor": "No problems found.",
    "dragoman config show": "server.port",
    "dragoman usage": "REQUESTS",
    "dragoman console": "/console#t=",
    "dragoman launch claude": "ANTHROPIC_BASE_URL=",
    'dragoman launch codex -m MODEL -- exec "…"': "exec …",
    "dragoman connect codex --write": ".codex/config.toml",
    "dragoman connect gemini --write": ".gemini/.env",
    "dragoman connect opencode": "opencode.json",
}
CAPTURED = {"dragoman capture show last": "echo", "dragoman replay last": "same"}
# Each with the lines of its environment and its arguments.
OF_CLIENTS = {
    f"ANTHROPIC_BASE_URL={ADDRESS} ANTHROPIC_AUTH_TOKEN=$DRAGOMAN_API_KEY claude --model echo": (
        "ANTHROPIC_BASE_URL={url}",
        "ANTHROPIC_AUTH_TOKEN={key}",
        "arguments: --model echo",
    ),
    f"export OPENAI_BASE_URL={ADDRESS}/v1 OPENAI_API_KEY=$DRAGOMAN_API_KEY": (
        "OPENAI_BASE_URL={url}/v1",
        "OPENAI_API_KEY={key}",
    ),
    f"export ANTHROPIC_BASE_URL={ADDRESS} ANTHROPIC_API_KEY=$DRAGOMAN_API_KEY": (
        "ANTHROPIC_BASE_URL={url}",
        "ANTHROPIC_API_KEY={key}",
    ),
    f"OPENAI_API_BASE={ADDRESS}/v1 OPENAI_API_KEY=$DRAGOMAN_API_KEY aider --model openai/echo": (
        "OPENAI_API_BASE={url}/v1",
        "OPENAI_API_KEY={key}",
        "arguments: --model openai/echo",
    ),
    "GEMINI_API_KEY=$DRAGOMAN_API_KEY gemini -m echo": ("GEMINI_API_KEY={key}", "arguments: -m echo"),
}
STARTS = ("ANTHROPIC_API_KEY=… OPENAI_API_KEY=… dragoman serve", "dragoman serve --port …")
WITHOUT_GATEWAY = (
    "dragoman config init",
    "dragoman providers add openrouter",
    "dragoman import FILE",
    "dragoman login kiro",
    "dragoman login copilot",
)
TARGETS = ("make test", "make check", "make bench")  # too long for a test; the first two are what CI runs
STOP = "dragoman stop"
OTHERS = ("export DRAGOMAN_API_KEY=dgm_…", 'dragoman chat "Hello"', "PORT=… make run", "dragoman connect CLIENT")


def test_every_command_of_the_page_is_run_by_a_test() -> None:
    run = [*(line for line, _ in CURLS), *BESIDE_GATEWAY, *CAPTURED, *OF_CLIENTS, *STARTS, *WITHOUT_GATEWAY]
    assert set(list_commands()) == {*run, STOP, *TARGETS, *OTHERS, *INSTALLS, CONTAINER}


def test_a_new_command_is_found_wherever_it_stands() -> None:
    page = "Run `dragoman new --x` or `VAR=… make new`.\n```sh\nbrew install x   # why\n```\n```console\n$ ls\nx\n```\n"
    assert list_commands(page) == ["ls", "brew install x", "dragoman new --x", "VAR=… make new"]
    assert list_commands("The `codex` client, `kind = x`, and `echo`.") == []


class Home:
    """An empty home directory with a gateway, and what a second shell has in it."""

    def __init__(self, shell: Shell, served: Served) -> None:
        self.shell = shell
        self.served = served
        self.key = served.key  # printed by the first start

    def run(self, command: str, **environ: str) -> Done:
        """Run a line as a shell would; one of dragoman alone needs none."""
        command = command.replace(ADDRESS, self.served.url)
        environ = {"DRAGOMAN_API_KEY": self.key, "BROWSER": "true", **environ}
        words = shlex.split(command)
        if words[0] == "dragoman":
            return self.shell.run(*words[1:], **environ)
        line = [*("sh", "-c"), f"{command}; env" if words[0] == "export" else command]
        done = subprocess.run(
            line, cwd=self.shell.home, env=self.shell.environ | environ, capture_output=True, text=True, timeout=60
        )
        return Done(done.returncode, done.stdout, done.stderr)


def make_empty_shell(home: Path) -> Shell:
    """Return a shell with nothing but the system's programs, and clients that show how they were started."""
    shell = Shell(home)
    for name in ("claude", "codex", "aider", "gemini"):
        shell.write(f"bin/{name}", CLIENT).chmod(0o755)
    shell.environ["PATH"] = f"{home / 'bin'}:/usr/bin:/bin"
    return shell


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    shell = make_empty_shell(tmp_path_factory.mktemp("home"))
    with shell.serve() as served:
        yield Home(shell, served)


def run_curl(line: str, home: Home) -> str:
    words = shlex.split(line.replace("\\\n", " ").replace("$DRAGOMAN_API_KEY", home.key))
    [url] = [word for word in words if word.startswith(ADDRESS)]
    fields = [words[at + 1] for at, word in enumerate(words) if word == "-H"]
    body = words[words.index("-d") + 1].encode()
    answered = ask(home.served.port, request_bytes(url.removeprefix(ADDRESS), body, *fields, key=None))
    if "-si" not in words:
        return answered.body.decode()
    assert answered.status == 200
    head = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in answered.headers)]
    return "\n".join([*head, "", answered.body.decode()])


@pytest.mark.parametrize(("line", "shown"), CURLS)
def test_a_request_gets_the_response_that_the_page_shows(home: Home, line: str, shown: str) -> None:
    begins = ID.sub("0", shown.partition(LEFT_OUT)[0])
    assert len(begins) > 100
    assert ID.sub("0", run_curl(line, home)).startswith(begins)


def test_a_chat_prints_what_the_page_shows(home: Home) -> None:
    [(line, shown)] = [(line, shown) for line, shown in list_shown() if line.startswith("dragoman ")]
    done = home.run(line)
    assert (done.code, done.out) == (0, shown)


@pytest.mark.parametrize("line", BESIDE_GATEWAY)
def test_a_command_runs_beside_the_gateway(home: Home, line: str) -> None:
    done = home.run(line.replace("MODEL", "echo"))
    assert done.code == 0, done
    assert BESIDE_GATEWAY[line] in done.out + done.err


@pytest.mark.rest
def test_a_failed_exchange_is_shown_and_replayed(home: Home) -> None:
    """As the page says: with `capture = "errors"` under [debug]."""
    home.shell.write("dragoman.toml", f'[server]\nport = {home.served.port}\n[debug]\ncapture = "errors"\n')
    body = b'{"model":"echo","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"tools":7}'

    def is_captured() -> bool:
        assert (
            ask(home.served.port, request_bytes("/v1/messages", body, f"x-api-key: {home.key}", key=None)).status > 399
        )
        return bool(home.shell.run("capture", "list", "--json").json)

    wait_until(is_captured)
    for line, text in CAPTURED.items():
        done = home.run(line)
        assert done.code == 0, done
        assert text in done.out


@pytest.mark.parametrize("line", OF_CLIENTS)
def test_a_client_gets_address_key_and_model(home: Home, line: str) -> None:
    done = home.run(line)
    assert done.code == 0, done
    expected = [text.format(url=home.served.url, key=home.key) for text in OF_CLIENTS[line]]
    assert [text for text in expected if text not in done.out.splitlines()] == []


@pytest.mark.parametrize(
    ("client", "label"),
    [("claude-code", "Claude Code"), ("openai", "OpenAI SDK"), ("anthropic", "Anthropic SDK"), ("aider", "aider")],
)
def test_the_settings_of_a_client_are_those_that_connect_prints(home: Home, client: str, label: str) -> None:
    [row] = [line for line in TEXT.splitlines() if line.startswith(f"| {label} |")]
    printed = home.run(f"dragoman connect {client}").out.replace(home.served.url, ADDRESS)
    settings = re.findall(r"^export (\S+)$", printed, re.MULTILINE)
    shown = [setting for setting in settings if setting in row]
    assert len(shown) == 2, settings


def test_connect_knows_every_client_that_the_page_names(home: Home) -> None:
    [row] = [line for line in TEXT.splitlines() if line.startswith("| opencode, Zed")]
    clients = ["opencode", *re.findall(r"`(\w+)`", row)]
    assert len(clients) == 6
    assert [client for client in clients if home.run(f"dragoman connect {client}").code != 0] == []


def test_a_start_with_api_keys_shows_their_providers_and_is_stopped(tmp_path: Path) -> None:
    shell = make_empty_shell(tmp_path)
    keys = {"ANTHROPIC_API_KEY": "sk-fake-anthropic", "OPENAI_API_KEY": "sk-fake-openai"}
    with shell.serve(**keys, HTTPS_PROXY="http://127.0.0.1:9") as served:  # where nothing listens: no vendor is asked
        assert "anthropic  https://api.anthropic.com/v1" in served.out
        assert "openai     https://api.openai.com/v1" in served.out
        done = shell.run("stop")
        assert done.code == 0, done
        assert served.wait() == 0


def add_vendor(shell: Shell) -> None:
    done = shell.run("providers", "add", "openrouter")
    assert done.code == 0, done
    assert 'kind = "openrouter"' in shell.read(".config/dragoman/dragoman.toml")


def import_file(shell: Shell) -> None:
    shell.write("config.yaml", "model_list: [{model_name: m, litellm_params: {model: openai/gpt-4.1}}]\n")
    done = shell.run("import", "config.yaml")
    assert done.code == 0, done
    assert "openai/gpt-4.1" in shell.read("dragoman.toml")


def init_config(shell: Shell) -> None:
    done = shell.run("config", "init", stdin="\n\n\n", OPENAI_API_KEY="sk-fake-openai")
    assert done.code == 0, done
    assert "openai" in shell.read(".config/dragoman/dragoman.toml")


def sign_in_to_kiro(shell: Shell) -> None:
    with FakeKiro() as fake:
        endpoints = f'endpoint = "{fake.root}"\nauth_endpoint = "{fake.root}"\n'
        shell.write("dragoman.toml", f'[providers.kiro]\nkind = "kiro"\n{endpoints}')
        done = shell.run("login", "kiro")
    assert done.code == 0, done


def miss_an_app(shell: Shell) -> None:
    done = shell.run("login", "copilot")
    assert done.code == 1
    assert "OAuth app" in done.err
    assert "an OAuth app of your own" in TEXT


@pytest.mark.parametrize(
    ("line", "check"),
    list(zip(WITHOUT_GATEWAY, (init_config, add_vendor, import_file, sign_in_to_kiro, miss_an_app), strict=True)),
)
def test_a_command_runs_without_a_gateway(tmp_path: Path, line: str, check: Callable[[Shell], None]) -> None:
    check(make_empty_shell(tmp_path))


@pytest.mark.parametrize("target", [line.removeprefix("make ") for line in TARGETS])
def test_make_has_the_target(target: str) -> None:
    known = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert known is not None
    assert target in known[1].split()


NO_INDEX_HAS_IT = re.compile(
    r"""(?:pipx?|uv tool|uv pip) install (?:-\S+ )*['"]?dragoman\b|\buvx dragoman|dragoman\["""
)


def test_nothing_tells_users_to_install_what_is_on_no_index() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("contrib/**/*"), ROOT / "compose.yaml"]
    files += [ROOT / "Dockerfile", *ROOT.glob("src/**/*.py"), *ROOT.glob("bench/**/*.py")]
    found = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in files
        if file.is_file()
        for line in file.read_text().splitlines()
        if NO_INDEX_HAS_IT.search(line)
    ]
    assert found == []
