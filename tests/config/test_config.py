"""Configuration: where it is found, what takes precedence, and the messages about mistakes."""

from pathlib import Path

import msgspec
import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.presets import normalise_endpoint
from dragoman.config.problems import ConfigError
from dragoman.config.secret import Secret, resolve_secret
from dragoman.config.settings import KiroProviderConfig, ModelRoute, ProviderConfig, ServerSettings
from fakes.certificate import server_context
from tables import each_row

CONTRACT = Path(__file__).parent.parent / "fixtures" / "config" / "contract.toml"


def keys_of(section: type[msgspec.Struct]) -> str:
    names = (field.encode_name for field in msgspec.structs.fields(section))
    return ", ".join(name for name in names if name not in ("name", "extra_credentials", "preset"))


def write(directory: Path, text: str, name: str = "dragoman.toml") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problems_of(directory: Path, text: str) -> list[str]:
    path = write(directory, text)
    with pytest.raises(ConfigError) as caught:
        ConfigSource(None, {}, directory, directory).read()
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_no_file_at_all_is_fine_and_echo_answers(tmp_path: Path) -> None:
    config = ConfigSource(None, {}, tmp_path, Path("/home/someone")).read()
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8484)
    assert config.server.max_body_bytes == 32 * 1024 * 1024
    assert config.store.url == "sqlite:////home/someone/.local/share/dragoman/dragoman.db"
    assert config.debug.directory == Path("/home/someone/.local/share/dragoman/captures")
    assert config.providers == {"echo": ProviderConfig(name="echo", kind="echo")}
    assert config.source is None
    assert config.client_key is None
    assert (config.origins, config.warnings, config.models) == ({}, (), ())


def test_the_documented_example_is_understood() -> None:
    config = ConfigSource(str(CONTRACT), {}, Path("/nowhere"), Path("/home/someone")).read()
    kiro, local = config.providers["kiro"], config.providers["local"]
    assert isinstance(kiro, KiroProviderConfig)
    assert kiro.credentials is not None
    assert kiro.credentials.text == "/home/someone/.aws/sso/cache/kiro-auth-token.json"
    assert kiro.endpoint == "https://runtime.us-east-1.kiro.dev"
    assert (kiro.thinking, kiro.thinking_by, kiro.repair_truncation) == ("as_reasoning", "auto", True)
    assert (local.kind, local.endpoint, local.protocols) == (
        "openai-compatible",
        "http://127.0.0.1:11434/v1",
        ("chat",),
    )
    assert config.models == (ModelRoute("claude-*", ("kiro/auto", "anthropic/*")),)
    assert config.origins["retry.attempts"] == f"{CONTRACT}:11"
    assert config.origins["models[0].to"] == f"{CONTRACT}:49"
    assert [warning.partition(": ")[2] for warning in config.warnings] == [
        'models[0].to: there is no provider "anthropic"'
    ]


def test_the_example_states_the_defaults() -> None:
    nowhere, home = Path("/nowhere"), Path("/home/someone")
    example = ConfigSource(str(CONTRACT), {}, nowhere, home).read()
    defaults = ConfigSource(None, {}, nowhere, home).read()
    assert (example.server, example.retry, example.debug) == (defaults.server, defaults.retry, defaults.debug)
    assert example.store.url == defaults.store.url


def test_files_are_searched_in_order(tmp_path: Path) -> None:
    def port(argv: str | None, environ: dict[str, str]) -> int:
        return ConfigSource(argv, environ, tmp_path / "cwd", tmp_path / "home").read().server.port

    (tmp_path / "cwd").mkdir()
    write(tmp_path, "server.port = 1", "flag.toml")
    write(tmp_path, "server.port = 2", "variable.toml")
    environ = {"DRAGOMAN_CONFIG": "../variable.toml"}
    assert port("../flag.toml", environ) == 1
    assert port(None, environ) == 2
    assert port(None, {}) == 8484
    write(tmp_path, "server.port = 5", "home/.config/dragoman/dragoman.toml")
    assert port(None, {}) == 5
    write(tmp_path, "server.port = 4", "xdg/dragoman/dragoman.toml")
    assert port(None, {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}) == 4
    write(tmp_path, "server.port = 3", "cwd/dragoman.toml")
    assert port(None, {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}) == 3


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: there is no such file; check --config"):
        ConfigSource("absent.toml", {}, tmp_path, tmp_path).read()
    with pytest.raises(ConfigError, match=r"check \$DRAGOMAN_CONFIG"):
        ConfigSource(None, {"DRAGOMAN_CONFIG": "absent.toml"}, tmp_path, tmp_path).read()


