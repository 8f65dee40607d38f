"""Every command finds the running gateway in the same way, on whatever port it listens, or takes its address."""

from collections.abc import Iterator

import msgspec
import pytest

from shell import Served, Shell

# A command, and what it prints if it talks to the gateway: its address, or an answer that names no other gateway.
COMMANDS = {
    ("status",): "at {root}, process {pid}: running",
    ("console", "--print"): "{root}/console#t=",
    ("doctor",): "is running at {root}",
    ("models",): "echo",
    ("chat", "-m", "echo", "Hello"): "Hello",
    ("usage",): "equests",
    ("keys", "list"): "live",
    ("keys", "create"): "The gateway at {root} accepts it from now on",
    ("connect", "codex"): "{root}/v1",
}
NEEDS_KEY = ("models", "chat", "usage", "keys")
SAMPLE = [("status",), ("doctor",), ("chat", "-m", "echo", "Hello"), ("keys", "list")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Served]]:
    """A gateway on another port than the configuration says."""
    shell = Shell(tmp_path_factory.mktemp("home"))
    with shell.serve() as gateway:
        shell.write("dragoman.toml", "[server]\nport = 1\n")
        yield shell, gateway


@pytest.mark.parametrize(
    "words",
    [words if words in SAMPLE else pytest.param(words, marks=pytest.mark.rest) for words in COMMANDS],
    ids=[" ".join(words) for words in COMMANDS],
)
def test_a_command_finds_the_gateway_and_takes_its_address(
    served: tuple[Shell, Served], words: tuple[str, ...]
) -> None:
    shell, gateway = served
    key = {"DRAGOMAN_API_KEY": gateway.key}
    expected = COMMANDS[words].format(root=gateway.url, pid=gateway.pid)
    found = shell.run(*words, **key)
    assert (found.code, expected in found.out + found.err) == (0, True), found
    assert "asks the providers itself" not in found.err
    named = shell.run(*words, "--url", gateway.url, **key)
    assert (named.code, expected in named.out + named.err) == (0, True), named
    wrong = shell.run(*words, "--url", "http://127.0.0.1:1", **key)
    assert (wrong.code, "No dragoman answers at http://127.0.0.1:1" in wrong.out + wrong.err) == (1, True), wrong
    if words[0] in NEEDS_KEY:
        refused = shell.run(*words, "--url", gateway.url)
        assert (refused.code, "is needed: set $DRAGOMAN_API_KEY" in refused.err) == (1, True), refused
        rejected = shell.run(*words, "--url", gateway.url, DRAGOMAN_API_KEY="dgm_fake-wrong")
        assert (rejected.code, "rejects the key" in rejected.err) == (1, True), rejected


def test_usage_asks_the_gateway_on_another_port_before_it_reads_the_store(served: tuple[Shell, Served]) -> None:
    shell, gateway = served
    done = shell.run("usage", DRAGOMAN_API_KEY="dgm_fake-wrong")
    assert f"The store was read instead of the gateway: The gateway at {gateway.url} rejects the key" in done.err


def test_the_address_is_wrong_usage_where_only_providers_are_used(served: tuple[Shell, Served]) -> None:
    shell, gateway = served
    for words in (("doctor", "echo"), ("usage", "--plans")):
        done = shell.run(*words, "--url", gateway.url)
        assert (done.code, "--url cannot be used" in done.err) == (2, True), done


def test_the_message_of_a_port_in_use_names_the_process_and_the_command_that_stops_it(
    served: tuple[Shell, Served],
) -> None:
    shell, gateway = served
    done = shell.run("serve", "--port", str(gateway.port))
    assert done.code == 1
    assert f"a gateway is already running there (process {gateway.pid})" in done.err
    assert f"dragoman stop --url {gateway.url}" in done.err
    status = msgspec.json.decode(shell.run("status", "--json").out, type=dict[str, object])
    assert (status["pid"], status["address"]) == (gateway.pid, gateway.url)
