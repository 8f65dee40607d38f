"""`dragoman models`: from the running gateway if there is one, else from the providers."""

import msgspec
import pytest

from fakes.kiro import FakeKiro
from shell import Shell


class Model(msgspec.Struct):
    id: str


def ids(text: str) -> list[str]:
    return [model.id for model in msgspec.json.decode(text, type=list[Model])]


def test_without_a_gateway_the_providers_list_their_models(shell: Shell) -> None:
    done = shell.run("models", "--json")
    assert (done.code, done.err) == (0, "")
    assert "echo" in ids(done.out)


def test_the_running_gateway_lists_its_models(shell: Shell) -> None:
    with shell.serve() as served:
        # A file of the command's own: the gateway follows the edits of the usual one.
        config = f'[server]\nport = {served.port}\n[providers.mine]\nkind = "openai-compatible"\n'
        shell.write("own.toml", config + 'endpoint = "http://127.0.0.1:9"\nmodels = ["only-here"]\n')
        models = ("models", "--json", "--config", "own.toml")
        from_environment = shell.run(*models, DRAGOMAN_API_KEY=served.key)
        given = shell.run(*models, "--key", served.key)
        alone = shell.run(*models)
    assert "echo" in ids(from_environment.out)
    assert ids(given.out) == ids(from_environment.out)
    assert ids(alone.out) == ["mine/only-here", "only-here"]
    assert f"A gateway runs at {served.url}" in alone.err


@pytest.mark.rest
def test_a_model_of_kiro_has_its_credit_rate(shell: Shell) -> None:
    with FakeKiro() as kiro:
        shell.write("kiro.toml", kiro.section(kiro.sign_in(shell.home / "kiro-auth-token.json")))
        as_json = shell.run("models", "--config", "kiro.toml", "--json")
        table = shell.run("models", "--config", "kiro.toml")
    rates = {model["id"]: model["credit_rate"] for model in msgspec.json.decode(as_json.out)}
    assert (rates["kiro/claude-sonnet-4.5"], rates["kiro/auto"]) == (1.3, None)
    assert "CREDIT RATE" in table.out
    [line] = [line for line in table.out.splitlines() if line.startswith("kiro/claude-sonnet-4.5")]
    assert line.split()[-1] == "1.3"


def test_a_rejected_key_is_an_error(shell: Shell) -> None:
    with shell.serve() as served:
        done = shell.run("models", "--key", "dgm_fake-wrong")
    assert (done.code, done.out) == (1, "")
    assert f"The gateway at {served.url} rejects the key" in done.err
    assert "dgm_fake" not in done.err


DEAD = """
[providers.dead]
kind = "openai-compatible"
endpoint = "http://127.0.0.1:9/v1"
"""
ECHO = """
[providers.echo]
kind = "echo"
"""


@pytest.mark.parametrize(("options", "out"), [((), ""), (("--json",), "[]\n")])
def test_it_fails_and_names_the_provider_if_nothing_could_be_listed(
    shell: Shell, options: tuple[str, ...], out: str
) -> None:
    shell.write("dead.toml", DEAD)
    done = shell.run("models", "--config", "dead.toml", *options)
    assert (done.code, done.out) == (1, out)
    assert 'Provider "dead" could not list its models: cannot connect to 127.0.0.1:9' in done.err
    assert "dragoman doctor" in done.err


def test_a_provider_that_cannot_be_reached_is_named_beside_the_models_of_others(shell: Shell) -> None:
    shell.write("both.toml", DEAD + ECHO)
    done = shell.run("models", "--config", "both.toml", "--json")
    assert done.code == 0
    assert "echo" in ids(done.out)
    assert 'Provider "dead" could not list its models: cannot connect to 127.0.0.1:9' in done.err


def test_a_running_gateway_names_the_providers_that_could_not_be_reached(shell: Shell) -> None:
    shell.write("both.toml", DEAD + ECHO)
    with shell.serve("--config", "both.toml") as served:
        done = shell.run("models", "--key", served.key)
    assert done.code == 0
    assert 'Provider "dead" could not list its models: cannot connect to 127.0.0.1:9' in done.err


def test_the_table_has_a_line_for_each_model(shell: Shell) -> None:
    lines = shell.run("models").out.splitlines()
    assert lines[0].split() == ["MODEL", "OWNED", "BY"]
    assert [line.split()[0] for line in lines[1:]] == ids(shell.run("models", "--json").out)