def test_a_flag_wins_over_file_over_environment(tmp_path: Path) -> None:
    path = write(tmp_path, "[retry]\nattempts = 4\n[server]\nport = 1000\nhost = 'localhost'\n")
    environ = {"MAX_RETRIES": "9", "BASE_RETRY_DELAY": "0.5"}
    config = ConfigSource(None, environ, tmp_path, tmp_path).read({"server.port": 2000, "server.host": None})
    assert (config.retry.attempts, config.retry.base_s) == (4, 0.5)
    assert (config.server.port, config.server.host) == (2000, "localhost")
    assert config.origins == {
        "retry.attempts": f"{path}:2",
        "retry.base_s": "environment BASE_RETRY_DELAY",
        "server.port": "command line --port",
        "server.host": f"{path}:5",
    }


def test_a_bad_flag_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"command line: --port \(server\.port\): expected a whole number <= 65535"):
        ConfigSource(None, {}, tmp_path, tmp_path).read({"server.port": 70000})


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("[sever]\nport = 1\n", ['1: sever: unknown key; did you mean "server"?']),
        ("[server]\n\nprot = 8484\n", ['3: server.prot: unknown key; did you mean "port"?']),
        ("[server]\nidle-timeout = 3\n", ['2: server.idle-timeout: unknown key; did you mean "idle_timeout_s"?']),
        ("server.flavour = 1\n", [f"1: server.flavour: unknown key; known keys: {keys_of(ServerSettings)}"]),
        ('[server]\nport = "8484"\n', ['2: server.port: expected a whole number, got the string "8484"']),
        ("[server]\nport = true\n", ["2: server.port: expected a whole number, got true"]),
        ("[server]\nhost = ''\n", ["2: server.host: expected a string that is not empty"]),
        ("[server]\nallowed_hosts = 'a'\n", ['2: server.allowed_hosts: expected a list, got the string "a"']),
        (
            "[server]\nallowed_hosts = ['a', 2]\n",
            ["2: server.allowed_hosts: expected a string, got a whole number (at [1])"],
        ),
        ("[retry]\nattempts = 0\n", ["2: retry.attempts: expected a whole number >= 1, got 0"]),
        ("[retry]\nbase_s = nan\n", ["2: retry.base_s: expected a number >= 0.0, got nan"]),
        ("[fetch]\nenabled = 'yes'\n", ['2: fetch.enabled: expected true or false, got the string "yes"']),
        ("[effort]\nhihg = 1\n", ['2: effort.hihg: unknown key; did you mean "high"?']),
        ("retry = 3\n", ["1: retry: expected a table, got a number"]),
        (
            '[debug]\ncapture = "error"\n',
            ['2: debug.capture: expected one of "off", "errors", "all", got "error"; did you mean "errors"?'],
        ),
        ("[store]\nurl = 'mysql://x'\n", ["2: store.url: expected sqlite:///PATH or postgresql://USER@HOST/NAME"]),
        ("[models]\nname = 'x'\n", ["1: models: expected a list of tables: write [[models]]"]),
        ("[[models]]\nname = 'x'\n", ['1: models[0]: "to" is missing']),
        ("[[models]]\nname = 'x'\nto = []\n", ["3: models[0].to: expected a list that is not empty"]),
        ("[[models]]\nname = 'x'\nto = ['y']\n", ['3: models[0].to: expected "provider/model", got "y"']),
        ("[providers]\nx = 1\n", ["2: providers.x: expected a table, got a number"]),
        ("\n[server]\nport = = 1\n", ["3: not valid TOML at column 8: Invalid value"]),
        ("[server]\nport = 1\nport = 2\n", ["3: not valid TOML at column 9: Cannot overwrite a value"]),
        ("[server]\nx = [1,\n", ["2: not valid TOML: Invalid value"]),
    ],
)
def test_a_bad_file_is_reported_with_line_key_and_suggestion(tmp_path: Path, text: str, problems: list[str]) -> None:
    assert problems_of(tmp_path, text) == problems


