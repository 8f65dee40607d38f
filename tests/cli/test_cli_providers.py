"""`dragoman providers` and `dragoman config init`: edits of dragoman.toml with diff and backup."""

import msgspec
import pytest

from shell import Shell
from tables import each_row

FILE = ".config/dragoman/dragoman.toml"


class Row(msgspec.Struct):
    name: str


def names(shell: Shell) -> list[str]:
    rows = msgspec.json.decode(shell.run("providers", "list", "--json").out, type=list[Row])
    return [row.name for row in rows]


def test_a_provider_is_added_listed_and_removed_again(shell: Shell) -> None:
    added = shell.run("providers", "add", "openrouter")
    assert added.code == 0
    assert '+kind = "openrouter"' in added.out
    assert "$OPENROUTER_API_KEY is not set here" in added.err
    assert shell.read(FILE) == '[providers.openrouter]\nkind = "openrouter"\n'
    listed = shell.run("providers", "list").out
    assert "https://openrouter.ai/api/v1" in listed
    assert "OPENROUTER_API_KEY is not set" in listed
    removed = shell.run("providers", "remove", "openrouter")
    assert removed.code == 0
    assert '-kind = "openrouter"' in removed.out
    assert names(shell) == ["echo"]
    backups = list((shell.home / ".config/dragoman").glob("*.dragoman-backup-*"))
    assert len(backups) == 1, "the first one wrote a new file"


def test_everything_else_in_the_file_stays(shell: Shell) -> None:
    shell.write("dragoman.toml", "# mine\n[server]\nport = 9000 # here\n")
    words = ("--name", "work", "--set", "resource=acme", "--model", "gpt", "--api-key", "env:AZ_KEY")
    assert shell.run("providers", "add", "azure-openai", *words, AZ_KEY="sk-fake").code == 0
    assert shell.read("dragoman.toml") == (
        '# mine\n[server]\nport = 9000 # here\n\n[providers.work]\nkind = "azure-openai"\napi_key = "env:AZ_KEY"\n'
        'models = ["gpt"]\nresource = "acme"\n'
    )


def test_a_dry_run_writes_nothing(shell: Shell) -> None:
    done = shell.run("providers", "add", "groq", "--dry-run")
    assert (done.code, "+kind" in done.out) == (0, True)
    assert "Nothing was written." in done.err
    assert not (shell.home / FILE).exists()


@pytest.mark.rest
@each_row(
    ("words", "code", "message"),
    [
        (("add", "open-router"), 2, 'There is no vendor "open-router"; did you mean "openrouter"?'),
        (("add", "groq", "--api-key", "sk-fake-literal"), 2, "env:NAME or file:PATH"),
        (("add", "groq", "--set", "colour"), 2, '--set needs KEY=VALUE, got "colour".'),
        (("add", "groq", "--name", "a.b"), 2, '"a.b" is not a valid name of a provider'),
        (("add", "azure-openai"), 1, '"resource" is missing'),
        (("add", "groq", "--set", "colour=red"), 1, "unknown key"),
        (("remove", "grok"), 1, 'There is no provider "grok"'),
        (("remove", "echo"), 1, '"echo" is built in'),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    shell: Shell, words: tuple[str, ...], code: int, message: str
) -> None:
    done = shell.run("providers", *words)
    assert (done.code, message in done.err) == (code, True), done.err
    assert "sk-fake-literal" not in done.err
    assert not (shell.home / FILE).exists()


def test_a_provider_that_was_found_is_not_removed_from_a_file(shell: Shell) -> None:
    done = shell.run("providers", "remove", "groq", GROQ_API_KEY="gsk-fake-1")
    assert done.code == 1
    assert "It was found at: environment GROQ_API_KEY" in done.err


def test_a_second_provider_of_a_name_is_refused(shell: Shell) -> None:
    shell.run("providers", "add", "groq")
    done = shell.run("providers", "add", "cerebras", "--name", "groq")
    assert (done.code, 'There is already a provider "groq"' in done.err) == (1, True)


@pytest.mark.rest
def test_all_presets_are_listed(shell: Shell) -> None:
    assert "GROQ_API_KEY" in shell.run("providers", "presets").out
    presets = msgspec.json.decode(shell.run("providers", "presets", "--json").out, type=dict[str, dict[str, object]])
    assert presets["groq"]["keys"] == ["GROQ_API_KEY"]


def test_init_asks_and_writes_a_file_that_is_valid(shell: Shell) -> None:
    answers = "y\nn\nunknown\nazure-openai\nacme\n\nn\n"
    done = shell.run("config", "init", stdin=answers, GROQ_API_KEY="gsk-fake-1", MISTRAL_API_KEY="fake-mistral-1")
    assert done.code == 0, done.err
    assert 'There is no vendor "unknown".' in done.out
    text = shell.read(FILE)
    assert 'capture = "off"' in text
    assert "gsk-fake-1" not in text
    assert names(shell) == ["mistral", "azure-openai"]  # in the order of the presets, which is that of the questions
    assert shell.run("config", "check").code == 0


def test_init_takes_what_it_finds_without_questions_and_overwrites_nothing(shell: Shell) -> None:
    done = shell.run("config", "init", "--yes", "--here", GROQ_API_KEY="gsk-fake-1")
    assert done.code == 0
    assert '# Groq, found at: environment GROQ_API_KEY\n[providers.groq]\nkind = "groq"\n' in shell.read(
        "dragoman.toml"
    )
    again = shell.run("config", "init", "--yes", "--here")
    assert (again.code, "already exists" in again.err) == (1, True)


def test_init_without_anything_found_leaves_echo(shell: Shell) -> None:
    assert shell.run("config", "init", "--yes").code == 0
    assert "No provider yet" in shell.read(FILE)
    assert names(shell) == ["echo"]
