"""`dragoman config`: every value with its origin, and never a secret."""

import msgspec

from shell import Shell

CONFIG = """\
[server]
port = 9123
[store]
url = "postgresql://someone:fake-password@127.0.0.1/db"
[providers.local]
kind = "openai-compatible"
endpoint = "http://127.0.0.1:11434"
api_key = "sk-fake-literal-key"
headers = { x-team = "fake-team-secret" }
[[models]]
name = "small"
to = ["local/tiny"]
[[prices]]
model = "local/*"
input = 0
output = 0.5
"""


class Value(msgspec.Struct):
    key: str
    value: object
    origin: str


def read_values(shell: Shell, **environ: str) -> dict[str, Value]:
    done = shell.run("config", "show", "--json", **environ)
    values = msgspec.json.decode(done.out, type=list[Value])
    by_key = {value.key: value for value in values}
    assert len(by_key) == len(values), "each key is shown once"
    return by_key


def test_every_value_has_its_origin(shell: Shell) -> None:
    path = shell.write("dragoman.toml", CONFIG)
    values = read_values(shell, MAX_RETRIES="7", DRAGOMAN_API_KEY="fake-key-from-outside")
    assert (values["server.port"].value, values["server.port"].origin) == (9123, f"{path}:2")
    assert values["server.host"].origin == "default"
    assert (values["retry.attempts"].value, values["retry.attempts"].origin) == (7, "environment MAX_RETRIES")
    assert values["models[0].to"].value == ["local/tiny"]
    assert (values["prices[0].output"].value, values["prices[0].output"].origin) == (0.5, f"{path}:16")
    assert values["client key"].origin == "environment DRAGOMAN_API_KEY"


def test_secrets_are_masked_in_text_and_json(shell: Shell) -> None:
    shell.write("dragoman.toml", CONFIG)
    environ = {"DRAGOMAN_API_KEY": "fake-key-from-outside"}
    text = shell.run("config", "show", **environ).out + shell.run("config", "show", "--json", **environ).out
    for secret in ("sk-fake-literal-key", "fake-team-secret", "fake-password", "fake-key-from-outside"):
        assert secret not in text
    assert "postgresql://someone:***@127.0.0.1/db" in text


def test_a_good_configuration_passes_with_its_warnings(shell: Shell) -> None:
    path = shell.write("dragoman.toml", '[[models]]\nname = "a"\nto = ["missing/x"]\n')
    done = shell.run("config", "check")
    assert (done.code, done.out) == (0, f"{path}: valid, 1 provider.\n")
    assert 'there is no provider "missing"' in done.err


def test_a_variable_that_cannot_be_used_is_a_warning(shell: Shell) -> None:
    for words in (("config", "show"), ("config", "show", "--json")):
        done = shell.run(*words, MAX_RETRIES="many")
        assert done.code == 0
        assert "Warning: environment MAX_RETRIES: ignored: " in done.err


def test_a_bad_configuration_fails_with_all_its_lines(shell: Shell) -> None:
    path = shell.write("dragoman.toml", "[server]\nprot = 1\nhost = 2\n")
    done = shell.run("config", "check")
    assert done.code == 1
    assert f"{path}:2: server.prot" in done.err
    assert f"{path}:3: server.host" in done.err


def test_a_named_file_that_is_missing_fails(shell: Shell) -> None:
    done = shell.run("config", "check", "--config", "nowhere.toml")
    assert done.code == 1
    assert "nowhere.toml" in done.err


def test_completion_scripts_are_printed(shell: Shell) -> None:
    for name in ("bash", "zsh", "fish"):
        assert "_DRAGOMAN_COMPLETE" in shell.run("completion", name).out


def test_every_credential_of_a_list_is_shown_masked(shell: Shell) -> None:
    section = '[providers.p]\nkind = "openai"\napi_key = ["env:KEY_A", "sk-fake-literal-key", "sk-fake-other-key"]\n'
    path = shell.write("dragoman.toml", section)
    value = read_values(shell)["providers.p.api_key"]
    assert (value.value, value.origin) == (["env:KEY_A", "***", "***"], f"{path}:3")
    assert "sk-fake" not in shell.run("config", "show").out


def test_the_environments_proxies_are_shown_without_their_passwords(shell: Shell) -> None:
    values = read_values(
        shell, HTTPS_PROXY="https://me:fake-proxy-password@box.test:3128", NO_PROXY="a.test,10.0.0.0/8"
    )
    assert values["proxy to https://"].value == "https://me:***@box.test:3128"
    assert values["no proxy to"].value == ["this machine", "a.test", "10.0.0.0/8"]
    assert "proxy to http://" not in values


def test_a_proxy_variable_that_cannot_be_followed_is_named(shell: Shell) -> None:
    done = shell.run("config", "check", https_proxy="socks4://me:fake-proxy-password@box.test")
    assert (done.code, "fake-proxy-password" in done.out + done.err) == (1, False)
    assert "https_proxy: SOCKS4 is not supported" in done.err


def test_a_problem_with_a_secret_is_explained_without_showing_it(shell: Shell) -> None:
    shell.write("dragoman.toml", '[providers.p]\nkind = "openai"\napikey = "sk-fake-1234567890"\n')
    error = shell.run("config", "check").err
    assert 'dragoman.toml:3: providers.p.apikey: unknown key; did you mean "api_key"?' in error
    shell.write("dragoman.toml", '[providers.p]\nkind = "openai"\nheaders = { authorization = "a\\u0001" }\n')
    assert (
        "headers.authorization: a header's value must not contain control characters"
        in shell.run("config", "check").err
    )


def test_a_valid_file_whose_key_is_not_set_here_is_warned_about(shell: Shell) -> None:
    shell.write("dragoman.toml", '[providers.fast]\nkind = "groq"\n')
    done = shell.run("config", "check")
    assert (done.code, "valid, 1 provider." in done.out) == (0, True)
    assert 'provider "fast" cannot be used here: environment variable GROQ_API_KEY is not set' in done.err