KINDS = (
    '"anthropic", "openai", "openai-compatible", "codex", "copilot", "gemini", "kiro", "echo", '
    "or a vendor that `dragoman providers presets` lists"
)


THINKING = '"low", "medium", "high", or a whole number from 1 to 1000000'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('kind = "opnai"', f'2: providers.p.kind: expected one of {KINDS}, got "opnai"; did you mean "openai"?'),
        ("models = ['a']", f'1: providers.p: "kind" is missing; set it to one of {KINDS}'),
        ("kind = 7", f"2: providers.p.kind: expected one of {KINDS}"),
        ('kind = "openai"\napikey = "x"', '3: providers.p.apikey: unknown key; did you mean "api_key"?'),
        ('kind = "openai"\napi_key = 3', "3: providers.p.api_key: expected a string"),
        ('kind = "openai"\napi_key = ""', "3: providers.p.api_key: must not be empty"),
        ('kind = "openai"\nname = "x"', f"3: providers.p.name: unknown key; known keys: {keys_of(ProviderConfig)}"),
        (
            'kind = "openai"\nregion = "x"',
            '3: providers.p.region: this key exists only for providers of kind "kiro"; remove it',
        ),
        (
            'kind = "anthropic"\nprotocol = "chat"',
            '3: providers.p.protocol: kind "anthropic" supports "messages", not "chat"',
        ),
        (
            'kind = "openai-compatible"\nendpoint = "http://h"\nprotocol = ["chat", "mesages"]',
            '4: providers.p.protocol: expected one of "chat", "responses", "messages", "gemini", got "mesages";'
            ' did you mean "messages"?',
        ),
        (
            'kind = "openai"\ncache = "atuo"',
            '3: providers.p.cache: expected one of "auto", "client", "off", got "atuo"; did you mean "auto"?',
        ),
        (
            'kind = "openai"\ncache_ttl = "2h"',
            '3: providers.p.cache_ttl: expected one of "auto", "5m", "1h", got "2h"',
        ),
        (
            'kind = "openai"\ndefault_thinking = "meduim"',
            f'3: providers.p.default_thinking: expected one of {THINKING}, got "meduim"; did you mean "medium"?',
        ),
        (
            'kind = "openai"\ndefault_thinking = 0',
            f"3: providers.p.default_thinking: expected one of {THINKING}, got 0",
        ),
        (
            'kind = "openai"\ndefault_thinking = true',
            f"3: providers.p.default_thinking: expected one of {THINKING}, got true",
        ),
        ('kind = "openai"\nprotocol = []', "3: providers.p.protocol: must name at least one protocol"),
        (
            'kind = "openai"\nprotocol = ["chat", "chat"]',
            "3: providers.p.protocol: names the same protocol twice; remove one",
        ),
        (
            'kind = "openai-compatible"',
            '1: providers.p: "endpoint" is missing; a provider of kind "openai-compatible" needs one',
        ),
        (
            'kind = "openai"\nendpoint = "api.openai.com"',
            "3: providers.p.endpoint: the address must begin with http:// or https://",
        ),
        (
            'kind = "openai"\nproxy = "socks4://h:1"',
            "3: providers.p.proxy: SOCKS4 is not supported; "
            "if the proxy supports SOCKS5, write socks5:// or socks5h://",
        ),
        (
            'kind = "openai"\nheaders = { "a b" = "c" }',
            "3: providers.p.headers.a b: not a valid name of an HTTP header; use letters, digits and hyphens",
        ),
        (
            'kind = "openai"\nheaders = { Host = "c" }',
            "3: providers.p.headers.Host: the gateway sets this header itself; remove it",
        ),
        (
            'kind = "openai"\n[providers.p.headers]\nx-a = "b\\r\\nx-evil: 1"',
            "4: providers.p.headers.x-a: a header's value must not contain control characters",
        ),
        (
            'kind = "kiro"\nthinking = "remov"',
            '3: providers.p.thinking: expected one of "as_reasoning", "remove", "pass", '
            '"strip_tags", got "remov"; did you mean "remove"?',
        ),
    ],
)
def test_a_bad_provider_is_reported_with_line_key_and_suggestion(tmp_path: Path, text: str, problem: str) -> None:
    assert problems_of(tmp_path, f"[providers.p]\n{text}\n") == [problem]


