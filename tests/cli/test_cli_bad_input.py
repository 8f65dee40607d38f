"""Invalid input is explained; no mistake of the user is reported as a bug."""

from itertools import product

import pytest

from gateway import KEY
from shell import Shell


@pytest.mark.rest
def test_a_key_that_no_header_can_carry_is_an_error(shell: Shell) -> None:
    with shell.serve(DRAGOMAN_API_KEY=KEY):
        for words, key in product((("models",), ("usage",), ("chat", "hi")), ("a\nb", "\udcff", "\x1b[31m")):
            done = shell.run(*words, "--key", key)
            assert (done.code, done.out) == (1, ""), (words, key)
            assert "The key in --key contains characters that no key has" in done.err
            assert key not in done.err


def test_arguments_that_are_not_utf8_are_wrong_usage(shell: Shell) -> None:
    for words in (("chat", "\udcff\udcfe"), ("chat", "-m", "\udcff", "hi")):
        done = shell.run(*words)
        assert (done.code, done.out) == (2, "")
        assert "is not valid UTF-8" in done.err


def test_the_error_for_a_database_server_that_is_down_names_the_server(shell: Shell) -> None:
    shell.write("dragoman.toml", '[store]\nurl = "postgresql://u@127.0.0.1:9/db"\n')
    done = shell.run("keys", "list")
    assert done.code == 1
    assert "Is the server in store.url up?" in done.err
    assert "file" not in done.err


def test_a_capture_directory_that_is_a_file_is_an_error(shell: Shell) -> None:
    shell.write("captures", "no folder")
    shell.write("dragoman.toml", '[debug]\ndirectory = "captures"\n')
    for words in (("list",), ("list", "--json"), ("show", "last")):
        done = shell.run("capture", *words)
        assert (done.code, done.out) == (1, "")
        assert "debug.directory must be a directory" in done.err


def test_an_unknown_command_names_the_nearest(shell: Shell) -> None:
    done = shell.run("serv")
    assert (done.code, "There is no command `serv`. Did you mean `serve`?" in done.err) == (2, True)
    assert "Did you mean" not in shell.run("xyz").err


def test_an_empty_list_of_responses_says_so(shell: Shell) -> None:
    assert shell.run("responses", "list").out == "No responses are stored.\n"
    assert shell.run("responses", "list", "--json").json == []
