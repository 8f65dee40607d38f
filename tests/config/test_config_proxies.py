"""Proxies in the configuration: the setting of a section, and the environment's choice for a host."""

from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.proxies import EnvironmentProxies, parse_proxy, read_proxies
from dragoman.upstreams.section import read_dial
from fakes.certificate import server_context
from tables import each_row

HTTP = "http://plain.test:3128"
HTTPS = "http://secure.test:3128"


def proxy_for(environ: dict[str, str], url: str) -> str | None:
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":") if rest[-1].isdigit() and ":" in rest else (rest, "", "443")
    found = read_proxies(environ)
    return None if found is None else found.proxy_for(scheme, host, int(port))


def test_each_scheme_has_its_variable_and_all_proxy_stands_in() -> None:
    environ = {"HTTP_PROXY": HTTP, "https_proxy": HTTPS}
    assert proxy_for(environ, "http://a.test") == HTTP
    assert proxy_for(environ, "https://a.test") == HTTPS
    assert proxy_for({"ALL_PROXY": "socks5://s.test"}, "https://a.test") == "socks5://s.test"
    assert proxy_for({"ALL_PROXY": "socks5://s.test", "HTTPS_PROXY": HTTPS}, "https://a.test") == HTTPS
    assert proxy_for({"HTTPS_PROXY": HTTPS}, "http://a.test") is None
    assert proxy_for({}, "https://a.test") is None


def test_lower_case_variables_take_precedence_and_may_be_empty() -> None:
    assert proxy_for({"HTTPS_PROXY": HTTPS, "https_proxy": HTTP}, "https://a.test") == HTTP
    assert proxy_for({"HTTPS_PROXY": HTTPS, "https_proxy": ""}, "https://a.test") is None


def test_an_address_without_scheme_is_an_http_proxy() -> None:
    assert proxy_for({"HTTPS_PROXY": "box.test:3128"}, "https://a.test") == "http://box.test:3128"


def test_a_desktops_socks_proxy_is_understood() -> None:
    assert parse_proxy("socks://127.0.0.1:1080/").kind == "socks5h"


def test_a_variable_that_a_request_could_have_set_is_not_believed() -> None:
    assert read_proxies({"HTTP_PROXY": HTTP, "REQUEST_METHOD": "GET"}) is None


@pytest.mark.parametrize("host", ["localhost", "api.localhost", "127.0.0.1", "127.8.9.1", "::1"])
def test_this_machine_is_never_reached_through_a_proxy(host: str) -> None:
    assert EnvironmentProxies(HTTP, HTTPS).proxy_for("https", host, 443) is None


@each_row(
    ("exempt", "host", "port", "straight"),
    [
        ("a.test", "a.test", 443, True),
        ("a.test", "deep.a.test", 443, True),
        (".a.test", "a.test", 443, True),
        ("*.a.test", "deep.a.test", 443, True),
        ("a.test", "aa.test", 443, False),
        ("A.Test", "a.test", 443, True),
        ("b.test, a.test", "a.test", 443, True),
        ("b.test a.test", "a.test", 443, True),
        ("a.test:443", "a.test", 443, True),
        ("a.test:8443", "a.test", 443, False),
        ("*", "anything.test", 443, True),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("10.1.2.3:443", "10.1.2.3", 443, True),
        ("fd00::/8", "fd00::5", 443, True),
        ("[fd00::5]:443", "fd00::5", 443, True),
        ("[fd00::5]:80", "fd00::5", 443, False),
        ("2.3", "10.1.2.3", 443, False),
        ("", "a.test", 443, False),
        (",", "a.test", 443, False),
    ],
)
def test_no_proxy_names_hosts_domains_addresses_and_networks(exempt: str, host: str, port: int, straight: bool) -> None:
    found = read_proxies({"HTTPS_PROXY": HTTPS, "NO_PROXY": exempt})
    assert found is not None
    assert found.proxy_for("https", host, port) == (None if straight else HTTPS)


def test_an_invalid_proxy_variable_is_a_problem_that_does_not_quote_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ConfigSource(None, {"HTTPS_PROXY": "socks4://u:sk-fake@old.test"}, tmp_path, tmp_path).read()
    assert str(caught.value).startswith("environment: HTTPS_PROXY: SOCKS4 is not supported")
    assert "sk-fake" not in str(caught.value)


def provider(
    directory: Path, section: str, environ: dict[str, str]
) -> tuple[str | None, EnvironmentProxies | None, str | None]:
    (directory / "dragoman.toml").write_text(f'[providers.p]\nkind = "openai"\n{section}\n')
    dial = read_dial(ConfigSource(None, environ, directory, directory).read().providers["p"], environ)
    return dial.proxy, dial.environment_proxies, dial.ca_file


@pytest.mark.parametrize("scheme", ["http", "https", "socks5", "socks5h"])
def test_a_sections_proxy_takes_precedence_over_the_environments(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://u:sk-fake-1@box.test:1"
    assert provider(tmp_path, f'proxy = "{url}"', {"ALL_PROXY": HTTP}) == (url, None, None)
    assert provider(tmp_path, 'proxy = "env:P"', {"ALL_PROXY": HTTP, "P": url}) == (url, None, None)


def test_a_section_may_disable_the_environments_proxy(tmp_path: Path) -> None:
    assert provider(tmp_path, 'proxy = "none"', {"ALL_PROXY": HTTP}) == (None, None, None)
    assert provider(tmp_path, "", {"ALL_PROXY": HTTP}) == (None, EnvironmentProxies(HTTP, HTTP), None)


def test_an_invalid_proxy_in_a_variable_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dragoman\.toml:3: providers\.p\.proxy: a proxy must be http://") as caught:
        provider(tmp_path, 'proxy = "env:P"', {"P": "ftp://u:sk-fake@box"})
    assert "sk-fake" not in str(caught.value)


def test_a_ca_file_is_read_when_the_configuration_is(tmp_path: Path) -> None:
    _, ca_file = server_context(tmp_path)
    assert provider(tmp_path, f'ca_file = "{ca_file}"', {}) == (None, None, ca_file)
    with pytest.raises(ConfigError, match=r":3: providers\.p\.ca_file: .*absent\.pem cannot be read: No such file"):
        provider(tmp_path, 'ca_file = "absent.pem"', {})
    (tmp_path / "text.pem").write_text("no certificate\n")
    with pytest.raises(ConfigError, match=r":3: providers\.p\.ca_file: .*text\.pem contains no certificates"):
        provider(tmp_path, 'ca_file = "text.pem"', {})