def test_a_provider_name_cannot_hide_a_slash(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, '[providers."a/b"]\nkind = "echo"\n')
    assert problem.startswith("1: providers.a/b: a provider's name may contain only")


def test_all_problems_are_reported_together_in_the_order_of_lines(tmp_path: Path) -> None:
    text = (
        "[[models]]\nnme = 'a'\nto = ['x/y']\n"
        "[providers.x]\nkind = 'opnai'\n[providers.y]\nkind = 'openai'\napi_ky = 'k'\n"
        "[server]\nport = -1\n[rety]\n"
    )
    lines = [problem.partition(":")[0] for problem in problems_of(tmp_path, text)]
    assert lines == ["1", "2", "5", "8", "10", "11"]


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_bytes(b'[server]\nhost = "\xff"\n')
    with pytest.raises(ConfigError, match=r"dragoman\.toml:2: not valid TOML: the file is not UTF-8"):
        ConfigSource(None, {}, tmp_path, tmp_path).read()


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_bytes(b"\xef\xbb\xbf[server]\r\nport = 1\r\n")
    assert ConfigSource(None, {}, tmp_path, tmp_path).read().server.port == 1


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    write(
        tmp_path,
        '[store]\nurl = "sqlite:///data/d.db"\n[debug]\ndirectory = "captures"\n'
        '[providers.p]\nkind = "openai"\napi_key = "file:key"\nca_file = "~/ca.pem"\nheaders = { x-a = "file:key" }\n',
        "etc/own.toml",
    )
    write(tmp_path, "sk-fake-1\n", "etc/key")
    home = tmp_path / "home"
    home.mkdir()
    Path(server_context(tmp_path)[1]).rename(home / "ca.pem")
    config = ConfigSource("etc/own.toml", {}, tmp_path, home).read()
    provider = config.providers["p"]
    assert config.store.url == f"sqlite:///{tmp_path}/etc/data/d.db"
    assert config.debug.directory == tmp_path / "etc" / "captures"
    assert provider.ca_file == home / "ca.pem"
    assert provider.api_key is not None
    assert resolve_secret(provider.api_key, {}) == Secret("sk-fake-1")
    assert resolve_secret(provider.headers["x-a"], {}) == Secret("sk-fake-1")


def test_settings_of_every_section_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        "[server]\nkeep_alive_s = 5\nallowed_hosts = ['box.lan']\nresponses_done = false\nmax_body_mb = 0.5\n"
        "[fetch]\nenabled = true\nmax_mb = 2\n[effort]\nhigh = 20000\n"
        "[providers.a]\nkind = 'openai-compatible'\nendpoint = 'http://127.0.0.1:9000/'\n"
        "protocol = ['messages', 'chat']\nmodels = ['m1', 'm2']\nuser_agent = 'me/1'\n"
        "[providers.b]\nkind = 'anthropic'\n[providers.c]\nkind = 'openai'\n"
        "[[models]]\nname = 'x'\nto = ['a/m1']\n[[models]]\nname = '*'\nto = ['b/*', 'a/org/model']\n",
    )
    config = ConfigSource(None, {}, tmp_path, tmp_path).read()
    assert (config.server.keep_alive_s, config.server.allowed_hosts) == (5.0, ("box.lan",))
    assert (config.server.responses_done, config.server.max_body_bytes) == (False, 512 * 1024)
    assert (config.fetch.enabled, config.fetch.max_bytes, config.fetch.timeout_s) == (True, 2 * 1024 * 1024, 10.0)
    assert (config.effort.low, config.effort.high) == (2048, 20000)
    a, b, c = (config.providers[name] for name in "abc")
    assert (a.name, a.endpoint, a.protocols) == ("a", "http://127.0.0.1:9000/v1", ("messages", "chat"))
    assert (a.models, a.user_agent) == (("m1", "m2"), "me/1")
    assert (b.endpoint, b.protocols) == ("https://api.anthropic.com/v1", ("messages",))
    assert (c.endpoint, c.protocols) == ("https://api.openai.com/v1", ("responses", "chat"))
    assert [route.to for route in config.models] == [("a/m1",), ("b/*", "a/org/model")]
    assert config.warnings == ()


