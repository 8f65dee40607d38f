"""Mistakes that people make in dragoman.toml, and the advice that they get."""

from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError

QUOTE = 'a string must be in quotes: {}"…"'
SYNTAX = {
    "[providers.p]\nkind = anthropic\n": QUOTE.format("kind = "),
    "endpoint = http://h/v1\n": QUOTE.format("endpoint = "),
    "host = 127.0.0.1\n": QUOTE.format("host = "),
    "host = ::1\n": QUOTE.format("host = "),
    "api_key = sk-FAKE\n": QUOTE.format("api_key = "),
    "api_key = env:KEY\n": QUOTE.format("api_key = "),
    "name = claude-*\n": QUOTE.format("name = "),
    "name = 4o-mini\r\n": QUOTE.format("name = "),
    "name = truely\n": QUOTE.format("name = "),
    "directory = ~/captures\n": QUOTE.format("directory = "),
    "p = { kind = echo }\n": QUOTE.format("kind = "),
    "to = [a/b]\n": QUOTE.format(""),
    'to = [\n  "a/b",\n  c/d,\n]\n': QUOTE.format(""),
    "trusted_proxies = [10.0.0.1]\n": QUOTE.format(""),
    "name = “a”\n": 'a string must be in straight quotes: name = "…"',
    "enabled = True\n": "true and false are written in lower case: enabled = true",
    # Quotes would not help here.
    "base_s = 10s\n": "Expected newline or end of document after a statement",
    "port = 8 484\n": "Expected newline or end of document after a statement",
    "port = 1, 2\n": "Expected newline or end of document after a statement",
    "base_s = .5\n": "Invalid value",
    "port = \n": "Invalid value",
    'to = ["a/b" "c/d"]\n': "Unclosed array",
    'name = "a" b\n': "Expected newline or end of document after a statement",
    'kind: "echo"\n': "Expected '=' after a key in a key/value pair",
}


def find_problems(directory: Path, text: str) -> list[str]:
    (directory / "dragoman.toml").write_text(text, newline="")
    try:
        ConfigSource(None, {}, directory, directory).read()
    except ConfigError as error:
        return [str(problem).removeprefix(f"{directory}/dragoman.toml:") for problem in error.problems]
    return []


def find_warnings(directory: Path, text: str) -> list[str]:
    (directory / "dragoman.toml").write_text(text)
    return [
        warning.removeprefix(f"{directory}/")
        for warning in ConfigSource(None, {}, directory, directory).read().warnings
    ]


def test_a_string_without_quotes_is_named_as_such(tmp_path: Path) -> None:
    found = {text: find_problems(tmp_path, text)[0].partition("column ")[2].partition(": ")[2] for text in SYNTAX}
    assert found == SYNTAX


def test_advice_has_line_and_column_and_never_the_value(tmp_path: Path) -> None:
    expected = '2: not valid TOML at column 11: a string must be in quotes: api_key = "…"'
    assert find_problems(tmp_path, "[providers.p]\napi_key = sk-FAKE-secret\n") == [expected]


@pytest.mark.parametrize("value", ["true", "1", '["off"]', "1979-05-27", '{ off = "x" }', "2.5"])
def test_a_value_that_is_no_word_gets_the_choices(tmp_path: Path, value: str) -> None:
    [problem] = find_problems(tmp_path, f"[debug]\ncapture = {value}\n")
    assert problem.startswith('2: debug.capture: expected one of "off", "errors", "all", got ')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[debug]\ncapture = true\n", 'debug.capture: expected one of "off", "errors", "all", got true'),
        ("[responses]\non_disconnect = false\n", 'expected one of "cancel", "park", "drain", got false'),
        ('[providers.p]\nkind = "kiro"\noperations_by = 2\n', 'expected one of "path", "target", got 2'),
        ('[providers.p]\nkind = "openai"\nprotocol = true\n', '"messages", "gemini", got true'),
        ('[providers.p]\nkind = "openai"\nprotocol = ["chat", 1]\n', '"messages", "gemini", got 1'),
        ('[providers.p]\nkind = "openai"\nendpoints = {chatt = "x"}\n', 'got "chatt"; did you mean "chat"?'),
        ('[providers.p]\nkind = "openai"\nendpoints = true\n', "endpoints: expected a table, got true"),
        ("[tools.web_search]\nbackend = false\n", '"mcp", "off", got false'),
    ],
)
def test_every_closed_set_names_its_choices(tmp_path: Path, text: str, problem: str) -> None:
    [found] = find_problems(tmp_path, text)
    assert found.endswith(problem)