def test_a_limit_of_kiros_bodies_is_read_and_checked(tmp_path: Path) -> None:
    section = '[providers.k]\nkind = "kiro"\nmax_payload_bytes = '
    write(tmp_path, f"{section}615000")
    kiro = ConfigSource(None, {}, tmp_path, tmp_path).read().providers["k"]
    assert isinstance(kiro, KiroProviderConfig)
    assert kiro.max_payload_bytes == 615_000
    assert len(problems_of(tmp_path, f"{section}0")) == 1


def test_an_unknown_target_is_a_warning_with_the_nearest_provider(tmp_path: Path) -> None:
    write(tmp_path, "[providers.local]\nkind = 'echo'\n[[models]]\nname = 'x'\nto = ['loacl/m']\n")
    (warning,) = ConfigSource(None, {}, tmp_path, tmp_path).read().warnings
    assert warning.endswith('dragoman.toml:5: models[0].to: there is no provider "loacl"; did you mean "local"?')


@each_row(
    ("url", "kind", "endpoint"),
    [
        ("https://api.anthropic.com", "anthropic", "https://api.anthropic.com/v1"),
        ("https://api.anthropic.com/", "anthropic", "https://api.anthropic.com/v1"),
        ("https://api.anthropic.com/v1", "anthropic", "https://api.anthropic.com/v1"),
        ("https://api.anthropic.com/v1/", "anthropic", "https://api.anthropic.com/v1"),
        ("http://127.0.0.1:9000/", "openai-compatible", "http://127.0.0.1:9000/v1"),
        ("http://[::1]:9000", "openai-compatible", "http://[::1]:9000/v1"),
        ("https://ark.example/api/v3", "openai-compatible", "https://ark.example/api/v3"),
        ("https://azure.example/openai/v1/", "openai", "https://azure.example/openai/v1"),
        ("https://openrouter.example/api", "openai-compatible", "https://openrouter.example/api/v1"),
        ("https://g.example/v1beta/openai", "openai-compatible", "https://g.example/v1beta/openai"),
        ("https://vllm.example/vision", "openai-compatible", "https://vllm.example/vision/v1"),
        ("https://generativelanguage.googleapis.com", "gemini", "https://generativelanguage.googleapis.com/v1beta"),
        ("https://generativelanguage.googleapis.com/v1", "gemini", "https://generativelanguage.googleapis.com/v1"),
        ("https://runtime.us-east-1.kiro.dev/", "kiro", "https://runtime.us-east-1.kiro.dev"),
        ("https://chatgpt.com/backend-api/codex", "codex", "https://chatgpt.com/backend-api/codex"),
        (" https://api.openai.com\n", "openai", "https://api.openai.com/v1"),
    ],
)
def test_an_endpoint_ends_with_its_version(url: str, kind: str, endpoint: str) -> None:
    assert normalise_endpoint(url, kind) == endpoint
    assert normalise_endpoint(endpoint, kind) == endpoint


@each_row(
    ("url", "message"),
    [
        ("api.openai.com", "begin with http"),
        ("ftp://host", "begin with http"),
        ("", "begin with http"),
        ("https://", "no host"),
        ("https://user:sk-fake@host", "must not contain a user"),
        ("https://host/v1?key=sk-fake", "query"),
        ("https://host:99999/v1", "ort"),
        ("https://ho st/v1", "spaces"),
        ("https://host/v1\r\nx: y", "control"),
        ("https://host/v1/chat/completions", "remove /chat/completions"),
        ("https://host/v1/messages/", "remove /messages"),
    ],
)
def test_an_address_that_cannot_be_an_endpoint_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        normalise_endpoint(url, "openai")
    assert "sk-fake" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ('server.port = "many"', ['1: server.port: expected a whole number, got the string "many"']),
        (
            "[server]\nhost = 8484\nprot = 1",
            ["2: server.host: expected a string, got 8484", "3: server.prot"],
        ),
        ("server = 3", ["1: server: expected a table, got a number"]),
    ],
)
def test_a_wrong_value_in_the_file_is_a_problem_even_if_a_flag_overrides_it(
    tmp_path: Path, text: str, problems: list[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        ConfigSource(None, {}, tmp_path, tmp_path).read({"server.port": 2000, "server.host": "localhost"})
    found = [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]
    assert len(found) == len(problems)
    assert all(problem.startswith(start) for problem, start in zip(found, problems, strict=True)), found