def test_a_host_is_an_address_or_a_name(tmp_path: Path) -> None:
    good = ["127.0.0.1", "0.0.0.0", "::", "::1", "fe80::1%eth0", "localhost", "my_box.local", "büro.example", "a.b."]
    bad = ["not a host", "http://127.0.0.1", "127.0.0.1:8484", "[::1]", "256.1.1.1", "127.0.0", "8484", "a..b", "*"]
    refused = [host for host in (*good, *bad) if find_problems(tmp_path, f'server.host = "{host}"\n')]
    assert refused == bad
    assert find_problems(tmp_path, '[server]\nhost = "not a host"\n') == [
        '2: server.host: expected an IP address or a host name, such as "127.0.0.1" or "localhost", got "not a host"'
    ]


def test_a_bad_host_in_the_file_is_a_problem_even_if_a_flag_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[server]\nhost = "not a host"\n')
    with pytest.raises(ConfigError, match=r"dragoman\.toml:2: server\.host"):
        ConfigSource(None, {}, tmp_path, tmp_path).read({"server.host": "127.0.0.1"})


def list_routes(*names: str) -> str:
    routes = [f'[[models]]\nname = "{name}"\nto = ["p/x"]\n' for name in names]
    return '[providers.p]\nkind = "echo"\n' + "".join(routes)


def test_a_model_name_that_an_earlier_one_hides_gets_a_warning(tmp_path: Path) -> None:
    assert find_warnings(tmp_path, list_routes("fast", "claude-*", "fast", "claude-opus", "claude-opus-*")) == [
        'dragoman.toml:10: models[2].name: never used: "fast" is already above; list all targets there',
        'dragoman.toml:13: models[3].name: never used: "claude-*" above matches first; move this one up',
        'dragoman.toml:16: models[4].name: never used: "claude-*" above matches first; move this one up',
    ]


def test_a_glob_hides_later_models_of_its_provider_and_of_no_other(tmp_path: Path) -> None:
    assert find_warnings(tmp_path, list_routes("p/x", "p/*", "p/y", "q/y")) == [
        'dragoman.toml:10: models[2].name: never used: "p/*" above matches first; move this one up',
    ]


def test_a_glob_in_place_of_a_provider_gets_a_warning(tmp_path: Path) -> None:
    [warning] = find_warnings(tmp_path, list_routes("*/x", "q*/x"))
    assert warning.endswith('does not match requests for the models of provider "p"; for those, write "p/x"')


@pytest.mark.parametrize(
    "names",
    [
        ("claude-opus", "claude-*"),
        ("*", "p/x"),  # a client that sends p/x does mean this one
        ("gpt-?", "gpt-*"),
        ("gpt-*", "gpt[45]"),
        ("a*", "*"),
    ],
)
def test_a_model_name_that_can_be_reached_gets_none(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert find_warnings(tmp_path, list_routes(*names)) == []


def test_no_provider_is_called_as_the_prefix_of_claude_codes_picker(tmp_path: Path) -> None:
    kind = 'kind = "echo"\n'
    assert find_problems(tmp_path, f"[providers.claude-code]\n{kind}") == [
        "1: providers.claude-code: claude-code/ is the prefix of models in Claude Code's picker: choose another name"
    ]
    assert find_problems(tmp_path, f"[providers.claude]\n{kind}") == []
